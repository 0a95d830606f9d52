"""Interpreters: what happens to an op's call instead of running it at once.

The state holds a stack of them, empty by default, and every op compares one pointer to find it so. The innermost one
gets each call before its operands were promoted: it may run it as it is, or other ops in its place, for which the
next interpreter outwards is asked. Batching (`flnb.vmap`), tracing, casting (`flnb.autocast`) and observing are
such classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb_telemetry.withblock import with_block

from flnb.dispatch import state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flnb.dispatch.plan import Spec
    from flnb.ops.table import Op

__all__ = ["Interpreter", "use_interpreter"]


class Interpreter:
    """Base of interpreters: override `apply`, and what else differs. As it is, it runs every op as usual."""

    def takes(self, op: Op) -> bool:
        """Whether a composite, such as softmax, comes as one call; if not, the ops of its body come one by one."""
        return False

    def apply(self, op: Op, operands: tuple[Any, ...], attributes: tuple[Any, ...]) -> Any:
        """An op was called; returns its result (of a composite, the result and a tuple of what it kept)."""
        return self.run(op, operands, attributes)

    def write(self, op: Op, operands: tuple[Any, ...], attributes: tuple[Any, ...], out: Any) -> Any:
        """An op was called that writes into an existing tensor, which is returned."""
        return self.run(op, operands, attributes, out)

    def create(self, op: Op, spec: Spec, arguments: tuple[Any, ...], category: int) -> Any:
        """An op was called that makes a tensor from no tensor."""
        from flnb.dispatch.crossing import create

        with self.outside():
            return create(op, spec, arguments, category)

    def run(self, op: Op, operands: tuple[Any, ...], attributes: tuple[Any, ...] = (), out: Any = None) -> Any:
        """Run an op as it would be run without this interpreter."""
        from flnb.dispatch.crossing import enter

        with self.outside():
            return enter(op, operands, attributes, out)

    def outside(self) -> state.entered:
        """The state around this interpreter, to call any function of flnb in."""
        return state.entered(state.current().beneath())


@with_block
def use_interpreter(interpreter: Interpreter) -> Iterator[Interpreter]:
    """Let an interpreter see every op that is called inside, in this thread and context.

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
