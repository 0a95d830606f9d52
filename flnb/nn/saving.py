"""Save and load models as safetensors files, which are written completely or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry.extras import require
from flnb_telemetry.formats import aside

from flnb.autograd.variable import plain
from flnb.dispatch.brief import brief
from flnb.nn.module import Module
from flnb.tensor import Tensor

if TYPE_CHECKING:
    import os


def save(model: Module | Mapping[str, Tensor], path: str | os.PathLike[str]) -> None:
    """Write all parameters and buffers of `model` (or the tensors of a state dict) to a safetensors file.

    The file is complete or not written at all: an interrupted call leaves an older file unchanged.

    Raises:
        TypeError: ``model`` is neither a module nor a state dict of tensors.
        ImportError: safetensors is not installed.
        OSError: the file cannot be written.

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
    if not isinstance(tensors, Mapping) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise TypeError(f"nn.save: expected a module or its state_dict(), a dict of tensors, got {brief(model)}")
    # Row-major, because safetensors writes the raw buffer of what it is given, also of a strided array.
    arrays = {name: np.asarray(plain(tensor).numpy(), order="C") for name, tensor in tensors.items()}
    write_whole(path, arrays, {}, purpose="nn.save")


def load(model: Module, path: str | os.PathLike[str]) -> None:
    """Read a file that `save` wrote into the parameters and buffers of `model`, in place.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is incomplete or does not fit; the message lists every missing, unexpected and mis-shaped
            name. The model is unchanged then.

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
    """Write a safetensors file atomically: under a temporary name, then renamed to `path`.

    Args:
        path: the file's name.
        arrays: the tensors, as NumPy arrays in row-major order.
        metadata: texts that are stored in the file's header.
        purpose: the name of the public function that writes, for the error if safetensors is not installed.
    """
    safetensors = require("safetensors.numpy", extra="lab", purpose=purpose)
    content = safetensors.save(dict(arrays), metadata={"format": "flnb", **metadata})
    with aside(path) as part:
        part.write_bytes(content)


def read_whole(path: str | os.PathLike[str], purpose: str, saved_by: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Read the arrays and the metadata of a safetensors file.

    Args:
        path: the file's name.
        purpose: the name of the public function that reads, for the error if safetensors is not installed.
        saved_by: the call that makes such files, for the error if the file is damaged.

    Raises:
        ValueError: the file is truncated, or no safetensors file.
    """
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
