"""How a recording leaves the process: pictures, pages and files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def aside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path to write to, beside ``path``; it takes its place when the block ends and is gone if that raised."""
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield part
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
