"""`lean`: training steps in which some modules are recomputed in backward, or their saved tensors are offloaded."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from flnb_telemetry.withblock import with_block

from flnb.autograd.offloading import offload as offloading
from flnb.memory_lab.offload_lifetimes import LEAST, inside

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@with_block
def lean(
    model: Any, recompute: str | Sequence[str] = (), offload: str | Sequence[str] = (), to: Any = None
) -> Iterator[Any]:
    """Run training steps inside a ``with`` block in less memory, by recomputing or offloading modules.

    Gradients are the same to the last bit, and buffers such as running means are updated once. Only modules of
    ``model`` that are called inside the block, in this thread, are recomputed or offloaded, not copies of them.

    Args:
        model: a module, or several in a list.
        recompute: the scopes of modules that run again in backward (`flnb.checkpoint`), as recordings name them
            ("sequential.0").
        offload: the scopes of modules whose saved tensors of at least 16 KiB are moved away until backward
            (`flnb.memory.offload`), including tensors of modules inside these modules. Tensors that ops outside of
            these modules also save are not moved.
        to: the device to which tensors move, as for `flnb.memory.offload`; the host's memory by default.

    Returns:
        A context manager whose value is the model.

    >>> import flnb, flnb.nn as nn
    >>> net = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1))
    >>> with flnb.memory.lean(net, recompute=["sequential.0"], offload=["sequential.1", "sequential.2"]):
    ...     net(flnb.ones((512, 64))).sum().backward()

    Raises:
        LookupError: the model has no module with one of the scopes.
        TypeError: the model is not a module, or a scope is not a string.
        RuntimeError: in backward, if parameters, buffers or inputs of a recomputed module were written meanwhile.
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
    """Return the argument ``model`` of `lean` as a list of modules."""
    roots = list(model) if isinstance(model, (list, tuple)) else [model]
    wrong = [one for one in roots if isinstance(one, type) or not hasattr(one, "named_modules")]
    if wrong or not roots:
        got = f"{type(wrong[0]).__name__} ({wrong[0]!r:.60})" if wrong else "an empty list"
        raise TypeError(
            f"flnb.memory.lean: expected a module or a list of modules, got {got}; pass the model that was recorded"
        )
    return roots


def _texts(scopes: Any, which: str) -> tuple[str, ...]:
    """Return the argument ``which`` of `lean`, a scope or several, as a tuple of strings."""
    found = (scopes,) if isinstance(scopes, str) else tuple(scopes) if hasattr(scopes, "__iter__") else (scopes,)
    wrong = [scope for scope in found if not isinstance(scope, str)]
    if wrong:
        raise TypeError(
            f"flnb.memory.lean: expected the scopes of modules as strings in {which}=, got {type(wrong[0]).__name__} "
            f"({wrong[0]!r:.60}); scopes are names of modules in recordings, such as 'sequential.0'"
        )
    return found


class _Places:
    """The scopes of selected modules, to check whether a running op belongs to one of them.

    Attributes:
        anywhere: the modules' scopes that begin with the name of a model. In the path of an op, scopes of the user may
            precede such a scope.
        exact: scopes that begin with the name of an inner module, for inner modules that are called directly.
    """

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
                    f"flnb.memory.lean: the scope {scope!r} is not a module of the model; its modules are {listed}; "
                    f"pass the model that was recorded"
                )

    def __bool__(self) -> bool:
        return bool(self.anywhere or self.exact)

    def have(self, path: str) -> bool:
        """Return whether a scope is the scope of one of the modules, not of a module inside one."""
        return path in self.exact or any(f".{path}".endswith(f".{scope}") for scope in self.anywhere)

    def cover(self, path: str) -> bool:
        """Return whether a scope is the scope of one of the modules, or nested in it."""
        return inside(path, self.exact) or any(f".{scope}." in f".{path}." for scope in self.anywhere)


def _ends(scope: str) -> list[str]:
    """Return all dotted endings of a scope: "a.b.c", "b.c" and "c" for "a.b.c"."""
    parts = scope.split(".")
    return [".".join(parts[i:]) for i in range(len(parts))]
