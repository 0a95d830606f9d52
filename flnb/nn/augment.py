"""Augmentation of speech, in training alone: bands of frequencies and spans of time are masked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from flnb import fft, ops, random
from flnb.nn.module import Module

__all__ = ["RawWavSpecAugment", "SpecAugment"]

Draw = np.random.Generator


class SpecAugment(Module):
    """Mask spectra x (N, T, F) along frequency and time, differently in each example, and warp them along time.

    Each mask has a width drawn evenly from 0 to ``frequency_width`` channels or ``time_width`` steps, the latter at
    most ``time_share`` of T. After `eval()` x is returned unchanged. Park et al. 2019, "SpecAugment: a simple data
    augmentation method for automatic speech recognition", section 2; the defaults are its policy LD without warping.

    Args:
        time_warp: a step of the middle is moved by at most so many steps, and its neighbourhood is stretched and
            squeezed linearly; sequences of less than 2 time_warp + 4 steps are not warped.
        value: the value of masked elements, or "mean" for the mean of each example.

    >>> import flnb, flnb.nn as nn
    >>> nn.SpecAugment(frequency_width=3)(flnb.ones((2, 50, 8))).shape
    (2, 50, 8)

    Raises:
        ValueError: x of other axes, or with fewer channels than ``frequency_width``.
    """

    def __init__(
        self, frequency_width: int = 27, frequency_masks: int = 2, time_width: int = 100, time_masks: int = 2,
        time_share: float = 1.0, time_warp: int = 0, value: float | str = 0.0,
    ) -> None:  # fmt: skip
        _check_masks("SpecAugment", frequency_width, frequency_masks, time_width, time_masks, time_share, time_warp)
        _check_value("SpecAugment", value)
        self.frequency_width, self.frequency_masks = frequency_width, frequency_masks
        self.time_width, self.time_masks, self.time_share = time_width, time_masks, time_share
        self.time_warp, self.value = time_warp, value

    def forward(self, x: Any) -> Any:
        if x.ndim != 3 or (self.frequency_masks and x.shape[2] < self.frequency_width):
            raise ValueError(
                f"SpecAugment: expected x (N, T, F) with F at least frequency_width={self.frequency_width}, got "
                f"{x.shape}"
            )
        if not self.training:
            return x
        draw, (n, length, channels) = random.current_generator().numpy, x.shape
        if self.time_warp and length >= 2 * self.time_warp + 4:
            x = _warped(x, draw, self.time_warp)
        widest = min(self.time_width, int(length * self.time_share))
        over_time = spans(draw, n, self.time_masks, length, widest)
        over_frequency = spans(draw, n, self.frequency_masks, channels, self.frequency_width)
        return _masked(x, over_time[:, :, None] | over_frequency[:, None, :], self.value)


class RawWavSpecAugment(Module):
    """`SpecAugment` of raw waves x (..., T): bands of frequencies filtered out, spans of samples masked.

    Frequencies from ``low_hz`` to ``high_hz`` are cut in ``bands`` of equal width on the mel scale, of which up to
    ``frequency_width`` neighbours are removed by the difference of two low-pass filters (sinc under a Blackman window
    of at most ``max_kernel`` samples; below the frequencies that such a kernel can separate, no band begins). Like
    Flashlight's module of this name, but each example has bands and spans of its own. After `eval()` x is returned
    unchanged.

    >>> import flnb, flnb.nn as nn
    >>> nn.RawWavSpecAugment(time_width=100)(flnb.ones((2, 1, 4000))).shape
    (2, 1, 4000)

    Raises:
        ValueError: frequencies that do not rise or go beyond half the ``sample_rate``, or kernels too short for all.
    """

    def __init__(
        self, frequency_width: int = 27, frequency_masks: int = 2, time_width: int = 16000, time_masks: int = 2,
        time_share: float = 1.0, bands: int = 80, low_hz: float = 0.0, high_hz: float = 8000.0,
        sample_rate: float = 16000.0, max_kernel: int = 20000, value: float | str = 0.0,
    ) -> None:  # fmt: skip
        _check_masks("RawWavSpecAugment", frequency_width, frequency_masks, time_width, time_masks, time_share)
        _check_value("RawWavSpecAugment", value)
        if not (0.0 <= low_hz < high_hz <= sample_rate / 2.0 and bands >= 1):
            raise ValueError(
                "RawWavSpecAugment: expected 0 <= low_hz < high_hz <= sample_rate / 2 and bands >= 1, got "
                f"low_hz={low_hz}, high_hz={high_hz}, sample_rate={sample_rate}, bands={bands}"
            )
        self.frequency_width, self.frequency_masks = frequency_width, frequency_masks
        self.time_width, self.time_masks, self.time_share = time_width, time_masks, time_share
        self.bands, self.low_hz, self.high_hz, self.sample_rate = bands, low_hz, high_hz, sample_rate
        self.max_kernel, self.value = max_kernel, value
        low_mel, high_mel = (2595.0 * math.log10(1.0 + hz / 700.0) for hz in (low_hz, high_hz))
        mels = np.linspace(low_mel, high_mel, bands + 1)
        self._edges = 700.0 * (10.0 ** (mels / 2595.0) - 1.0) / sample_rate  # 0.5 is half the sample rate
        # A filter's flank is a fourth of the edge below as wide, and its kernel as long as that takes.
        flanks = np.concatenate([self._edges[:1], self._edges[:-1]]) / 4.0
        self._halves = (2.0 / (1e-6 + flanks)).astype(int)
        self._first = int((2 * self._halves + 1 > max_kernel).sum())  # halves fall
        if self._first >= bands:
            raise ValueError(
                f"RawWavSpecAugment: no band can be taken out by kernels of at most max_kernel={max_kernel} samples, "
                f"the shortest has {2 * self._halves[-1] + 1}; raise it, or low_hz"
            )

    def forward(self, x: Any) -> Any:
        if x.ndim < 2 or x.shape[-1] == 0:
            raise ValueError(f"RawWavSpecAugment: expected waves (N, ..., T) with T > 0, got {x.shape}")
        if not self.training:
            return x
        draw, (n, *_, length) = random.current_generator().numpy, x.shape
        wide = (n, *(1,) * (x.ndim - 2))
        for _ in range(self.frequency_masks):
            low = draw.integers(self._first, self.bands, n)
            high = np.minimum(self.bands, low + draw.integers(0, self.frequency_width + 1, n))
            x = self._without(x, np.stack([self._band(int(a), int(b)) for a, b in zip(low, high, strict=True)]), wide)
        widest = min(self.time_width, int(length * self.time_share))
        over_time = spans(draw, n, self.time_masks, length, widest)
        return _masked(x, over_time.reshape(*wide, length), self.value)

    def _band(self, low: int, high: int) -> npt.NDArray[Any]:
        """The kernel that passes the frequencies between two edges, centred in as many samples as the longest has."""
        half = int(self._halves[self._first])
        kernel = np.zeros(2 * half + 1)
        for edge, sign in ((high, 1.0), (low, -1.0)) if high > low else ():
            own = int(self._halves[edge])
            kernel[half - own : half + own + 1] += sign * _low_pass(float(self._edges[edge]), own)
        return kernel

    def _without(self, x: Any, kernels: npt.NDArray[Any], wide: tuple[int, ...]) -> Any:
        """x minus the frequencies that the kernels (N, K) of its examples pass."""
        length, taps = x.shape[-1], kernels.shape[-1]
        whole = length + taps - 1
        response = np.fft.rfft(kernels, whole).reshape(*wide, -1)
        passed = fft.irfft(
            fft.rfft(x, n=whole) * ops.asarray(response.astype(np.result_type(x.dtype, np.complex64))), n=whole
        )
        return x - passed[..., taps // 2 : taps // 2 + length]


def _low_pass(cutoff: float, half: int) -> npt.NDArray[Any]:
    """A sinc of 2 half + 1 samples under a Blackman window, of sum 1; the cutoff in cycles per sample."""
    kernel = np.sinc(2.0 * cutoff * np.arange(-half, half + 1)) * np.blackman(2 * half + 1)
    return kernel / kernel.sum()  # type: ignore[no-any-return]


def spans(draw: Draw, n: int, count: int, extent: int, widest: int) -> npt.NDArray[np.bool_]:
    """(n, extent), true in ``count`` spans a row, each of a width from 0 to ``widest`` at any place.

    >>> spans(np.random.default_rng(0), 1, 1, 6, 4).tolist()
    [[False, True, True, True, True, False]]
    """
    width = draw.integers(0, widest + 1, (n, count, 1))
    start = draw.integers(0, extent - width + 1)
    place = np.arange(extent)
    return np.logical_or.reduce((place >= start) & (place < start + width), axis=1)  # type: ignore[no-any-return]


def _warped(x: Any, draw: Draw, most: int) -> Any:
    """Each example with one step moved, read linearly between its neighbours."""
    n, length, _ = x.shape
    steps, last = np.arange(length), length - 1
    from_step = draw.integers(most + 1, last - most, n)
    to_step = from_step + draw.integers(-most, most + 1, n)
    source = np.stack([np.interp(steps, (0, b, last), (0, a, last)) for a, b in zip(from_step, to_step, strict=True)])
    before = np.minimum(source.astype(np.int64), last - 1)
    share = ops.asarray((source - before)[..., None].astype(x.dtype))
    rows = np.arange(n)[:, None]
    return x[rows, before] * (1.0 - share) + x[rows, before + 1] * share


def _masked(x: Any, mask: npt.NDArray[np.bool_], value: float | str) -> Any:
    other = ops.mean(x, axis=tuple(range(1, x.ndim)), keepdims=True) if value == "mean" else value
    return ops.where(ops.asarray(mask), other, x)


def _check_masks(
    name: str, frequency_width: int, frequency_masks: int, time_width: int, time_masks: int, time_share: float,
    time_warp: int = 0,
) -> None:  # fmt: skip
    least = min(frequency_width, frequency_masks, time_width, time_masks, time_warp)
    if least < 0 or not 0.0 <= time_share <= 1.0:
        raise ValueError(
            f"{name}: expected widths, numbers of masks and time_warp of at least 0 and time_share from 0 to 1, got "
            f"frequency_width={frequency_width}, frequency_masks={frequency_masks}, time_width={time_width}, "
            f"time_masks={time_masks}, time_share={time_share}, time_warp={time_warp}"
        )


def _check_value(name: str, value: float | str) -> None:
    if isinstance(value, str) and value != "mean":
        raise ValueError(f"{name}: value must be a number or 'mean', got {value!r}")
