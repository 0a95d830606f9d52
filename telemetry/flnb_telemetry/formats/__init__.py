"""How a recording leaves the process: pictures, pages and files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FOREIGN = {
    "read": "flnb_telemetry.foreign.torch_snapshot:load_snapshot",
    "write": "flnb_telemetry.foreign.torch_export:save_snapshot",
}
"""Who reads and writes the memory snapshots of PyTorch: looked up here, imported when one is met."""


@contextmanager
def aside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a path to write to, beside ``path``; when the block ends it is flushed to the disk and renamed to ``path``.

    If the block raises, the part is removed and ``path`` is as it was. Each call has a part of its own, in threads too.
    """
    target = Path(path)
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
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
