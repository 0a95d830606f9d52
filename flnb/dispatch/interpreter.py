"""Interpreters: objects that receive every op call and decide how it runs.

A stack of them belongs to the state (`flnb.dispatch.state.State`); it is empty by default, which costs an op one
comparison. The innermost interpreter gets a call before the operands are converted. It may run the op as it is, or
other ops in its place; the calls of these go to the next interpreter outwards. Batching (`flnb.vmap`), tracing, casting
(`flnb.autocast`) and observing are such classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb_telemetry.withblock import with_block

from flnb.dispatch import crossing, state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flnb.dispatch.plan import Spec
    from flnb.dispatch.table import Op

__all__ = ["Interpreter", "use_interpreter"]


class Interpreter:
    """Base of interpreters, which by itself runs every op as usual: override `apply`, and others as needed."""

    def takes(self, op: Op) -> bool:
        """Return whether a composite op, such as softmax, is passed as one call, rather than as its single ops."""
        return False

    def apply(self, op: Op, operands: tuple[Any, ...], attributes: tuple[Any, ...]) -> Any:
        """Handle the call of an op; returns its result, for a composite the pair of it and a tuple for its gradient."""
        return self.run(op, operands, attributes)

    def write(self, op: Op, operands: tuple[Any, ...], attributes: tuple[Any, ...], out: Any) -> Any:
        """Handle the call of an op that writes into the existing tensor ``out``; returns ``out``."""
        return self.run(op, operands, attributes, out)

    def create(self, op: Op, spec: Spec, arguments: tuple[Any, ...], category: int) -> Any:
        """Handle the call of an op that makes a tensor from no tensor, such as ``full``; returns the tensor."""
        with self.outside():
            return crossing.create(op, spec, arguments, category)

    def run(self, op: Op, operands: tuple[Any, ...], attributes: tuple[Any, ...] = (), out: Any = None) -> Any:
        """Run an op as if this interpreter were not there; returns its result."""
        with self.outside():
            return crossing.enter(op, operands, attributes, out)

    def outside(self) -> state.entered:
        """Return a context manager that hides ops from this interpreter, so that it can call flnb itself."""
        return state.entered(state.current().without_innermost())


@with_block
def use_interpreter(interpreter: Interpreter) -> Iterator[Interpreter]:
    """Make an interpreter see every op that is called inside, in this thread and context.

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
