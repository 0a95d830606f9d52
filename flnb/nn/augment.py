"""Augmentation of speech in training mode: masks random bands of frequencies and random spans of time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from flnb import fft, ops, random
from flnb.nn.module import Module

__all__ = ["RawWavSpecAugment", "SpecAugment"]

Draw = np.random.Generator


class _Masks(Module):
    """Base of `SpecAugment` and `RawWavSpecAugment`: checks the settings, and masks random spans of time."""

    def __init__(
        self, frequency_width: int, frequency_masks: int, time_width: int, time_masks: int, time_share: float,
        value: float | str, time_warp: int = 0,
    ) -> None:  # fmt: skip
        self.frequency_width, self.frequency_masks = frequency_width, frequency_masks
        self.time_width, self.time_masks, self.time_share, self.value = time_width, time_masks, time_share, value
        name = type(self).__name__
        if min(frequency_width, frequency_masks, time_width, time_masks, time_warp) < 0 or not 0.0 <= time_share <= 1.0:
            raise ValueError(
                f"{name}: expected widths, numbers of masks and time_warp of at least 0 and time_share from 0 to 1, "
                f"got frequency_width={frequency_width}, frequency_masks={frequency_masks}, time_width={time_width}, "
                f"time_masks={time_masks}, time_share={time_share}, time_warp={time_warp}"
            )
        if isinstance(value, str) and value != "mean":
            raise ValueError(f"{name}: value must be a number or 'mean', got {value!r}")

    def _over_time(self, draw: Draw, n: int, length: int) -> npt.NDArray[np.bool_]:
        """Return a boolean mask (n, length) that is true in random spans of time of each of n examples."""
        return spans(draw, n, self.time_masks, length, min(self.time_width, int(length * self.time_share)))

    def _masked(self, x: Any, mask: npt.NDArray[np.bool_]) -> Any:
        """Return x with the elements where the mask is true replaced by `value`, or by the mean of their example."""
        mean = self.value == "mean"
        other = ops.mean(x, axis=tuple(range(1, x.ndim)), keepdims=True) if mean else self.value
        return ops.where(ops.asarray(mask), other, x)


class SpecAugment(_Masks):
    """Mask random bands of frequencies and random spans of time in spectra x (N, T, F), and warp them along time.

    Each example is masked differently; the shape stays the same. In evaluation mode x is returned unchanged. Park et
    al. 2019, "SpecAugment: a simple data augmentation method for automatic speech recognition", section 2; the defaults
    are its policy LD without warping.

    Args:
        frequency_width: the largest width of a band, in channels; widths are drawn uniformly from 0.
        frequency_masks: the number of bands.
        time_width: the largest width of a span, in steps; widths are drawn uniformly from 0.
        time_masks: the number of spans.
        time_share: the largest width of a span, as a share of T.
        time_warp: the largest number of steps by which a random step is moved, while the steps before and after it are
            stretched or squeezed linearly; sequences of less than 2 * time_warp + 4 steps are not warped.
        value: the value of masked elements, or "mean" for the mean of each example.

    >>> import flnb, flnb.nn as nn
    >>> nn.SpecAugment(frequency_width=3)(flnb.ones((2, 50, 8))).shape
    (2, 50, 8)

    Raises:
        ValueError: negative settings, or an x that is not (N, T, F) with F at least ``frequency_width``.
    """

    def __init__(
        self, frequency_width: int = 27, frequency_masks: int = 2, time_width: int = 100, time_masks: int = 2,
        time_share: float = 1.0, time_warp: int = 0, value: float | str = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(frequency_width, frequency_masks, time_width, time_masks, time_share, value, time_warp)
        self.time_warp = time_warp

    def forward(self, x: Any) -> Any:
        if x.ndim != 3 or (self.frequency_masks and x.shape[2] < self.frequency_width):
            raise ValueError(
                f"SpecAugment: expected x (N, T, F) with F at least frequency_width={self.frequency_width}, got "
                f"{x.shape}"
            )
        if not self.training:
            return x
        draw, (n, length, channels) = random.host_generator(), x.shape
        if self.time_warp and length >= 2 * self.time_warp + 4:
            x = _warped(x, draw, self.time_warp)
        over_time = self._over_time(draw, n, length)
        over_frequency = spans(draw, n, self.frequency_masks, channels, self.frequency_width)
        return self._masked(x, over_time[:, :, None] | over_frequency[:, None, :])


class RawWavSpecAugment(_Masks):
    """Remove random bands of frequencies from raw waves x (N, ..., T), and mask random spans of samples.

    The counterpart of `SpecAugment` for waves, as in Flashlight, except that each example has bands and spans of its
    own. In evaluation mode x is returned unchanged.

    Args:
        frequency_width: the largest number of neighbouring bands that one frequency mask removes.
        frequency_masks, time_width, time_masks, time_share, value: see `SpecAugment`; a step of time is one sample.
        bands: the number of bands into which the range of frequencies is divided, of equal width on the mel scale.
        low_hz, high_hz: the ends of the range of frequencies, in Hz.
        sample_rate: the number of samples per second.
        max_kernel: the largest length of a filter, in samples. A filter is the difference of two low-pass filters (sinc
            under a Blackman window). Low bands that need longer filters are not removed.

    >>> import flnb, flnb.nn as nn
    >>> nn.RawWavSpecAugment(time_width=100)(flnb.ones((2, 1, 4000))).shape
    (2, 1, 4000)

    Raises:
        ValueError: negative settings, frequencies that do not rise or are above half the ``sample_rate``, or a
            ``max_kernel`` too short for any band.
    """

    def __init__(
        self, frequency_width: int = 27, frequency_masks: int = 2, time_width: int = 16000, time_masks: int = 2,
        time_share: float = 1.0, bands: int = 80, low_hz: float = 0.0, high_hz: float = 8000.0,
        sample_rate: float = 16000.0, max_kernel: int = 20000, value: float | str = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(frequency_width, frequency_masks, time_width, time_masks, time_share, value)
        if not (0.0 <= low_hz < high_hz <= sample_rate / 2.0 and bands >= 1):
            raise ValueError(
                "RawWavSpecAugment: expected 0 <= low_hz < high_hz <= sample_rate / 2 and bands >= 1, got "
                f"low_hz={low_hz}, high_hz={high_hz}, sample_rate={sample_rate}, bands={bands}"
            )
        self.bands, self.low_hz, self.high_hz, self.sample_rate = bands, low_hz, high_hz, sample_rate
        self.max_kernel = max_kernel
        low_mel, high_mel = (2595.0 * math.log10(1.0 + hz / 700.0) for hz in (low_hz, high_hz))
        mels = np.linspace(low_mel, high_mel, bands + 1)
        self._edges = 700.0 * (10.0 ** (mels / 2595.0) - 1.0) / sample_rate  # 0.5 is half the sample rate
        # A filter falls off over a fourth of the edge below its own, which determines the length of its kernel.
        flanks = np.concatenate([self._edges[:1], self._edges[:-1]]) / 4.0
        self._halves = (2.0 / (1e-6 + flanks)).astype(int)
        self._first = int((2 * self._halves + 1 > max_kernel).sum())  # the first edge with a short enough kernel
        if self._first >= bands:
            raise ValueError(
                f"RawWavSpecAugment: no band can be removed by filters of at most max_kernel={max_kernel} samples, "
                f"the shortest filter has {2 * self._halves[-1] + 1}; raise max_kernel or low_hz"
            )

    def forward(self, x: Any) -> Any:
        if x.ndim < 2 or x.shape[-1] == 0:
            raise ValueError(f"RawWavSpecAugment: expected waves (N, ..., T) with T > 0, got {x.shape}")
        if not self.training:
            return x
        draw, (n, *_, length) = random.host_generator(), x.shape
        wide = (n, *(1,) * (x.ndim - 2))
        for _ in range(self.frequency_masks):
            low = draw.integers(self._first, self.bands, n)
            high = np.minimum(self.bands, low + draw.integers(0, self.frequency_width + 1, n))
            x = self._without(x, np.stack([self._band(int(a), int(b)) for a, b in zip(low, high, strict=True)]), wide)
        return self._masked(x, self._over_time(draw, n, length).reshape(*wide, length))

    def _band(self, low: int, high: int) -> npt.NDArray[Any]:
        """Return a filter that passes the bands ``low`` to ``high - 1``, padded to the length of the longest filter."""
        half = int(self._halves[self._first])
        kernel = np.zeros(2 * half + 1)
        for edge, sign in ((high, 1.0), (low, -1.0)) if high > low else ():
            own = int(self._halves[edge])
            kernel[half - own : half + own + 1] += sign * _low_pass(float(self._edges[edge]), own)
        return kernel

    def _without(self, x: Any, kernels: npt.NDArray[Any], wide: tuple[int, ...]) -> Any:
        """Subtract from each example the frequencies that its filter passes.

        Args:
            x: waves (N, ..., T).
            kernels: a filter for each example, (N, K).
            wide: the shape (N, 1, ..., 1) with as many extents as x has axes before the last.
        """
        length, taps = x.shape[-1], kernels.shape[-1]
        whole = length + taps - 1
        response = np.fft.rfft(kernels, whole).reshape(*wide, -1)
        passed = fft.irfft(
            fft.rfft(x, n=whole) * ops.asarray(response.astype(np.result_type(x.dtype, np.complex64))), n=whole
        )
        return x - passed[..., taps // 2 : taps // 2 + length]


def _low_pass(cutoff: float, half: int) -> npt.NDArray[Any]:
    """Return a low-pass filter of 2 * half + 1 samples: a sinc under a Blackman window, with sum 1.

    The cutoff frequency is in cycles per sample.
    """
    kernel = np.sinc(2.0 * cutoff * np.arange(-half, half + 1)) * np.blackman(2 * half + 1)
    return kernel / kernel.sum()


def spans(draw: Draw, n: int, count: int, extent: int, widest: int) -> npt.NDArray[np.bool_]:
    """Draw a boolean mask (n, extent) that is true in ``count`` random spans of each row.

    The width of each span is drawn uniformly from 0 to ``widest``, then its start.

    >>> import numpy as np
    >>> spans(np.random.default_rng(0), 1, 1, 6, 4).tolist()
    [[False, True, True, True, True, False]]
    """
    width = draw.integers(0, widest + 1, (n, count, 1))
    start = draw.integers(0, extent - width + 1)
    place = np.arange(extent)
    return np.logical_or.reduce((place >= start) & (place < start + width), axis=1)


def _warped(x: Any, draw: Draw, most: int) -> Any:
    """Warp each example of x along time: move a random step by up to ``most`` steps, and stretch the rest to fit."""
    n, length, _ = x.shape
    steps, last = np.arange(length), length - 1
    from_step = draw.integers(most + 1, last - most, n)
    to_step = from_step + draw.integers(-most, most + 1, n)
    source = np.stack([np.interp(steps, (0, b, last), (0, a, last)) for a, b in zip(from_step, to_step, strict=True)])
    before = np.minimum(source.astype(np.int64), last - 1)
    share = ops.asarray((source - before)[..., None].astype(x.dtype))
    rows = np.arange(n)[:, None]
    return x[rows, before] * (1.0 - share) + x[rows, before + 1] * share
