"""Checkpoints of distributed training: one file for all ranks, which any number of ranks can load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch.communication import run
from flnb.dispatch.groups import current
from flnb.nn import save_checkpoint as save_alone

if TYPE_CHECKING:
    import os


class _Taken:
    """A part for `flnb.nn.save_checkpoint`; its attribute ``state`` is a state dict collected from all ranks."""

    def __init__(self, state: Any) -> None:
        self.state = state


def save_checkpoint(path: str | os.PathLike[str], /, **parts: Any) -> None:
    """Write one checkpoint file for all ranks (`flnb.nn.save_checkpoint`); every rank must call this.

    Each keyword argument is a part to save: a module, an optimizer or a plain value, for instance. Rank 0 writes the
    file. The states of a `Sharded` and of its optimizer are collected from all ranks. Other parts, and the state of the
    random generator, are saved from rank 0. Any number of ranks can read the file by `flnb.nn.load_checkpoint`,
    including a single process whose module and optimizer are not divided.

    Raises:
        TypeError, ValueError, OSError: on rank 0, for the reasons of `flnb.nn.save_checkpoint`.
        RuntimeError: on the other ranks, if rank 0 could not write the file.

    >>> import tempfile, flnb, flnb.nn as nn, flnb.optim as optim
    >>> folder = tempfile.TemporaryDirectory()
    >>> def save():
    ...     net = nn.Linear(2, 3)
    ...     model = flnb.distributed.Sharded(net, optim.Adam(net.parameters()), stage=3)
    ...     flnb.distributed.save_checkpoint(folder.name + "/last", model=model, optimizer=model.optimizer, epoch=3)
    >>> _ = flnb.distributed.run_threads(2, save)
    >>> net = nn.Linear(2, 3)
    >>> nn.load_checkpoint(folder.name + "/last", model=net, optimizer=optim.Adam(net.parameters()))
    {'epoch': 3}
    >>> folder.cleanup()
    """
    taken = {name: _Taken(part.state_dict()) if hasattr(part, "state_dict") else part for name, part in parts.items()}
    written = np.array([1], np.uint8)
    try:
        if current().rank == 0:
            save_alone(path, **taken)
    except BaseException:
        written[0] = 0
        raise
    finally:
        run("broadcast", written, 0)
    if not written[0]:
        raise RuntimeError(f"save_checkpoint: rank 0 could not write {path}; see the error of rank 0 for the reason")
