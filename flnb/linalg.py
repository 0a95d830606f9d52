"""Linear algebra by the names and rules of the array API standard 2024.12, with gradients.

>>> import flnb
>>> flnb.linalg.inv(flnb.asarray([[2.0, 0.0], [0.0, 4.0]])).tolist()
[[0.5, 0.0], [0.0, 0.25]]
"""

from flnb.ops.decomposition import cholesky, eigh, eigvalsh, qr, svd, svdvals
from flnb.ops.documentation import public
from flnb.ops.inverse import det, inv, matrix_power, pinv, slogdet, solve
from flnb.ops.linalg import cross, diagonal, matmul, matrix_transpose, outer, tensordot, trace, vecdot
from flnb.ops.normalization import matrix_norm, matrix_rank, vector_norm

__all__ = [
    "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm", "matrix_power",
    "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals", "tensordot",
    "trace", "vecdot", "vector_norm",
]  # fmt: skip
globals().update({name: public(globals()[name]) for name in __all__})
