"""Pictures (..., H, W): resized, moved, rotated, sheared, sampled anywhere, smoothed, and their histograms.

Positions and distances are (row, column) in pixels; a pixel's centre lies at its indices. All but the histograms have
gradients by the picture, to any order. Where values are mixed, integers become floating point.

>>> import flnb
>>> x = flnb.asarray([[0.0, 2.0], [4.0, 6.0]])
>>> flnb.vision.resize(x, (1, 2)).tolist(), flnb.vision.translate(x, (0, 1)).tolist()
([[2.0, 4.0]], [[0.0, 0.0], [0.0, 4.0]])
"""

from __future__ import annotations

from flnb.ops.documentation import readable
from flnb.vision.histograms import equalize, histogram
from flnb.vision.moving import affine, rotate, sample, shear, translate
from flnb.vision.scaling import gaussian_filter, resize

__all__ = [
    "affine", "equalize", "gaussian_filter", "histogram", "resize", "rotate", "sample", "shear", "translate",
]  # fmt: skip

for _name in __all__:
    readable(globals()[_name])
