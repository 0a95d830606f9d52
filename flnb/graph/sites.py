"""Sites: a program has one site for each of its backends, with the program's memory on that backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb.dispatch import state
from flnb.dispatch.plan import spec_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.dispatch.state import State
    from flnb.dispatch.table import Op
    from flnb.graph.values import Value
    from flnb.interface import TensorBackend


class Site:
    """One backend of a program, with its compiler of loop nests and its memory.

    Attributes:
        here: the state that has the backend's methods and the memory manager.
        kernels: the backend's compiler of loop nests; None if it has none.
        block: the memory of the program's values on this backend.
        scratch: memory that kernels use while they run.
    """

    def __init__(self, here: State, fuse: bool) -> None:
        self.here, self.fuse = here, fuse
        self.renew()
        self.block: Any = None
        self.scratch: Any = None

    def renew(self) -> None:
        """Get a new compiler of loop nests from the backend; in a forked process, a compiler for a single thread."""
        self.kernels: Any = self.here.backend.kernels() if self.fuse else None

    def method(self, op: Op) -> Any:
        """Return the backend's method for an op."""
        return self.here.table[op.index]

    def new(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Allocate an uninitialized array from the site's memory manager."""
        here = self.here
        return here.backend.empty(spec_of(shape, dtype), here.manager, here.min_block, 0, state.TEMPORARY)[0]


def moving(value: Value) -> Callable[..., Any]:
    """Return a function that copies an array from the backend of a value's input to the value's own backend."""
    target: TensorBackend = value.place.backend
    source: TensorBackend = value.inputs[0].place.backend
    direct = source.reads_host or isinstance(source, type(target))

    def move(x: Any, out: Any) -> Any:
        return target.from_numpy(x if direct else source.to_numpy(x), out)

    return move
