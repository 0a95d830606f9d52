"""The conformance kit for tensor backends: every op of the table beside the NumPy reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch import registry, state
from flnb.ops.creation import asarray
from flnb.testing.report import Report, Result
from flnb.testing.samples import Sample, samples

if TYPE_CHECKING:
    from flnb.interface import TensorBackend

__all__ = ["check_backend"]


def check_backend(
    backend: str | type[TensorBackend] | TensorBackend,
    tolerance: float = 1e-6,
    dtypes: tuple[str, ...] = ("float64", "float32"),
) -> Report:
    """Run every op of the table on ``backend`` and on NumPy, and compare shapes, dtypes and values.

    Args:
        backend: a name, a class or an instance.
        tolerance: of the error relative to the largest value, in float64; float32 is allowed its own precision.
        dtypes: in which floating dtypes to try.

    >>> import flnb.testing
    >>> bool(flnb.testing.check_backend("numpy"))
    True
    """
    chosen: TensorBackend = registry.make("backend", backend)
    rows: dict[str, list[tuple[Sample, str]]] = {}
    for sample in samples():
        for dtype in dtypes:
            rows.setdefault(sample.op, []).append((sample, _difference(sample, chosen, np.dtype(dtype), tolerance)))
    results = []
    for op, tried in rows.items():
        bad = [(sample, reason) for sample, reason in tried if reason]
        reason = f"{bad[0][0]}: {bad[0][1]}" if bad else ""
        calls = tuple(f"{s}: {r}" for s, r in bad[1:4])
        results.append(Result(op, not bad, len(tried), reason, calls))
    return Report(f"backend {chosen.name}", tuple(results))


def _difference(sample: Sample, backend: TensorBackend, dtype: np.dtype[Any], tolerance: float) -> str:
    """What is wrong with one call, or nothing."""
    inputs = [a.astype(dtype) if a.dtype == np.float64 else a for a in sample.inputs]
    expected = _run(sample, "numpy", inputs)
    try:
        got = _run(sample, backend, inputs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"got {got.dtype.name}{list(got.shape)}, expected {expected.dtype.name}{list(expected.shape)}"
    if expected.dtype.kind not in "fc":
        wrong = int((got != expected).sum())
        return f"{wrong} of {expected.size} values differ, inputs {_shapes(inputs)}" if wrong else ""
    allowed = max(tolerance, 100 * float(np.finfo(expected.dtype).eps)) * max(1.0, _largest(expected))
    if not np.array_equal(np.isfinite(got), np.isfinite(expected)):
        return f"NaN or infinity where the reference is finite, or the reverse, inputs {_shapes(inputs)}"
    largest = _largest(np.where(np.isfinite(expected), got - expected, 0.0))
    return f"largest error {largest:.2e} (allowed {allowed:.2e}), inputs {_shapes(inputs)}" if largest > allowed else ""


def _run(sample: Sample, backend: str | TensorBackend, inputs: list[Any]) -> np.ndarray[Any, Any]:
    with state.use_backend(backend):
        return np.array(sample.function(*[asarray(a) for a in inputs])._values())


def _largest(values: Any) -> float:
    return float(np.abs(values).max()) if np.size(values) else 0.0


def _shapes(inputs: list[Any]) -> str:
    return ", ".join(f"{a.dtype.name}{list(a.shape)}" for a in inputs) or "none"
