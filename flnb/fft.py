"""Discrete Fourier transforms by the names and rules of the array API standard 2024.12, with gradients.

>>> import flnb
>>> flnb.fft.rfft([1.0, 2.0, 3.0, 4.0]).tolist()
[(10+0j), (-2+2j), (-2+0j)]
"""

from flnb.ops import fourier
from flnb.ops.documentation import public
from flnb.ops.fourier import *  # noqa: F403 (`fourier.__all__` says what is public)

__all__ = fourier.__all__
globals().update({name: public(globals()[name]) for name in __all__})
