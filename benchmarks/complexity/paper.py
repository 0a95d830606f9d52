"""The Flashlight paper's own figures, as printed. Two versions of the paper are quoted where they differ.

"First" is the version submitted anonymously, "second" the later one with an appendix A.2.2 and Table 4.
"""

from __future__ import annotations

__all__ = ["FIGURES"]

_COLUMNS = ("where", "metric", "PyTorch 1.8", "TensorFlow 2.4", "Flashlight 0.3.1")
_ROWS = (
    ("Table 1", "binary size, MB", "527", "768", "9"),
    ("Table 1", "lines of code", "1,798,292", "1,306,159", "27,173"),
    ("Table 1", "operators", "2,166", "1,423", "110"),
    ("Table 1", "operators that add", "55", "20", "1"),
    ("Table 1", "operators that convolve", "85", "30", "2"),
    ("Table 1", "operators that sum", "25", "10", "1"),
    ("Table 2", "from scratch, CPU minutes", "754", "2061", "27 (first), 34 (second)"),
    ("Table 2", "incremental, CPU minutes", "132", "371", "0.6"),
    ("Table 4 (second)", "binary size without tensor library, MB", "N/A", "423", "7"),
    ("Table 4 (second)", "lines of code without tensor library", "924 K", "602 K", "27 K"),
    ("Table 4 (second)", "binary size with tensor library, MB", "527", "768", "10"),
    ("Table 4 (second)", "lines of code with tensor library", "1798 K", "1306 K", "17 K"),
    ("Table 4 (second)", "operators", "2,166", "1,423", "60"),
)
FIGURES = [dict(zip(_COLUMNS, row, strict=True)) for row in _ROWS]
