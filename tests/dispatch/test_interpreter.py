"""Interpreters: whoever sees calls before they run."""

from __future__ import annotations

from typing import Any

import flnb
from flnb.dispatch.interpreter import Interpreter, use_interpreter


class Multiplications(Interpreter):
    """Counts them, in composites and gradients, too."""

    count = 0

    def apply(self, op: Any, operands: tuple[Any, ...], attributes: tuple[Any, ...]) -> Any:
        self.count += op.name == "multiply"
        return self.run(op, operands, attributes)


def counted(function: Any) -> int:
    with use_interpreter(Multiplications()) as seen:
        function()
    return seen.count


def test_a_new_interception_is_a_class() -> None:
    x = flnb.Variable([[1.0, -2.0], [3.0, 4.0]])
    assert counted(lambda: x * 2.0 * x) == 2
    assert counted(lambda: x + 2.0) == 0
    assert counted(lambda: flnb.sigmoid(x)) == 2  # tanh(x/2)/2 + 1/2: the ops of a composite come one by one
    assert counted(lambda: flnb.exp(x).sum().backward()) == 1  # the gradient of exp
    with use_interpreter(Multiplications()) as outer, use_interpreter(Multiplications()) as inner:
        flnb.vmap(lambda row: row * row)(x)
    assert outer.count == inner.count == 1


def test_a_composite_that_is_declared_comes_whole() -> None:
    class Names(Interpreter):
        def __init__(self) -> None:
            self.names: list[str] = []

        def takes(self, op: Any) -> bool:
            return bool(op.name == "softmax")

        def apply(self, op: Any, operands: tuple[Any, ...], attributes: tuple[Any, ...]) -> Any:
            self.names.append(op.name)
            return self.run(op, operands, attributes)

    x = flnb.asarray([[1.0, 2.0]])
    with use_interpreter(Names()) as seen:
        flnb.softmax(x)
        flnb.relu(x)
    assert seen.names == ["softmax", "maximum"]
