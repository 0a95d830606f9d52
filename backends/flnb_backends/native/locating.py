"""Finds oneDNN's library and its version by ctypes, within milliseconds, because `import flnb` runs this search."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import contextmanager
from functools import cache
from glob import escape, glob
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "FLNB_ONEDNN_LIBRARY"
"""The environment variable with the path of the library to use."""
PACKAGE, FILE = "onednn_cpu_gomp", "libdnnl.so.3"
INSTRUCTION_SETS = {
    0x0: "default", 0x1: "sse41", 0x3: "avx", 0x7: "avx2", 0xF: "avx2_vnni", 0x1F: "avx2_vnni_2", 0x27: "avx512_core",
    0x67: "avx512_core_vnni", 0xE7: "avx512_core_bf16", 0x1EF: "avx512_core_fp16", 0xFEF: "avx512_core_amx",
    0x1FEF: "avx512_core_amx_fp16",
}  # fmt: skip
"""Names of `dnnl_cpu_isa_t`, without the prefix."""
RUNTIMES = {1: "sequential", 2: "OpenMP", 4: "TBB"}
"""The threading runtimes of oneDNN with which calls are blocking; other runtimes need a queue or a callback."""


class Found(NamedTuple):
    """A usable oneDNN library on this machine.

    Attributes:
        path: the path of the library's file.
        version: the library's version, such as "3.2.0".
        runtime: the library's threading runtime: "OpenMP", "TBB" or "sequential" (no threads).
        instruction_set: the widest vector instructions that the library uses on this machine, such as "avx2".
        threads: how many threads OpenMP uses by default: ``OMP_NUM_THREADS``, else the processors of this
            process; 1 without OpenMP.
    """

    path: str
    version: str
    runtime: str
    instruction_set: str
    threads: int

    def __str__(self) -> str:
        many = "s" * (self.threads != 1)
        return f"{self.version}, {self.instruction_set}, {self.threads} thread{many} ({self.runtime})"


class Version(ctypes.Structure):
    """oneDNN's version, the C struct `dnnl_version_t`."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("major", "minor", "patch")), ("hash", ctypes.c_char_p),
        *((name, ctypes.c_uint) for name in ("cpu_runtime", "gpu_runtime")),
    )  # fmt: skip


@cache
def locate() -> Found:
    """Find and open a oneDNN library: the path $FLNB_ONEDNN_LIBRARY, else from flnb's extra "cpu", else the system's.

    Raises:
        ImportError: no library is found; it cannot be opened or is not oneDNN 3 for CPUs; or cffi, by which flnb calls
            the library, is not installed. The message says what to install.
    """
    if find_spec("cffi") is None:
        raise ImportError("flnb: the cpu backend needs cffi; install it with: pip install 'flnb[cpu]'", name="cffi")
    named = os.environ.get(VARIABLE) or _packaged()
    try:
        return _asked(named or FILE)
    except OSError as error:
        if not named:
            raise ImportError(f"flnb: there is no {FILE}; {_wanted()}") from None
        if "libgomp" in str(error):
            raise ImportError(
                f"flnb: oneDNN ({named}) needs the system's libgomp.so.1: install it (Debian's package libgomp1)"
            ) from None
        raise ImportError(f"flnb: {named} cannot be opened ({error}); {_wanted()}") from None


def _asked(path: str) -> Found:
    """Return a description of the oneDNN library at a path: version, instruction set, number of threads."""
    with _short_waits():
        opened = ctypes.CDLL(path)
    try:
        ask = opened.dnnl_version
    except AttributeError:
        raise ImportError(f"flnb: {path} is not the oneDNN library; {_wanted()}") from None
    ask.restype = ctypes.POINTER(Version)
    found = ask().contents
    version = f"{found.major}.{found.minor}.{found.patch}"
    runtime = RUNTIMES.get(found.cpu_runtime, "")
    if found.major != 3 or not runtime:
        kind = runtime or f"runtime {found.cpu_runtime}"
        raise ImportError(f"flnb: {path} is oneDNN {version} for {kind}; {_wanted()}")
    isa = opened.dnnl_get_effective_cpu_isa()
    count = getattr(opened, "omp_get_max_threads", None)  # that of the OpenMP which the library has loaded
    return Found(path, version, runtime, INSTRUCTION_SETS.get(isa, hex(isa)), count() if count else 1)


SPINS = "5000"
"""How often an idle thread of libgomp looks for new work before it sleeps: some tens of microseconds.

libgomp's own value is 300,000. Where other programs need the processors, threads that look that long take the time of
those that compute: training steps on digits took 2 to 9 times as long on two busy processors.
"""


@contextmanager
def _short_waits() -> Iterator[None]:
    """Let idle threads of libgomp sleep soon (see `SPINS`) if libgomp is loaded inside the ``with`` block.

    libgomp reads its settings from environment variables when it is loaded. If the user has set one of these variables,
    or if another library has loaded libgomp before, the context manager has no effect.
    """
    if {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = SPINS
    try:
        yield
    finally:
        os.environ.pop("GOMP_SPINCOUNT", None)


def _wanted() -> str:
    """Return advice on how to install a suitable oneDNN library, for errors."""
    return (
        f"the cpu backend needs oneDNN 3 for OpenMP ({FILE}); install it with: pip install 'flnb[cpu]' (Linux on "
        f"x86-64), or set {VARIABLE} to its path"
    )


def _packaged() -> str | None:
    """Return the path of the oneDNN library of the installed PyPI package; None if the package is not installed.

    The path is read from the package's list of files, without `importlib.metadata`, whose import takes 20 ms.
    """
    for folder in sys.path:
        for record in glob(f"{escape(folder or os.curdir)}/{PACKAGE}-*.dist-info/RECORD"):
            with open(record, encoding="utf-8") as lines:
                files = [line.split(",")[0] for line in lines]
            path = next((file for file in files if file.rpartition("/")[2] == FILE), None)
            if path is not None:
                return os.path.realpath(os.path.join(folder, path))
    return None


def inventory() -> list[tuple[str, str]]:
    """Return the line of `flnb doctor` about oneDNN: version, instruction set, threads, path; or why it is missing."""
    try:
        found = locate()
    except ImportError as error:
        return [("onednn", str(error).removeprefix("flnb: "))]
    return [("onednn", f"{found}  ({found.path})")]
