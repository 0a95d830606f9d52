"""Methods of a backend that look like primitives and are none: nobody would ever call them."""

from __future__ import annotations

import warnings
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["misspelt", "warn_of_misspelt"]

SIMILAR = 0.75
"""How alike two names must be (`difflib`), 0 to 1."""


def misspelt(cls: type, operators: Sequence[Any] | None = None) -> dict[str, str]:
    """Public methods of a user's backend that are no primitives but close to one, each with the one probably meant.

    >>> import flnb
    >>> class Mine(flnb.backends.NumpyBackend):
    ...     def _helper(self): ...
    >>> Mine.mutliply = lambda self, a, b, out=None: a
    >>> misspelt(Mine)
    {'mutliply': 'multiply'}
    """
    from flnb.dispatch import state
    from flnb.interface import TensorBackend

    ours = [c for c in cls.__mro__ if c.__module__.startswith(("flnb_backends.", "flnb.interface."))]
    known = {op.name for op in operators or state.operators}
    known |= {name for c in ours for name in vars(c)} | set(dir(TensorBackend))
    odd = [
        name
        for c in cls.__mro__
        if c not in ours
        for name, value in vars(c).items()
        if callable(value) and not name.startswith("_") and name not in known
    ]
    if not odd:
        return {}
    from difflib import get_close_matches  # 5 ms

    close = {name: get_close_matches(name, [k for k in known if not k.startswith("_")], 1, SIMILAR) for name in odd}
    return {name: found[0] for name, found in close.items() if found}


_seen: weakref.WeakSet[type] = weakref.WeakSet()


def warn_of_misspelt(cls: type) -> None:
    """Warn, once for each class, of methods that nobody will call."""
    if cls in _seen or cls.__module__.startswith("flnb_backends."):
        return
    _seen.add(cls)
    for name, meant in misspelt(cls).items():
        warnings.warn(
            f"backend {cls.__name__}: the method {name!r} is no primitive and is never called; did you mean {meant!r}? "
            f"If it is meant to be a helper, begin its name with an underscore",
            UserWarning,
            stacklevel=2,
        )
