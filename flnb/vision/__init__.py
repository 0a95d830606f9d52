"""Functions that resize, move, rotate, shear, sample and smooth pictures (..., H, W), and their histograms.

Positions and distances are (row, column) in pixels; a pixel's centre lies at its indices. All functions except those of
histograms have gradients of any order with respect to the picture. If pixels are averaged, integers become floating
point.

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
