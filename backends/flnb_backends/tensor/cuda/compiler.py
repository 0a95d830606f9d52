"""Compilation of CUDA C kernels by NVIDIA's compiler library NVRTC, with a cache of compiled kernels on disk."""

from __future__ import annotations

import ctypes
import hashlib
import re
import tempfile
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_void_p
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flnb_backends import caches

if TYPE_CHECKING:
    from collections.abc import Iterator

OPTIONS = (
    "-std=c++17", "-default-device", "--ptxas-options=-v",
    "-DFLNB_DYNAMIC_SHARED(type, name)=extern __shared__ type name[]",
)  # fmt: skip
"""The options of NVRTC. The macro declares dynamic shared memory; g++ (emulated devices) has another definition."""
HEADERS = "", "cupy/_cccl/libcudacxx", "cupy/_cccl/thrust"
"""Include folders within CuPy's folder of headers."""
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "nvrtcVersion": (POINTER(c_int), POINTER(c_int)),
    "nvrtcCreateProgram": (POINTER(c_void_p), c_char_p, c_char_p, c_int, c_void_p, c_void_p),
    "nvrtcCompileProgram": (c_void_p, c_int, POINTER(c_char_p)),
    "nvrtcDestroyProgram": (POINTER(c_void_p),),
    "nvrtcGetProgramLogSize": (c_void_p, POINTER(c_size_t)),
    "nvrtcGetProgramLog": (c_void_p, c_char_p),
    "nvrtcGetCUBINSize": (c_void_p, POINTER(c_size_t)),
    "nvrtcGetCUBIN": (c_void_p, c_char_p),
}


class CompileError(RuntimeError):
    """An error of the kernel compiler; the message is the compiler's log, with the source lines to which it refers."""


class Usage(NamedTuple):
    """The resources that a kernel needs, as the assembler (ptxas) reports them.

    Attributes:
        registers: 32-bit registers of each thread.
        shared: bytes of static shared memory of each block.
        spilled: bytes that each thread spills from registers to local memory.
    """

    registers: int
    shared: int
    spilled: int


class Compiled(NamedTuple):
    """Compiled kernels: a cubin (machine code) for `Driver.load`, and the resources that each kernel needs, by name."""

    image: bytes
    usage: dict[str, Usage]


def compile_kernels(text: str, arch: str) -> Compiled:
    """Compile kernels for an architecture, such as "sm_90", or load them from the cache; needs no device.

    Raises:
        CompileError: the text is not valid CUDA C.
        FileNotFoundError: NVRTC is not installed (package nvidia-cuda-nvrtc).
    """
    options = [*OPTIONS, f"-arch={arch}", *include_options()]
    library = _library()
    key = "\0".join([text, *options[: len(OPTIONS) + 1], *map(str, nvrtc_version())])
    stored = cache_folder() / f"{hashlib.blake2b(key.encode(), digest_size=12).hexdigest()}.cubin"
    log = stored.with_suffix(".log")
    if not (stored.exists() and log.exists()):
        image, said = _compiled(library, text, options)
        for path, content in ((log, said.encode()), (stored, image)):  # the image last: with it, the log is there
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                file.write(content)
            Path(file.name).replace(path)
    return Compiled(stored.read_bytes(), _usage(log.read_text()))


def nvrtc_version() -> tuple[int, int]:
    """Return the version of NVRTC, such as (13, 0).

    Raises:
        FileNotFoundError: NVRTC is not installed.
    """
    version = c_int(), c_int()
    _library()["nvrtcVersion"](*map(byref, version))
    return version[0].value, version[1].value


@cache
def include_options() -> tuple[str, ...]:
    """Return the ``-I`` options for the headers of NVIDIA's packages and of CuPy."""
    folders = [Path(each, part) for each in _packages("nvidia") for part in ("cu13/include", "cuda_runtime/include")]
    folders += [Path(each, "_core/include", part) for each in _packages("cupy") for part in HEADERS]
    return tuple(f"-I{folder}" for folder in folders if folder.is_dir())


def kernel_names(text: str) -> list[str]:
    """Return the names of the kernels in CUDA C source, in order.

    >>> from flnb_backends.tensor.cuda.compiler import kernel_names
    >>> kernel_names("__global__ void scale(float *x) { x[threadIdx.x] *= 2; }")
    ['scale']
    """
    code = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    bounds = r"(?:__launch_bounds__\s*\([^)]*\)\s*)?"
    return re.findall(rf"__global__\s+{bounds}void\s+{bounds}(\w+)\s*\(", code)


def cache_folder() -> Path:
    """Return the folder of kernels compiled for devices, created if needed."""
    folder = caches.cache_folder("cuda")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def _library() -> dict[str, Any]:
    """Load NVRTC; returns its functions by name."""
    for path in _places():
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        calls = {name: getattr(library, name) for name in _SIGNATURES}
        for name, types in _SIGNATURES.items():
            calls[name].argtypes, calls[name].restype = types, c_int
        return calls
    raise FileNotFoundError("kernels are compiled by NVRTC, which is not installed: pip install nvidia-cuda-nvrtc")


def _places() -> Iterator[str]:
    """Yield the paths at which to look for NVRTC: in NVIDIA's packages, then on the system's search path."""
    for folder in _packages("nvidia"):
        yield from map(str, sorted(Path(folder).glob("cu*/lib/libnvrtc.so.*"), reverse=True))
        yield from map(str, sorted(Path(folder).glob("cuda_nvrtc/lib/libnvrtc.so.*"), reverse=True))
    yield from ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")


def _packages(name: str) -> list[str]:
    """Return the folders of an installed package, without importing it."""
    spec = find_spec(name)
    return list(spec.submodule_search_locations or []) if spec else []


def _compiled(library: dict[str, Any], text: str, options: list[str]) -> tuple[bytes, str]:
    """Compile CUDA C source; returns the image (machine code) and the compiler's log."""
    program = c_void_p()
    library["nvrtcCreateProgram"](byref(program), text.encode(), b"kernels.cu", 0, None, None)
    try:
        given = (c_char_p * len(options))(*[option.encode() for option in options])
        error = library["nvrtcCompileProgram"](program, len(options), given)
        log = _bytes(library, "nvrtcGetProgramLog", program).rstrip(b"\0").decode()
        if error:
            raise CompileError(_with_lines(log.strip() or f"NVRTC: error {error}", text))
        return _bytes(library, "nvrtcGetCUBIN", program), log
    finally:
        library["nvrtcDestroyProgram"](byref(program))


def _bytes(library: dict[str, Any], name: str, program: c_void_p) -> bytes:
    """Return the bytes that the NVRTC function ``name`` writes; the function ``name`` + "Size" reports their number."""
    size = c_size_t()
    library[f"{name}Size"](program, byref(size))
    found = ctypes.create_string_buffer(size.value)
    library[name](program, found)
    return found.raw


def _with_lines(log: str, text: str) -> str:
    """Insert into the compiler's log, after each line that refers to a line of the source, the source line."""
    lines = text.splitlines()

    def shown(match: re.Match[str]) -> str:
        number = int(match[1])
        return f"{match[0]}\n    {number} | {lines[number - 1]}" if 0 < number <= len(lines) else match[0]

    return re.sub(r"^kernels\.cu\((\d+)\): .*$", shown, log, flags=re.MULTILINE)


def _usage(log: str) -> dict[str, Usage]:
    """Parse the assembler's log: the resources of each kernel, by name."""
    found = {}
    for part in log.split("Compiling entry function '")[1:]:
        numbers = [
            int(match[1]) if (match := re.search(pattern, part)) else 0
            for pattern in (r"Used (\d+) registers", r"(\d+) bytes smem", r"(\d+) bytes spill stores")
        ]
        found[part.partition("'")[0]] = Usage(*numbers)
    return found
