"""Random programs that repeat and change have the results of ops that run at once."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np

import flnb
from tests.backends.replays import X, exact

if TYPE_CHECKING:
    from collections import Counter

VIEWS = (
    lambda x: x[1:], lambda x: x[:, ::2], lambda x: x.T, lambda x: flnb.flip(x), lambda x: x[0],
    lambda x: x.reshape((-1,)),
)  # fmt: skip


OPS = ["view", "op", "two", "softmax", "sum", "rand", "read", "add", "assign", "part", "multiply", "drop", "keep"]


REPLAYED = ["op", "op", "two", "two", "sum", "rand", "drop", "keep"]


Step = tuple[int, str, int]


def random_step(steps: list[Step], i: int, w: Any, kept: list[Any]) -> tuple[list[Any], list[Any]]:
    """Run a random program of views, ops, reads and writes; return the arrays that it read, and its last tensors."""
    made, read, rows = [flnb.asarray(X + i), w], [], {}
    for which, what, number in steps:
        x = made[which % len(made)]
        contiguous = rows.get(id(x), True)
        if what == "view" and x.ndim and x.shape[0] > 1 and (x.ndim == 2 or number not in (1, 2)):
            if number != 5 or contiguous:
                made.append(VIEWS[number % 6](x))
                rows[id(made[-1])] = number == 5
        elif what == "op":
            made.append(flnb.tanh(x * 2.0 + number))
        elif what == "two" and x.shape == made[number % len(made)].shape:
            made.append(x * made[number % len(made)] - x)
        elif what in ("softmax", "sum") and x.ndim:
            made.append(flnb.softmax(x, -1) if what == "softmax" else flnb.sum(x, axis=0))
        elif what == "rand":
            made.append(flnb.rand(3, 4))
        elif what == "read":
            read.append(x.numpy().copy())
        elif what == "add":
            x += float(number)
        elif what == "assign":
            flnb.assign(x, float(number))
        elif what == "part" and x.ndim:
            x[..., 0] = float(number)
        elif what == "multiply":
            flnb.multiply(x, 0.5, out=x)
        elif what == "drop" and len(made) > 3:
            made.pop(2 + which % (len(made) - 2))
        elif what == "keep":
            kept.append(x)
        rows = {id(x): rows.get(id(x), what not in ("op", "two", "softmax") or contiguous) for x in made}
    return read, made


def random_loop(seed: int) -> list[Any]:
    """Run a random program repeatedly, sometimes with one step changed; returns all that was read."""
    rng = random.Random(seed)
    flnb.manual_seed(seed)
    ops = REPLAYED if seed % 3 else OPS
    steps = [(rng.randrange(8), rng.choice(ops), rng.randrange(6)) for _ in range(rng.randrange(3, 14))]
    w, kept, found = flnb.asarray(X * 0.5), [], []
    for i in range(14):
        now = list(steps)
        if 5 <= i < 12 and rng.random() < 0.4:
            now[rng.randrange(len(now))] = rng.randrange(8), rng.choice(OPS), rng.randrange(6)
        read, made = random_step(now, i, w, kept)
        del kept[:-3]
        found += read
        if rng.random() < 0.9:
            flnb.sync()
        if rng.random() < 0.3:
            found += [x.numpy().copy() for x in (w, *kept, *made)]
        del made
    return [*found, *[x.numpy().copy() for x in (w, *kept)]]


def test_random_programs_that_repeat_and_change(seen: Counter[str]) -> None:
    with np.errstate(all="ignore"):
        for seed in range(150):
            with flnb.use_backend("numpy"):
                expected = random_loop(seed)
            with flnb.use_backend(exact()):
                got = random_loop(seed)
            for a, b in zip(expected, got, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=f"seed {seed}")
    assert seen["repeated"] > 100
    assert seen["left"] > 25
