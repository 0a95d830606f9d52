"""Sets the number of threads of NumPy's OpenBLAS, which compete with OpenMP's threads for the processors."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")
NAMES = [f"{prefix}openblas_{{}}_num_threads{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", "")]


@cache
def _threads() -> tuple[Callable[[int], object], int, Callable[[], int]] | None:
    """Return functions that set and read OpenBLAS's number of threads; None if NumPy does not come with OpenBLAS.

    Returns:
        A function that sets the number of threads, the number that was set at the first call of `_threads`, and a
        function that returns the present number.
    """
    for path in sorted((Path(np.__file__).parent.parent / "numpy.libs").glob("*openblas*")):
        opened: Any = ctypes.CDLL(str(path))  # the one that NumPy has opened
        for name in NAMES:
            put, get = (getattr(opened, name.format(verb), None) for verb in ("set", "get"))
            if put is not None and get is not None:
                return put, get(), get
    return None


def numpys_libraries() -> str:
    """Return the versions of NumPy and its BLAS, and the BLAS's number of threads.

    >>> numpys_libraries()  # doctest: +ELLIPSIS
    'NumPy ...'
    """
    found = _threads()
    name, version = _blas()
    many = "" if found is None else f", {found[2]()} thread{'s' * (found[2]() != 1)}"
    return f"NumPy {np.__version__}, {name} {version}{many}"


@cache
def _blas() -> tuple[str, str]:
    """Return the name and the version of the BLAS that NumPy was built with."""
    built: Any = np.show_config(mode="dicts")
    blas = built.get("Build Dependencies", {}).get("blas", {})
    return {"scipy-openblas": "OpenBLAS"}.get(blas.get("name"), blas.get("name", "no BLAS")), blas.get("version", "")


def in_one_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function and return its result; during the call NumPy's OpenBLAS, if there is one, uses one thread."""
    found = _threads()
    if found is None:
        return function(*arguments)
    put, usual, _ = found
    put(1)
    try:
        return function(*arguments)
    finally:
        put(usual)
