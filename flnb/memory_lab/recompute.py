"""Recompute and offload by hand: steps in which some modules save nothing for backward, or their saved tensors move."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from flnb_telemetry.withblock import with_block

from flnb.autograd.offloading import offload as offloading
from flnb.memory_lab.offload_lifetimes import LEAST, inside

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["lean"]


@with_block
def lean(
    model: Any, recompute: str | Sequence[str] = (), offload: str | Sequence[str] = (), to: Any = None
) -> Iterator[Any]:
    """Run the steps inside (forward and backward) in less memory by recomputing or offloading modules.

    Gradients are the same to the last bit. Buffers that a module writes (a running mean) are moved once, not twice.
    It holds for calls made inside, in this thread, and for no copy of a module.

    Args:
        model: the module, or several in a list; of these all that have one of the scopes are meant.
        recompute: scopes of modules, as recordings name them, that run again in backward (`flnb.checkpoint`).
        offload: of modules whose ops' saved tensors, from 16 KiB on, move away while they are idle
            (`flnb.memory.offload`), those of modules inside them too. What an op elsewhere saves as well stays.
        to: where these go; the host's memory when not given.

    >>> import flnb, flnb.nn as nn
    >>> net = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1))
    >>> with flnb.memory.lean(net, recompute=["sequential.0"], offload=["sequential.1", "sequential.2"]):
    ...     net(flnb.ones((512, 64))).sum().backward()

    Raises:
        LookupError: a scope is no module of the model.
        TypeError: the model is no module, or a scope no text.
        RuntimeError: in backward, when parameters, buffers or inputs of a module that runs again were written between.
    """
    from flnb.nn.recompute import running_again

    roots = _roots(model)
    again, away = (
        _Places(roots, _texts(scopes, which)) for scopes, which in ((recompute, "recompute"), (offload, "offload"))
    )
    with ExitStack() as stack:
        if away:
            stack.enter_context(offloading(to, LEAST, 0, lambda saved: away.cover(saved.scope)))
        if again:
            modules = [module for root in roots for _, module in root.named_modules()]
            stack.enter_context(running_again(modules, again.have))
        yield model


def _roots(model: Any) -> list[Any]:
    roots = list(model) if isinstance(model, (list, tuple)) else [model]
    wrong = [one for one in roots if isinstance(one, type) or not hasattr(one, "named_modules")]
    if wrong or not roots:
        got = f"{type(wrong[0]).__name__} ({wrong[0]!r:.60})" if wrong else "an empty list"
        raise TypeError(
            f"flnb.memory.lean: expected a module or a list of modules, got {got}; give it the model that was recorded"
        )
    return roots


def _texts(scopes: Any, which: str) -> tuple[str, ...]:
    """Return one scope or several as a tuple."""
    found = (scopes,) if isinstance(scopes, str) else tuple(scopes) if hasattr(scopes, "__iter__") else (scopes,)
    wrong = [scope for scope in found if not isinstance(scope, str)]
    if wrong:
        raise TypeError(
            f"flnb.memory.lean: expected the scopes of modules as texts in {which}=, got {type(wrong[0]).__name__} "
            f"({wrong[0]!r:.60}); scopes are what recordings call modules, such as 'sequential.0'"
        )
    return found


class _Places:
    """Scopes of modules: such as begin with a model's own, wherever it is called; and those of its modules that
    somebody calls by hand, which begin with their own."""

    def __init__(self, roots: list[Any], asked: tuple[str, ...]) -> None:
        from flnb.nn.recompute import scopes

        parts = [part for root in roots for _, part in root.named_modules()]  # which names them
        known = dict.fromkeys(scope for root in roots for scope, _ in scopes(root))
        alone = {scope for part in parts for scope, _ in scopes(part)} if any(s not in known for s in asked) else set()
        self.anywhere: list[str] = []
        self.exact: list[str] = []
        for scope in asked:
            ends = _ends(scope)
            within = next((end for end in ends if end in known), None)
            if within is not None:
                self.anywhere.append(within)
            elif any(end in alone for end in ends):
                self.exact.append(scope)
            else:
                listed = f"{', '.join(list(known)[:8])}{', ...' if len(known) > 8 else ''}"
                raise LookupError(
                    f"flnb.memory.lean: the scope {scope!r} is no module of the model; its modules are {listed}; "
                    f"give it the model that was recorded"
                )

    def __bool__(self) -> bool:
        return bool(self.anywhere or self.exact)

    def have(self, path: str) -> bool:
        """Return whether a path is that of one of the modules."""
        return path in self.exact or any(f".{path}".endswith(f".{scope}") for scope in self.anywhere)

    def cover(self, path: str) -> bool:
        """Return whether a path is that of one of the modules or inside one."""
        return inside(path, self.exact) or any(f".{scope}." in f".{path}." for scope in self.anywhere)


def _ends(scope: str) -> list[str]:
    """Return all endings of a scope, the longest first."""
    parts = scope.split(".")
    return [".".join(parts[i:]) for i in range(len(parts))]
