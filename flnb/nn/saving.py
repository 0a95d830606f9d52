"""Save and load models: one safetensors file, written under another name and renamed; nothing is loaded by half."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry.extras import require
from flnb_telemetry.formats import aside

from flnb.nn.module import Module, _plain

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from flnb.tensor import Tensor

__all__ = ["load", "read_whole", "save", "write_whole"]


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
    write_whole(path, arrays, {}, purpose="nn.save")


def load(model: Module, path: str | os.PathLike[str]) -> None:
    """Read `path` into `model`, in place; after an error the model is as it was before.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is incomplete; or lists everything that does not fit.

    >>> import flnb.nn as nn
    >>> net = nn.Linear(2, 1)
    >>> nn.save(net, "net.safetensors")
    >>> nn.load(net, "net.safetensors")
    """
    arrays, metadata = read_whole(path, purpose="nn.load", saved_by="nn.save(model, path)")
    if "checkpoint" in metadata:
        raise ValueError(
            f"flnb: {path} holds a checkpoint, nothing was loaded; read it with nn.load_checkpoint(path, model=model), "
            "by the names it was saved with"
        )
    model.load_state_dict(arrays)


def write_whole(
    path: str | os.PathLike[str], arrays: Mapping[str, Any], metadata: Mapping[str, str], purpose: str
) -> None:
    """Write a safetensors file beside `path` and rename it; an interruption leaves the old one as it was."""
    safetensors = require("safetensors.numpy", extra="lab", purpose=purpose)
    content = safetensors.save(dict(arrays), metadata={"format": "flnb", **metadata})
    with aside(path) as part:
        part.write_bytes(content)


def read_whole(path: str | os.PathLike[str], purpose: str, saved_by: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Arrays and metadata of a safetensors file. Raises ValueError where it is truncated or something else."""
    safetensors = require("safetensors", extra="lab", purpose=purpose)
    source = Path(path)
    content = source.read_bytes()
    try:
        arrays = require("safetensors.numpy", extra="lab", purpose=purpose).load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise ValueError(
            f"flnb: {source} is not a whole safetensors file ({len(content):,} bytes: {error}); nothing was loaded; "
            f"save it again with {saved_by}"
        ) from error
    return arrays, header.get("__metadata__", {})
