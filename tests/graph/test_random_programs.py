"""Random programs of ops, views, reductions and writes: fused, unfused, deferred and NumPy at once give the same.

All of them, 2,000: ``python -m tests.graph.test_random_programs``; here are some.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import flnb
from flnb.dispatch.state import current

UNARY = ("negative", "abs", "exp", "tanh", "square", "relu", "sigmoid", "sin", "floor")
BINARY = ("add", "subtract", "multiply", "maximum", "minimum", "divide")
REDUCTIONS = ("sum", "max", "min", "mean")


class Program:
    """A list of random steps, each of which makes a tensor or writes into one.

    Args:
        seed: of the steps.
        length: their number.
    """

    def __init__(self, seed: int, length: int) -> None:
        self.rng = random.Random(seed)
        self.dtype = self.rng.choice([np.float32, np.float64])
        extents = [self.rng.choice([1, 2, 3, 5, 8, 33]) for _ in range(self.rng.randint(1, 3))]
        self.given = [self.array(extents), self.array(extents), self.array(extents[-1:])]
        self.kept = self.array(extents)
        self.length = length

    def array(self, shape: list[int]) -> Any:
        values = [self.rng.choice([0.0, 1.0, -2.0, self.rng.uniform(-2, 2)]) for _ in range(int(np.prod(shape)))]
        return np.array(values, self.dtype).reshape(shape)

    def __call__(self, *given: Any, kept: Any, seed: int) -> list[Any]:
        """Run the steps on tensors; `kept` is there before, and written to."""
        rng = random.Random(seed)
        made = [*given, kept]
        shared = {id(kept)}
        for _ in range(self.length):
            x, y = rng.choice(made), rng.choice(made)
            how = rng.choice(
                ["unary", "binary", "binary", "number", "reduce", "reduce", "view", "where", "write", "softmax"]
            )
            if how == "unary":
                made.append(getattr(flnb, rng.choice(UNARY))(flnb.clip(x, -5.0, 5.0)))
            elif how == "binary" and fits(x, y):
                made.append(getattr(flnb, rng.choice(BINARY))(x, flnb.abs(y) + 1.0))
            elif how == "number":
                made.append(rng.choice([x * 2.5, 1.0 - x, x + 1e-3, flnb.maximum(x, 0.0)]))
            elif how == "reduce" and x.ndim:
                axis = rng.choice([None, *range(x.ndim), tuple(range(x.ndim - 1)) or None])
                made.append(getattr(flnb, rng.choice(REDUCTIONS))(x, axis=axis, keepdims=rng.random() < 0.6))
            elif how == "view" and x.ndim:
                view = rng.choice([x.T, x[::2], x.reshape((-1,)), flnb.flip(x), x[..., None], x[0]])
                made.append(view if id(x) not in shared else view + 0.0)
            elif how == "where" and fits(x, y):
                made.append(flnb.where(x > y, x, y * 0.5))
            elif how == "softmax" and x.ndim:
                made.append(rng.choice([flnb.softmax, flnb.log_softmax])(x, axis=rng.randrange(x.ndim)))
            elif how == "write":
                write(kept, rng)
        return [*made[len(given) + 1 :][-6:], flnb.sum(kept * 1.0)]


def fits(x: Any, y: Any) -> bool:
    """Whether two tensors can be broadcast to something that is not large."""
    try:
        return int(np.prod(np.broadcast_shapes(x.shape, y.shape))) < 4000
    except ValueError:
        return False


def write(kept: Any, rng: random.Random) -> None:
    """Write into a tensor, or a part of it."""
    how = rng.randrange(4)
    if how == 0:
        flnb.multiply(kept, 0.5, out=kept)
    elif how == 1:
        kept[0] = kept[-1] + 1.0
    elif how == 2:
        kept[..., ::2] = flnb.abs(kept[..., ::2])
    else:
        flnb.assign(kept, flnb.tanh(kept))


def check(seed: int) -> None:
    """Compare a program run at once with the program of it, and deferred, unfused and fused, in four runs of each.

    Unfused programs give the same bits on numpy; on cpu, softmax has other code for other layouts of memory.
    """
    program = Program(seed, 14)
    default = current().backend

    def results(run: Any) -> list[list[Any]]:
        kept, found = flnb.asarray(program.kept.copy()), []
        for i in range(4):
            made = run(*[flnb.asarray(x + i) for x in program.given], kept=kept, seed=seed)
            found.append([x.numpy().copy() for x in made] + [kept.numpy().copy()])
        return found

    for fuse, deferred in ((False, False), (True, False), (False, True), (True, True)):
        over = default if fuse else "numpy"
        with flnb.use_backend(over):
            expected = results(program)
            if not deferred:
                got = results(flnb.jit(program.__call__, fuse=fuse))
        if deferred:
            with flnb.use_backend(flnb.backends.DeferredBackend(over, fuse=fuse)):
                got = results(program)
        tolerance = 0.0 if not fuse else 1e-4 if program.dtype is np.float32 else 1e-9
        for known, made in zip(expected, got, strict=True):
            for a, b in zip(known, made, strict=True):
                assert a.dtype == b.dtype, seed
                scale = max(1.0, float(np.abs(np.nan_to_num(a, posinf=0, neginf=0)).max(initial=0.0)))
                np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance * scale, err_msg=f"seed {seed}, {fuse}")


@pytest.mark.parametrize("seed", [*range(24), 332])
def test_a_random_program(seed: int) -> None:
    check(seed)


if __name__ == "__main__":
    for number in range(2000):
        check(number)
        if number % 100 == 99:
            print(number + 1, "programs agree", flush=True)
