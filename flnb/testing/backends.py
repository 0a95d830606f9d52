"""`flnb.testing.check_backend` runs every op on a backend, and compares results and times with NumPy's."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flnb_telemetry import bus

from flnb.dispatch import registry
from flnb.dispatch.parts import use_backend
from flnb.explore.compare import defined, misspelt_methods
from flnb.explore.difference import arrays_differ, precision
from flnb.explore.report import Report, Result
from flnb.ops.creation import asarray
from flnb.tensor import Tensor
from flnb.testing.samples import Sample, samples

if TYPE_CHECKING:
    from flnb.interface import TensorBackend

CALLS, ENOUGH = 5, 2e-3
"""The most timed calls of a sample, and the total time in seconds after which no further call is timed."""


def check_backend(
    backend: str | type[TensorBackend] | TensorBackend,
    tolerance: float = 1e-6,
    dtypes: tuple[str, ...] = ("float64", "float32"),
) -> Report:
    """Run every op of the op table on ``backend`` and on NumPy, and compare shapes, dtypes and values.

    The returned report is true if every op passed. It has a row for each op: the largest error, the time as a multiple
    of NumPy's, and for a failure the inputs and the line of the backend's method. A method whose name looks like a
    misspelt op gets a row, too; such a row counts as failed.

    Args:
        backend: a name, a class or an instance.
        tolerance: the allowed error, relative to the largest value, or to 1 if all values are smaller. It is never less
            than 100 times the dtype's precision.
        dtypes: the floating-point dtypes of the inputs.

    Raises:
        ValueError: the backend is a name that no backend has.

    >>> import flnb.testing
    >>> bool(flnb.testing.check_backend("numpy"))
    True
    """
    chosen: TensorBackend = registry.make("backend", backend)
    rows: dict[str, list[Trial]] = {}
    for sample in samples():
        for dtype in dtypes:
            rows.setdefault(sample.op, []).append(_trial(sample, chosen, np.dtype(dtype), tolerance))
    results = [_row(op, trials, chosen) for op, trials in rows.items()]
    results += misspelt_methods(chosen)
    return Report(f"backend {chosen.name}", tuple(results))


class Trial(NamedTuple):
    """The outcome of one sample on a backend.

    ``reason`` says what is wrong, or is empty; ``inputs`` has the inputs' shapes and dtypes as text; ``error`` is the
    largest absolute error; ``seconds`` and ``reference`` are the times of a call on the backend and on NumPy, in
    seconds.
    """

    sample: Sample
    reason: str
    inputs: str
    error: float
    seconds: float
    reference: float


def _row(op: str, trials: list[Trial], backend: TensorBackend) -> Result:
    """Summarise the trials of one op as a row of the report."""
    bad = [trial for trial in trials if trial.reason]
    first = bad[0] if bad else trials[0]
    time = sum(t.seconds for t in trials) / max(sum(t.reference for t in trials), 1e-9)
    error = max((t.error for t in trials if np.isfinite(t.error)), default=0.0)
    return Result(
        op, not bad, len(trials), f"{first.sample}: {first.reason}" if bad else "",
        tuple(f"{t.sample}: {t.reason}" for t in bad[1:4]),
        error=None if bad and not error else error, time=time, inputs=first.inputs if bad else "",
        line=defined(backend, op) if bad else "", op=op,
    )  # fmt: skip


def _trial(sample: Sample, backend: TensorBackend, dtype: np.dtype[Any], tolerance: float) -> Trial:
    """Run a sample on NumPy and on a backend, with its float64 inputs cast to ``dtype``, and compare the results.

    The allowed error is ``tolerance`` times the largest absolute value of the result, or ``tolerance`` if no value
    exceeds 1.
    """
    inputs = [a.astype(dtype) if a.dtype == np.float64 else a for a in sample.inputs]
    expected, reference = _run(sample, "numpy", inputs)
    shapes = ", ".join(f"{a.dtype.name}[{','.join(map(str, a.shape))}]" for a in inputs) or "none"
    try:
        got, seconds = _run(sample, backend, inputs)
    except Exception as error:
        return Trial(sample, f"{type(error).__name__}: {error}", shapes, 0.0, 0.0, 0.0)
    if backend.own_numbers and sample.op.startswith("random_"):
        expected, _ = _run(sample, backend, inputs)  # an equal generator again
    if isinstance(got, Tensor) and (got.shape, got.dtype) == (expected.shape, expected.dtype):
        got = expected  # a backend without values has nothing more to compare
    found = arrays_differ(expected, got, lambda m: max(tolerance, 100 * precision(expected.dtype)) * max(1.0, m))
    return Trial(sample, found.what, shapes, found.error, seconds, reference)


def _run(sample: Sample, backend: str | TensorBackend, inputs: list[Any]) -> tuple[Any, float]:
    """Run a sample on a backend several times; return its result and the median time of a call in seconds.

    The result is a NumPy array if the backend has values.
    """
    with use_backend(backend) as chosen:
        tensors = [asarray(a) for a in inputs]
        made = sample.function(*tensors)  # the first call makes the plan, and is not timed
        result = np.array(made._values()) if chosen.has_values else made
        times: list[float] = []
        with bus.uncounted():
            while len(times) < CALLS and sum(times) < ENOUGH:
                t0 = perf_counter()
                sample.function(*tensors)
                times.append(perf_counter() - t0)
        return result, median(times)
