"""Folders in which compiled kernels are stored, so that another process need not compile them again."""

from __future__ import annotations

import os
from pathlib import Path

CACHES = ("native", "cuda")
"""Names of the folders: machine code for this processor, and code for CUDA devices."""


def cache_folder(name: str) -> Path:
    """Return the path of the folder ``name``, one of `CACHES`.

    The folder is in $FLNB_CACHE if that is set, else in the folder "flnb" of the user's cache folder.
    """
    base = os.environ.get("FLNB_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "flnb")
    return Path(base, name)
