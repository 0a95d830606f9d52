"""Interpreters: objects that receive every op call and decide how it runs.

The state (`flnb.dispatch.state.State`) has a stack of interpreters, which is empty by default; an op tests this by one
comparison. The innermost interpreter receives a call before the operands are converted. It may run the op, or other ops
in its place. The next outer interpreter receives the ops that it runs. Batching (`flnb.vmap`), tracing, casting
(`flnb.autocast`) and observing are implemented by interpreters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from flnb_telemetry.withblock import with_block

from flnb.dispatch import crossing, state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flnb.dispatch.plan import Spec
    from flnb.dispatch.table import Op


class Interpreter:
    """Base class of interpreters. It runs every op as usual; override `apply`, and other methods as needed."""

    combines: ClassVar[bool] = False
    """Whether a combined op (`flnb.dispatch.table.Combined`) on tensors is passed as one call, not as its ops."""

    def takes(self, op: Op) -> bool:
        """Return whether a composite op such as softmax is passed as one call, not as the ops in its body."""
        return False

    def apply(self, op: Op, operands: tuple[Any, ...], attributes: tuple[Any, ...]) -> Any:
        """Run an op and return its result; for a composite return (result, tuple of the values for the gradient)."""
        return self.run(op, operands, attributes)

    def write(self, op: Op, operands: tuple[Any, ...], attributes: tuple[Any, ...], out: Any) -> Any:
        """Run an op that writes into the existing tensor ``out``; returns ``out``."""
        return self.run(op, operands, attributes, out)

    def create(self, op: Op, spec: Spec, arguments: tuple[Any, ...], category: int) -> Any:
        """Run an op that makes a tensor of ``spec`` from no tensor, such as ``full``; returns the tensor."""
        with self.outside():
            return crossing.create(op, spec, arguments, category)

    def run(self, op: Op, operands: tuple[Any, ...], attributes: tuple[Any, ...] = (), out: Any = None) -> Any:
        """Run an op as if this interpreter were not there; returns its result."""
        with self.outside():
            return crossing.enter(op, operands, attributes, out)

    def outside(self) -> state.entered:
        """Return a context manager inside which this interpreter gets no ops, so that it can call flnb itself."""
        return state.entered(state.current().without_innermost())


@with_block
def use_interpreter(interpreter: Interpreter) -> Iterator[Interpreter]:
    """Pass every op that is called inside the block, in this thread and context, to an interpreter.

    >>> import flnb
    >>> class Names(flnb.dispatch.interpreter.Interpreter):
    ...     def apply(self, op, operands, attributes):
    ...         print(op.name)
    ...         return super().apply(op, operands, attributes)
    >>> with flnb.dispatch.interpreter.use_interpreter(Names()):
    ...     y = flnb.exp(flnb.ones(2)) * 2.0
    exp
    multiply
    """
    with state.use(interpreters=(*state.current().interpreters, interpreter)):
        yield interpreter
