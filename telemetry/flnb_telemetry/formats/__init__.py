"""File formats of recordings: pictures (`svg`, `png`), pages (`html`) and `.flnb` files (`parquet`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flnb_telemetry.extras import tool

FOREIGN = {
    "read snapshot": "flnb_telemetry.foreign.torch_snapshot:load_snapshot",
    "write snapshot": "flnb_telemetry.foreign.torch_export:save_snapshot",
    "read trace": "flnb_telemetry.foreign.kineto:load_trace",
    "write trace": "flnb_telemetry.foreign.chrome_trace:save_trace",
    "write page": "flnb.widgets.page:save",
    "draw view": "flnb.plot.views:view_svg",
}
"""The functions of flnb's tools that read and write other formats ("module:function")."""


def foreign(name: str) -> Any:
    """Import and return the function that `FOREIGN` lists under a name."""
    return tool(*FOREIGN[name].split(":"))


def target_of(path: str | os.PathLike[str]) -> Path:
    """Return a path as a `Path`, after a check that it names a file.

    Raises:
        TypeError: the path is no string or `os.PathLike` of one.
        ValueError: the path names no file.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(
            f"path={path!r} is of type {type(path).__name__}; expected the path of a file, such as 'run.flnb'"
        )
    target = Path(path)
    if target.name in ("", ".."):
        raise ValueError(f"path={os.fspath(path)!r} does not name a file; expected one such as 'run.flnb'")
    return target


def check_parent(target: Path) -> None:
    """Raise FileNotFoundError if the folder in which a file is to be written does not exist."""
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"there is no folder {os.fspath(target.parent)!r} for path={os.fspath(target)!r}; make it first"
        )


@contextmanager
def aside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Context manager: yields the path of a temporary file beside `path`, which is renamed to `path` at the end.

    The file is flushed to the disk before it is renamed. If the block raises an error, the temporary file is removed
    and `path` is unchanged. Each call uses a separate temporary file, so that threads may write to the same path.

    Raises:
        ValueError: `path` names no file.
        IsADirectoryError: there is a folder at `path`.
        FileNotFoundError: the parent folder does not exist.
    """
    target = target_of(path)
    check_parent(target)
    if target.is_dir():
        raise IsADirectoryError(
            f"path={os.fspath(path)!r} is a folder, perhaps of a recording that runs now; expected the path of a file"
        )
    part = target.with_name(f".{target.name[:40]}.{os.urandom(8).hex()}.part")
    try:
        yield part
        _flush(part)
        os.replace(part, target)
        with suppress(OSError):  # some file systems cannot flush a folder; the file is whole in any case
            _flush(target.parent)
    finally:
        part.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Wait until a file or a folder has been written to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
