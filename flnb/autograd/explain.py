"""Errors of a backward pass: their messages name the op with its shapes, the problem, and the user's line."""

from __future__ import annotations

from typing import Any

from flnb.dispatch import source_lines
from flnb.dispatch.brief import brief
from flnb.dispatch.table import describe
from flnb.interface.tape import CODE, LASTI, MARK, PLAN, SAVED, SEQ, Node, Tape
from flnb.tensor import Tensor

Line = source_lines.Line


def line_of(node: Node) -> str:
    """Return the line of the user's program that called a node's op, as ``file:line: source``."""
    return source_lines.where(node[CODE], node[LASTI])


def creation_stack(x: Any) -> list[Line]:
    """Return the lines of the user's program that computed a Variable, the innermost function's line first.

    The list has only the line that called the op; with `flnb.creation_stacks("full")` it has a line for each function
    on the stack. The list is empty for a Variable that is not the result of a recorded op.

    Raises:
        TypeError: ``x`` is not a Variable or Tensor.

    >>> import flnb
    >>> y = flnb.Variable([1.0]) * 2.0
    >>> flnb.creation_stack(y)[0].source
    'y = flnb.Variable([1.0]) * 2.0'
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"flnb.creation_stack: expected a Variable, got {brief(x)}")
    node = x._node
    return [] if node is None or node[PLAN] is None else source_lines.lines(node[CODE], node[LASTI])


def defined_at(function: Any) -> str:
    """Return where a user's function is defined, as text for an error message."""
    code = getattr(function, "__code__", None)
    return (
        repr(function) if code is None else f"defined at {source_lines.name_of(code.co_filename)}:{code.co_firstlineno}"
    )


def describe_node(node: Node) -> str:
    """Describe a node: ``'multiply' of float32[2] and float32[2], giving float32[2], made at file:line: ...``."""
    plan = node[PLAN]
    return f"{plan.op.name!r} of {describe(plan.specs)}, giving {plan.spec!r}, made at {line_of(node)}"


def freed_error(node: Node) -> RuntimeError:
    """Return the error for a node whose saved values were freed by an earlier backward or for another reason."""
    why = getattr(
        node[MARK],
        "why_freed",
        "was freed by an earlier backward; pass retain_graph=True to that backward, or compute the forward pass again",
    )
    return RuntimeError(f"backward: the graph through {node[PLAN].op.name!r} {why}.\n  It is {describe_node(node)}")


def skipped_error(root: Node, tape: Tape) -> RuntimeError:
    """Return the error for a ``tape`` that ended a backward without handling every node that received a gradient."""
    return RuntimeError(
        f"backward: {tape!r} did not pull every node at which a gradient arrived: an earlier backward freed a part of "
        f"the graph (give that one retain_graph=True), another thread did so at the same time (give each thread a "
        f"tape), or the tape's walk method leaves nodes out.\n  This backward began at {describe_node(root)}"
    )


def check_unwritten(node: Node) -> None:
    """Raise an error if a tensor that a node saved was written in place after it was saved."""
    plan, seq = node[PLAN], node[SEQ]
    for i, x in enumerate(node[SAVED:]):
        if x is not None:
            written = getattr(x, "_last_write", 0)  # of a Tensor, or of one that was packed
            if written > seq:
                last = i == len(node) - SAVED - 1
                what = "the output" if last else f"input {i}" if i < len(plan.specs) else "a value"
                raise RuntimeError(
                    f"backward: {what} of {plan.op.name!r}, {x._spec!r}, was saved for the gradient and then written "
                    f"in place; write to a copy, or move the write after backward.\n  It was saved by "
                    f"{describe_node(node)}"
                )


def shape_error(node: Node, position: int, got: Any) -> ValueError:
    """Return the error for a gradient rule whose result ``got`` differs in spec from argument number ``position``."""
    plan = node[PLAN]
    given = repr(got._spec) if isinstance(got, Tensor) else repr(got)
    return ValueError(
        f"backward: the gradient of {plan.op.name!r} for argument {position} is {given}, expected "
        f"{plan.specs[position]!r} as the argument; correct the op's gradient rule (its vjp)"
    )


def add_origin(error: Exception, node: Node, g: Any) -> None:
    """Add a note with the op and its line to an error in a node's gradient rule, unless the error has such a note."""
    if not any(note.startswith("in backward") for note in getattr(error, "__notes__", ())):
        error.add_note(f"in backward, with a cotangent {g._spec!r}, through {describe_node(node)}")
