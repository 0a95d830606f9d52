"""Forward and backward of single ops, flnb beside torch eager: `python -m benchmarks ops [--only NAME...]`.

One thread, processor time, telemetry off. Both compute on the same values, with a gradient for every floating-point
input, and must agree on results and gradients before anything is timed. Then they take turns in many short rounds:
ratios are taken round by round. Without torch flnb is measured alone.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

import flnb
from benchmarks.report import table, write
from flnb.bench import Spread, in_turn, ratios

if TYPE_CHECKING:
    from collections.abc import Callable

MEAN, WORST = 0.9, 1.75
"""Goals: the largest geometric mean of the ratios to torch's time over the ops, and the largest ratio of an op."""

SIZES: dict[str, dict[str, tuple[int, ...]]] = {
    "8 x 8": {"x": (8, 8), "t": (8, 8), "c": (8,), "h": (1, 1, 8, 8), "i": (1, 4, 4, 4), "k": (4, 4, 3, 3)},
    "64 x 256": {
        "x": (64, 256), "t": (256, 64), "c": (256,), "h": (1, 4, 64, 64), "i": (4, 16, 16, 16), "k": (16, 16, 3, 3)
    },
}  # fmt: skip
"""For each size the shapes of the inputs, by letter: an array x, its transpose t, one of its rows c, heads of attention
h, images i and convolution kernels k. Arrays x, h and i have equally many elements."""

INPUTS = {
    "add": "xx", "multiply": "xx", "exp": "x", "tanh": "x", "matmul": "xt", "sum": "x", "mean": "x", "max": "x",
    "reshape": "x", "transpose": "x", "x[0]": "x", "x[1:5]": "x", "x[mask]": "x", "take": "x", "concat": "xx",
    "where": "xx", "relu": "x", "gelu": "x", "softmax": "x", "log_softmax": "x", "layer_norm": "xcc",
    "batch_norm": "xcc", "cross_entropy": "x", "embedding": "x", "attention": "hhh", "conv2d": "ik",
    "max_pool2d": "i", "dropout": "x",
}  # fmt: skip
"""The inputs of each op: for each input, the letter of its shape in `SIZES`. Reductions go over the last axis."""


def flnb_functions(mask: Any, rows: Any) -> dict[str, Callable[..., Any]]:
    """Return functions by which flnb computes the measured ops, by the op's name.

    An op that is missing here is computed by flnb's function of the same name. ``mask`` is an array of bools, and
    ``rows`` an array of row numbers; some of the functions use these.
    """
    mask, rows = flnb.asarray(mask), flnb.asarray(rows)
    return {
        "sum": lambda x: flnb.sum(x, axis=1),
        "mean": lambda x: flnb.mean(x, axis=1),
        "max": lambda x: flnb.max(x, axis=1),
        "reshape": lambda x: flnb.reshape(x, (-1,)),
        "transpose": lambda x: x.T,
        "x[0]": lambda x: x[0],
        "x[1:5]": lambda x: x[1:5],
        "x[mask]": lambda x: x[mask],
        "take": lambda x: flnb.take(x, rows, axis=0),
        "concat": lambda a, b: flnb.concat([a, b], axis=0),
        "where": lambda a, b: flnb.where(mask, a, b),
        "layer_norm": lambda x, w, b: flnb.layer_norm(x, x.shape[1], w, b),
        "cross_entropy": lambda x: flnb.cross_entropy(x, rows),
        "embedding": lambda w: flnb.embedding(rows, w),
        "attention": flnb.scaled_dot_product_attention,
        "conv2d": lambda x, w: flnb.conv2d(x, w, padding=1),
        "max_pool2d": lambda x: flnb.max_pool2d(x, 2),
    }


def torch_functions(mask: Any, rows: Any) -> dict[str, Callable[..., Any]]:
    """Return functions by which torch computes the measured ops; see `flnb_functions`."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(1)
    mask, rows = torch.from_numpy(mask), torch.from_numpy(rows)
    return {
        "sum": lambda x: torch.sum(x, 1),
        "mean": lambda x: torch.mean(x, 1),
        "max": lambda x: torch.amax(x, 1),
        "reshape": lambda x: torch.reshape(x, (-1,)),
        "transpose": lambda x: x.T,
        "x[0]": lambda x: x[0],
        "x[1:5]": lambda x: x[1:5],
        "x[mask]": lambda x: x[mask],
        "take": lambda x: torch.index_select(x, 0, rows),
        "concat": lambda a, b: torch.concat([a, b], 0),
        "where": lambda a, b: torch.where(mask, a, b),
        "gelu": functional.gelu,
        "softmax": lambda x: torch.softmax(x, -1),
        "log_softmax": lambda x: torch.log_softmax(x, -1),
        "layer_norm": lambda x, w, b: functional.layer_norm(x, x.shape[1:], w, b),
        "batch_norm": lambda x, w, b: functional.batch_norm(x, None, None, w, b, training=True),
        "cross_entropy": lambda x: functional.cross_entropy(x, rows),
        "embedding": lambda w: functional.embedding(rows, w),
        "attention": functional.scaled_dot_product_attention,
        "conv2d": lambda x, w: functional.conv2d(x, w, padding=1),
        "max_pool2d": lambda x: functional.max_pool2d(x, 2),
        "dropout": lambda x: functional.dropout(x, training=True),
    }


@dataclass
class Contestant:
    """An op in one of the two frameworks, with its inputs and the gradient of its result, which is all ones."""

    function: Callable[..., Any]
    leaves: list[Any]
    ones: Any = None

    def once(self) -> list[Any]:
        """Run the op forward and backward; returns the op's result and the inputs' gradients as arrays."""
        y = self.function(*self.leaves)
        y.backward(self.ones)
        return [y.detach().numpy(), *(leaf.grad.numpy() for leaf in self.leaves)]

    def seconds(self, times: int) -> tuple[float, float]:
        """Return two mean processor times of a call, in seconds: of forward alone, and of forward and backward."""
        function, leaves, ones = self.function, self.leaves, self.ones
        start = time.process_time()
        for _ in range(times):
            function(*leaves)
        middle = time.process_time()
        for _ in range(times):
            for leaf in leaves:
                leaf.grad = None
            function(*leaves).backward(ones)
        return (middle - start) / times, (time.process_time() - middle) / times


def contestants(op: str, size: str) -> list[Contestant]:
    """Return the op in flnb and, if torch is installed, the same op in torch, with equal inputs.

    Raises:
        AssertionError: flnb's and torch's results or gradients differ.
    """
    draw = np.random.default_rng(0)
    values = [draw.normal(size=SIZES[size][letter]).astype(np.float32) for letter in INPUTS[op]]
    n, m = SIZES[size]["x"]
    mask, rows = draw.random((n, m)) < 0.5, draw.integers(0, n, n)
    found = [Contestant(flnb_functions(mask, rows).get(op) or getattr(flnb, op), [flnb.Variable(v) for v in values])]
    found[0].ones = flnb.ones(found[0].function(*found[0].leaves).shape)
    if find_spec("torch"):
        import torch

        leaves = [torch.from_numpy(v.copy()).requires_grad_() for v in values]
        ones = torch.ones(found[0].ones.shape)
        found.append(Contestant(torch_functions(mask, rows).get(op) or getattr(torch, op), leaves, ones))
    results = [each.once() for each in found]
    if op != "dropout":  # whose random numbers are not the same
        check_agreement(f"{op}, {size}", results[0], results[-1])
    return found


def check_agreement(what: str, results: list[Any], expected: list[Any]) -> None:
    """Raise an AssertionError if flnb's results or gradients differ from those expected by more than rounding.

    ``what`` is the name of the op in the error.
    """
    for got, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=2e-5, err_msg=f"{what}: flnb beside torch")


def measured(op: str, size: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Measure an op; returns its row of the table: microseconds of both passes and of forward, and ratios to torch."""
    both = contestants(op, size)
    once = sum(in_turn(both, lambda each: each.seconds(20), 2)[0][-1])  # the first turn warms up
    gc.collect()
    times = max(1, round(seconds / once))
    found = in_turn(both, lambda each: each.seconds(times), rounds)
    forward, together = ([[turn[part] for turn in turns] for turns in found] for part in (0, 1))
    return {"op": op, "size": size, **_columns("", together), **_columns("forward ", forward)}


def _columns(part: str, seconds: list[list[float]]) -> dict[str, Any]:
    """Return the columns about forward alone, or about forward and backward.

    Args:
        part: the beginning of the columns' names: "forward ", or "" for both passes.
        seconds: the seconds of all rounds, for flnb and perhaps for torch.
    """
    micros = [round(1e6 * Spread.of(each).median, 2) for each in seconds]
    ratio = ratios(*seconds) if len(seconds) == 2 else None
    return {
        f"{part}flnb us": micros[0],
        f"{part}torch us": micros[1] if ratio else "",
        f"{part}ratio": round(ratio.median, 3) if ratio else "",
        f"{part}least..most": f"{ratio.least:.2f}..{ratio.most:.2f}" if ratio else "",
    }


def summary(rows: list[dict[str, Any]]) -> str:
    """Return a sentence with the geometric mean of the ratios to torch, and the largest ratio."""
    mean, forward = (statistics.geometric_mean(row[part] for row in rows) for part in ("ratio", "forward ratio"))
    worst = max(rows, key=lambda row: row["ratio"])
    return (
        f"geometric mean {mean:.3f} (at most {MEAN}), of forward alone {forward:.3f}; "
        f"worst {worst['ratio']} (at most {WORST}): {worst['op']}, {worst['size']}"
    )


def main(argv: list[str]) -> int:
    """Run the benchmark with the options ``argv``, and print and store the results; returns the exit status, 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks ops")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=INPUTS, help=f"of {', '.join(INPUTS)}; not stored")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.004, help="of processor time that flnb has in each round")
    parser.add_argument("--quick", action="store_true", help="a smoke size, for CI")
    options = parser.parse_args(argv)
    if options.quick:
        options.rounds, options.seconds = 2, 0.0
    rows: list[dict[str, Any]] = []
    for tuned in (False, True):
        collector = "tune_gc" if tuned else "default gc"
        with flnb.tune_gc() if tuned else nullcontext():
            found = [
                measured(op, size, options.rounds, options.seconds) for size in SIZES for op in options.only or INPUTS
            ]
        print(f"{collector}\n{table(found)}")
        print("torch is not installed here: flnb alone" if found[0]["ratio"] == "" else summary(found))
        rows += [{"collector": collector, **row} for row in found]
    if not options.only:
        write("ops", rows, vars(options))
    return 0
