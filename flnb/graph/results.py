"""Results of programs: the tensors that a jitted function returns, made of a program's output arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from flnb.dispatch.plan import Plan
from flnb.dispatch.table import OPS
from flnb.interface.tape import CODE, PLAN, SAVED, SEQ, Tape
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from flnb.dispatch.plan import Spec


class Programs(Tape):
    """The tape of Variables that programs return: it records nothing, so a backward pass from them raises an error."""

    name: ClassVar[str] = "programs"
    why_freed: ClassVar[str] = (
        "was computed by a program of flnb.jit, which records nothing on the tape: call backward inside of the "
        "function, or the function as it was, without flnb.jit"
    )


PROGRAMS = Programs()


class Result(NamedTuple):
    """The class and the tape node of one result: they turn a program's output array into the tensor to return.

    Attributes:
        kind: the tensor's class.
        node: for a Variable on the tape, a node of the tape `Programs`, which raises an error in backward; else None.
    """

    kind: type[Tensor]
    node: Any

    @classmethod
    def like(cls, x: Tensor) -> Result:
        """Return the class and tape node for tensors that take the place of ``x``, an output of the recorded call."""
        node = x._node
        if node is not None:
            plan = node[PLAN] or Plan(OPS["copy"], (x._spec,), (), x._spec)
            node = [plan, None, node[SEQ], PROGRAMS, *(node[CODE:SAVED] if node[PLAN] else (None, 0))]
        return cls(x._lift or Tensor, node)

    def of(self, array: Any, spec: Spec) -> Tensor:
        """Make the result from the output array ``array``, whose shape and dtype are those of ``spec``."""
        made: Tensor = object.__new__(self.kind)
        made._data, made._spec = array, spec
        if self.kind is not Tensor:
            made._node = self.node
        return made
