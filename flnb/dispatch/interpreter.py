"""Interpreters: they see every op's call and decide what runs in its place.

The state holds a stack of them, empty by default; every op finds that out by comparing one pointer. The innermost one
gets each call before its operands were promoted: it may run it as it is, or other ops in its place, for which the next
interpreter outwards is asked. Batching (`flnb.vmap`), tracing, casting (`flnb.autocast`) and observing are such
classes.
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
    """Base of interpreters: override `apply`, and what else differs. By itself it runs every op as usual."""

    def takes(self, op: Op) -> bool:
        """Whether a composite, such as softmax, comes as one call; if not, the ops of its body come one by one."""
        return False

    def apply(self, op: Op, operands: tuple[Any, ...], attributes: tuple[Any, ...]) -> Any:
        """Handle the call of an op; returns its result (of a composite, also a tuple of what its gradient needs)."""
        return self.run(op, operands, attributes)

    def write(self, op: Op, operands: tuple[Any, ...], attributes: tuple[Any, ...], out: Any) -> Any:
        """Handle the call of an op that writes into an existing tensor, which is returned."""
        return self.run(op, operands, attributes, out)

    def create(self, op: Op, spec: Spec, arguments: tuple[Any, ...], category: int) -> Any:
        """Handle the call of an op that makes a tensor from no tensor."""
        with self.outside():
            return crossing.create(op, spec, arguments, category)

    def run(self, op: Op, operands: tuple[Any, ...], attributes: tuple[Any, ...] = (), out: Any = None) -> Any:
        """Run an op as it would be run without this interpreter."""
        with self.outside():
            return crossing.enter(op, operands, attributes, out)

    def outside(self) -> state.entered:
        """The state around this interpreter, in which it may call any function of flnb."""
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
