"""Shared by all tests."""

from __future__ import annotations

import os

# Set before NumPy loads: on few cores, threads of BLAS only make times unsteady.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")  # jupyter_core warns without it, and warnings are errors here
