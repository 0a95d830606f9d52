"""nn.save and nn.load: one safetensors file, written aside and renamed; nothing is loaded by half."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry.extras import require

from flnb.nn.module import Module, _plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flnb.tensor import Tensor

__all__ = ["load", "save"]


def save(model: Module | Mapping[str, Tensor], path: str | os.PathLike[str]) -> None:
    """Write all parameters and buffers of `model` (or of a state dict) to `path`.

    The file appears under its name only when it is complete, so an interrupted save leaves the old one as it was.

    >>> import tempfile, flnb.nn as nn
    >>> folder = tempfile.TemporaryDirectory()
    >>> net, other = nn.Linear(2, 3), nn.Linear(2, 3)
    >>> nn.save(net, folder.name + "/net.safetensors")
    >>> nn.load(other, folder.name + "/net.safetensors")
    >>> bool((net.weight.data == other.weight.data).all())
    True
    >>> folder.cleanup()
    """
    tensors = dict(model._named_tensors()) if isinstance(model, Module) else model
    # Row-major, because safetensors writes the raw buffer of what it is given, also of a strided array.
    arrays = {name: np.asarray(_plain(tensor).numpy(), order="C") for name, tensor in tensors.items()}
    target = Path(path)
    aside = target.with_name(f".{target.name}.{os.getpid()}.part")
    content = require("safetensors.numpy", extra="lab", purpose="nn.save").save(arrays, metadata={"format": "flnb"})
    try:
        aside.write_bytes(content)
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


def load(model: Module, path: str | os.PathLike[str]) -> None:
    """Read `path` into `model`, in place.

    Raises FileNotFoundError; ValueError for a file that is not whole, or that lists everything that does not fit.
    In each case the model is as it was before.
    """
    safetensors = require("safetensors", extra="lab", purpose="nn.load")
    source = Path(path)
    content = source.read_bytes()
    try:
        state: dict[str, Any] = require("safetensors.numpy", extra="lab", purpose="nn.load").load(content)
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise ValueError(
            f"flnb: {source} is not a whole safetensors file ({len(content):,} bytes: {error}); nothing was loaded; "
            "save it again with nn.save(model, path)"
        ) from error
    model.load_state_dict(state)
