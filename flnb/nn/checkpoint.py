"""Checkpoints of a training run: the states of model, optimizer, schedule, data and random generator in one file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb import random as flnb_random
from flnb.nn.mismatches import refuse
from flnb.nn.saving import read_whole, write_whole
from flnb.tensor import Tensor

if TYPE_CHECKING:
    import os

__all__ = ["load_checkpoint", "save_checkpoint"]

ARRAY = "__array__"
"""The key by which the JSON refers to an array: ``{ARRAY: "name of the array in the file"}``."""


def save_checkpoint(path: str | os.PathLike[str], /, **parts: Any) -> None:
    """Write the states of `parts` and of the session's random generator to one safetensors file.

    A part is anything with a method ``state_dict()`` (modules, optimizers, schedules, ...) or an attribute ``state``
    (datasets, random generators), or a plain value that JSON can represent. Arrays become the file's tensors, named
    after their place ("model.conv.weight"); everything else is JSON in the file's metadata. The file is complete or not
    written at all: an interrupted call leaves an older file unchanged.

    >>> import tempfile, flnb.nn as nn, flnb.optim as optim
    >>> folder = tempfile.TemporaryDirectory()
    >>> net = nn.Linear(2, 3)
    >>> optimizer = optim.Adam(net.parameters())
    >>> nn.save_checkpoint(folder.name + "/last", model=net, optimizer=optimizer, epoch=3)
    >>> nn.load_checkpoint(folder.name + "/last", model=net, optimizer=optimizer)
    {'epoch': 3}
    >>> folder.cleanup()

    Raises:
        TypeError: a value in a part's state is neither an array nor representable in JSON; the message names it.
        ValueError: a part is called "random", which is the name of the session's generator in the file.
    """
    if "random" in parts:
        raise ValueError(
            'flnb: nn.save_checkpoint: "random" is the session\'s generator, which is saved in any case; give the part '
            "another name"
        )
    arrays: dict[str, Any] = {}
    tree = {
        "states": {name: _encoded(_state(part), name, arrays) for name, part in parts.items() if _has_state(part)},
        "values": {name: _encoded(part, name, arrays) for name, part in parts.items() if not _has_state(part)},
        "random": _encoded(flnb_random.current_generator().state, "random", arrays),
    }
    write_whole(path, arrays, {"checkpoint": json.dumps(tree)}, purpose="nn.save_checkpoint")


def load_checkpoint(path: str | os.PathLike[str], /, *, random: bool = True, **parts: Any) -> dict[str, Any]:
    """Load a file that `save_checkpoint` wrote into `parts`; each has the name with which it was saved.

    States in the file for which no part is passed are ignored. Unless ``random`` is false, the session's random
    generator continues from its saved state.

    Returns:
        The plain values in the file, by name.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is incomplete or no checkpoint, or the parts do not fit; the message lists every missing,
            unexpected and mis-shaped name. Nothing has been loaded then.

    >>> import flnb.nn as nn
    >>> net = nn.Linear(2, 1)
    >>> nn.save_checkpoint("last.safetensors", model=net, epoch=3)
    >>> nn.load_checkpoint("last.safetensors", model=net)
    {'epoch': 3}
    """
    arrays, metadata = read_whole(path, purpose="nn.load_checkpoint", saved_by="nn.save_checkpoint(path, ...)")
    if "checkpoint" not in metadata:
        raise ValueError(f"flnb: {path} holds tensors but no checkpoint; read it with nn.load(model, path)")
    states, values, noise = _parsed(path, metadata["checkpoint"], arrays)
    problems = [
        f"missing: {name} (the file holds {', '.join(states) or 'none'})" for name in parts if name not in states
    ]
    for name in parts.keys() & states.keys():
        if hasattr(parts[name], "mismatches"):
            problems += [f"{name}: {problem}" for problem in parts[name].mismatches(states[name])]
    refuse(problems, f"the parts given; read from {path}")
    # Parts without `mismatches` come first: if loading one of them fails, those before it are restored.
    if random:
        parts, states = {**parts, "random": flnb_random.current_generator()}, {**states, "random": noise}
    before: list[tuple[Any, Any]] = []
    try:
        for name in sorted(parts, key=lambda name: hasattr(parts[name], "mismatches")):
            if not hasattr(parts[name], "mismatches"):
                before.append((parts[name], _state(parts[name])))
            _put(parts[name], states[name])
    except BaseException:  # also Ctrl-C
        for part, state in before[:-1]:
            _put(part, state)
        raise
    return values


def _parsed(
    path: str | os.PathLike[str], text: str, arrays: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Parse ``text``, a checkpoint's JSON, and put ``arrays``, a dict by name, in the places where it refers to them.

    Returns:
        A dict of the states by part, a dict of the plain values by name, and the random generator's state.
    """
    try:
        tree = json.loads(text, object_hook=lambda found: arrays[found[ARRAY]] if ARRAY in found else found)
        return dict(tree["states"]), dict(tree["values"]), tree["random"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"flnb: {path} is a damaged checkpoint ({type(error).__name__}: {error}); nothing was loaded; "
            "save it again with nn.save_checkpoint(path, ...)"
        ) from error


def _has_state(part: Any) -> bool:
    """Return whether a part has a method ``state_dict`` or an attribute ``state``, rather than being a plain value."""
    return hasattr(part, "state_dict") or hasattr(part, "state")


def _state(part: Any) -> Any:
    """Return the state of a part: its state dict, or its attribute ``state``."""
    return part.state_dict() if hasattr(part, "state_dict") else part.state


def _put(part: Any, state: Any) -> None:
    """Set the state of a part by its method ``load_state_dict`` or its attribute ``state``."""
    if hasattr(part, "load_state_dict"):
        part.load_state_dict(state)
    else:
        part.state = state


def _encoded(value: Any, name: str, arrays: dict[str, Any]) -> Any:
    """Return `value` in a form for JSON; add its arrays to `arrays`, under names that begin with `name`."""
    if isinstance(value, (Tensor, np.ndarray)):
        while name in arrays:  # {"a.b": x, "a": {"b": y}}
            name += "+"
        # Row-major, because safetensors writes the raw buffer of what it is given, also of a strided array.
        arrays[name] = np.asarray(value.numpy() if isinstance(value, Tensor) else value, order="C")
        return {ARRAY: name}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _encoded(item, f"{name}.{key}", arrays) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encoded(item, f"{name}.{index}", arrays) for index, item in enumerate(value)]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(
        f"flnb: nn.save_checkpoint: {name} is a {type(value).__name__}; expected an array, a number, a string, "
        "None, or a list or dict (with strings as keys) of these"
    )
