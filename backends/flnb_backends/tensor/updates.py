"""Updates of several buffers as single NumPy methods: optimizer steps, block by block, and moving averages.

The results are those of the ops of which the algorithms consist, to the bit. A block of a large parameter stays in the
cache from the first of these ops to the last.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import numpy as np

from flnb.dispatch.quiet import quiet_methods
from flnb_backends.tensor.rows import Array, number

BLOCK = 1 << 15
"""The elements of one block: those of six arrays of float32 fit into an L2 cache of 1 MiB."""


@quiet_methods
class Updates:
    """Methods of the NumPy backend that update several buffers in place; the buffers that are only read come first."""

    def copy_each(self, *buffers: Array) -> None:
        """Copy each buffer of the first half to the buffer of the second half with the same position."""
        half = len(buffers) // 2
        for source, target in zip(buffers[:half], buffers[half:], strict=True):
            target[...] = source

    def move_averages(
        self, mean: Array, variance: Array, running_mean: Array, running_var: Array, keep: float, *shares: float
    ) -> None:
        """Set each running average of batch norm to ``keep`` times itself plus its share times the batch's average."""
        for running, batch, share in zip((running_mean, running_var), (mean, variance), shares, strict=True):
            np.multiply(running, number(keep, running.dtype), running)
            np.add(running, np.multiply(batch.reshape(running.shape), number(share, running.dtype)), running)

    def sgd_update(self, gradient: Array, data: Array, *rest: Any) -> None:
        """Do one step of `flnb.optim.SGD` or `NAG`; ``rest`` is the velocity, if any, and the five coefficients."""
        *velocity, shrink, decay, rate, momentum, nesterov = rest
        kind = data.dtype
        for g, x, work, *averages in _blocks(gradient, data, *velocity):
            slope = _decayed(g, x, work, shrink, decay)
            for v in averages:
                np.multiply(v, number(momentum, kind), v)
                np.add(v, slope, v)
                if nesterov:
                    _descend(x, slope, rate, work)
                slope = v
            _descend(x, slope, rate * momentum if nesterov else rate, work)

    def adam_update(self, gradient: Array, data: Array, mean: Array, square: Array, *rest: Any) -> None:
        """Do one step of `flnb.optim.Adam`, `AdamW` or `AMSgrad`.

        ``rest`` is the third part of the state, if any (AMSgrad's largest average), and the six coefficients.
        """
        *largest, shrink, decay, beta1, beta2, eps, rate = rest
        kind, keep = data.dtype, 1.0 - beta1
        for g, x, work, m, v, *most in _blocks(gradient, data, mean, square, *largest):
            np.multiply(_decayed(g, x, work, shrink, decay), number(keep, kind), work)
            np.multiply(m, number(beta1, kind), m)
            np.add(m, work, m)
            np.multiply(work, work, work)
            np.multiply(work, number((1.0 - beta2) / keep**2, kind), work)
            np.multiply(v, number(beta2, kind), v)
            np.add(v, work, v)
            for scale in most:
                np.maximum(scale, v, out=scale)
            np.sqrt(most[0] if most else v, work)
            np.add(work, np.array(eps, kind), work)  # as the rate, another number in each step
            np.divide(m, work, work)
            _descend(x, work, rate, work)


_works = threading.local()
"""The work arrays of each thread, one for each dtype, by the dtype's character; so that a step allocates nothing."""


def _scratch(dtype: np.dtype[Any]) -> Array:
    """Return the calling thread's work array of ``BLOCK`` elements, with arbitrary contents."""
    found = getattr(_works, dtype.char, None)
    if found is None:
        found = np.empty(BLOCK, dtype)
        setattr(_works, dtype.char, found)
    return found


def _blocks(gradient: Array, data: Array, *state: Array) -> Iterable[list[Array]]:
    """Yield [gradient, data, a work array, *state]: once, or for each block if the arrays are large and contiguous."""
    arrays = gradient, data, *state
    size, work = data.size, _scratch(data.dtype)
    if size <= BLOCK:
        yield [gradient, data, work[:size].reshape(data.shape), *state]
        return
    if not all(x.flags.c_contiguous for x in arrays):
        yield [gradient, data, np.empty(data.shape, data.dtype), *state]
        return
    flat = [x.reshape(-1) for x in arrays]
    for start in range(0, size, BLOCK):
        g, x, *parts = [each[start : start + BLOCK] for each in flat]
        yield [g, x, work[: len(x)], *parts]


def _decayed(gradient: Array, data: Array, work: Array, shrink: float, decay: float) -> Array:
    """Multiply the data by ``shrink``, and return gradient + decay * data, which is written to ``work`` if needed."""
    if shrink != 1.0:
        np.multiply(data, number(shrink, data.dtype), data)
    if not decay:
        return gradient
    np.multiply(data, number(decay, data.dtype), work)
    return np.add(work, gradient, work)


def _descend(data: Array, step: Array, rate: float, work: Array) -> None:
    """Set data -= rate * step, in place; ``work`` is overwritten."""
    np.multiply(step, np.array(rate, data.dtype), work)
    np.subtract(data, work, data)
