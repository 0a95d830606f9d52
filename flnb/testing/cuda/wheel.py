"""Real CuPy on the emulated device: its runtime module is rebuilt, and its kernels are compiled by g++.

Some modules in CuPy's wheel are linked with NVIDIA's runtime library, which needs NVIDIA's driver. Of these, only
``runtime`` is needed here; it is rebuilt from CuPy's source distribution. The others (CUB, Thrust, cuRAND's generators,
Jitify) contain GPU code; here, their functions raise `NotImplementedError`.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import importlib.metadata
import os
import re
import sys
import sysconfig
import tarfile
import tempfile
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec, spec_from_file_location, spec_from_loader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from flnb_backends.tensor.cuda.compiler import cache_folder, include_options
from flnb_backends.tensor.cuda.driver import default_driver

from flnb.testing.cuda.building import SOURCE, build_device, build_kernels, built, run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec

RUNTIME = "cupy_backends.cuda.api.runtime"
NCCL = "cupy_backends.cuda.libs.nccl"
PRECOMPILED = "cupy.cuda.jitify", "cupy.random._generator_api"
REFUSAL = "{} was compiled for GPUs, and cannot run on the emulated device"
LACKS = """#include <cstdio>
#define LACKS(name, error) extern "C" int name() { \\
  fprintf(stderr, "flnb: the emulated device lacks the call %s\\n", #name); return error; }
"""
"""C++ macro for a stub of an API function that the emulated device lacks; the stub prints and returns an error."""
PROFILER = 'extern "C" cudaError_t cudaProfilerStart();\nextern "C" cudaError_t cudaProfilerStop();\n'
"""The content of a header that is missing because it belongs to a package of NVIDIA's that is not required."""
HEADERS = "complex.cuh", "carray.cuh", "atomics.cuh", "math_constants.h"


def build_runtime() -> Path:
    """Build CuPy's runtime module for the emulated device, unless it is in the cache, and return its path.

    Downloads the source distribution of the installed version by pip.

    Raises:
        RuntimeError: Cython or pip is not installed, or CuPy's source cannot be downloaded.
    """
    version = importlib.metadata.version(_distribution())
    calls = SOURCE / "cupy/runtime.cpp"
    own = calls.read_text()
    device = build_device()
    name = hashlib.blake2b("\0".join([version, own, str(device)]).encode(), digest_size=12).hexdigest()
    module = cache_folder() / f"cupy-runtime-{name}{EXTENSION_SUFFIXES[0]}"  # which names this version of Python
    if not module.exists():
        _require({"cython": bool(find_spec("Cython")), "pip": bool(find_spec("pip"))})
        with tempfile.TemporaryDirectory(dir=module.parent) as folder:
            source = _source_of_cupy(version, Path(folder))
            _translate(source)
            pxi = (source / "cupy_backends/cuda/api/_runtime_extern.pxi").read_text()
            lacking = sorted(
                set(re.findall(r"\bint (cuda\w+)\(", pxi)) - set(re.findall(r"^API (cuda\w+)\(", own, re.M))
            )
            lacks = Path(folder, "lacks.cpp")
            Path(folder, "cuda_profiler_api.h").write_text(PROFILER)
            lacks.write_text(LACKS + "".join(f"LACKS({each}, 801)\n" for each in lacking))  # not supported
            options = [
                "-O1",
                "-fPIC",
                "-w",
                f"-I{source}",
                f"-I{folder}",
                f"-I{sysconfig.get_path('include')}",
                *include_options(),
            ]
            sources = [str(source / "cupy_backends/cuda/api/runtime.cpp"), str(lacks), str(calls), str(device)]
            run(["g++", "-shared", *options, *sources, "-o", f"{folder}/made.so"])
            Path(folder, "made.so").replace(module)
    return module


def build_library(name: str, soname: str, not_supported: int, device: Path) -> Path:
    """Build the emulated cuBLAS or NCCL and return its path; functions that the library lacks become stubs.

    Args:
        name: "cublas" or "nccl".
        soname: the name by which CuPy loads the library, such as "libcublas.so.13".
        not_supported: the error code that stubs return.
        device: the library of the emulated device, which is linked in.
    """
    folder = find_spec("cupy_backends").submodule_search_locations[0]  # type: ignore[union-attr, index]
    module = next(Path(folder, "cuda/libs").glob(f"{name}.*.so"))
    calls = SOURCE / f"cupy/{name}.cpp"
    named = set(re.findall(rf" U ({name}\w+)", run(["nm", "-D", "--undefined-only", str(module)])))
    lacking = sorted(named - set(re.findall(rf"\b({name}\w+)\([^;]*?\) {{", calls.read_text())))
    text = calls.read_text() + LACKS + "".join(f"LACKS({each}, {not_supported})\n" for each in lacking)
    options = ["-std=c++17", "-fPIC", "-O2", "-shared", "-w", f"-Wl,-soname,{soname}", *include_options()]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, f"{name}.cpp")
        source.write_text(text)
        return built(options, [source, device], [], f"{text}{device}")


def _distribution() -> str:
    """Return the name of the installed distribution of CuPy, such as "cupy-cuda13x"."""
    return next(iter(importlib.metadata.packages_distributions()["cupy"]))


def _require(needed: dict[str, bool]) -> None:
    """Raise a RuntimeError that names missing packages; ``needed`` says for each package whether it is installed."""
    if lacking := [name for name, installed in needed.items() if not installed]:
        raise RuntimeError(
            f"CuPy on the emulated device needs {', '.join(lacking)}, not installed: pip install 'flnb[cuda-emulated]'"
        )


def _has_header(name: str) -> bool:
    """Return whether a CUDA header is installed."""
    return any(Path(option[2:], name).exists() for option in include_options())


def _source_of_cupy(version: str, folder: Path) -> Path:
    """Download CuPy's source distribution, unpack it into ``folder``, and return the path of its root."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "cupy", f"cupy=={version}"]
    run([*command, "-d", str(folder)], CUPY_INSTALL_USE_STUB="1")
    with tarfile.open(folder / f"cupy-{version}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / f"cupy-{version}"


def _translate(source: Path) -> None:
    """Translate CuPy's runtime module to C++ by Cython, with the options of CuPy's wheel."""
    header = next(Path(option[2:], "cuda.h") for option in include_options() if Path(option[2:], "cuda.h").exists())
    cuda = re.search(r"#define CUDA_VERSION (\d+)", header.read_text())[1]  # type: ignore[index]
    facts = f"CUPY_CUDA_VERSION={cuda},CUPY_HIP_VERSION=0,CUPY_USE_CUDA_PYTHON=0,CUPY_CUFFT_STATIC=0"
    directives = "embedsignature=True,binding=False,c_api_binop_methods=True,freethreading_compatible=True"
    command = [sys.executable, "-m", "cython", "--cplus", "-3", "-X", directives, "-E", facts, "-w", str(source)]
    run([*command, "--module-name", RUNTIME, "cupy_backends/cuda/api/runtime.pyx"])


class Finder:
    """Makes Python import CuPy's rebuilt runtime module, and stubs in place of modules that cannot run here."""

    @classmethod
    def find_spec(cls, name: str, *_: Any) -> ModuleSpec | None:
        """Return the import spec of a module that this finder replaces, None for other modules."""
        if name == RUNTIME:
            return spec_from_file_location(name, build_runtime())
        if name == NCCL:  # CuPy's module loads the library by this name
            ctypes.CDLL(str(build_library("nccl", "libnccl.so.2", 5, build_device())), mode=ctypes.RTLD_GLOBAL)
        return spec_from_loader(name, cls()) if name in PRECOMPILED else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Create a module whose functions and classes all raise NotImplementedError when called."""
        module = ModuleType(spec.name)
        module.__getattr__ = lambda name: None if name[:2] == "__" else _refusal(f"{spec.name}.{name}")  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing, as `create_module` has already filled the module."""


compiled: list[str] = []
"""The sources of the CuPy kernels that this process has compiled, for tests."""


@cache
def install_cupy() -> ModuleType:
    """Make CuPy use the emulated device in this process, and return the module ``cupy``.

    Raises:
        RuntimeError: CuPy is imported already, or a package that the emulated device needs is not installed.
    """
    if "cupy" in sys.modules:
        raise RuntimeError("CuPy is imported already; create the emulated device before anything imports CuPy")
    device = str(build_device())
    _require({
        "cupy-cuda13x": bool(find_spec("cupy")),
        "nvidia-cuda-runtime": _has_header("cuda_runtime_api.h"),
        "nvidia-cuda-crt": _has_header("crt/host_defines.h"),
    })  # fmt: skip
    build_runtime()
    libraries = {"libcuda.so.1": device}
    ctypes.CDLL(str(build_library("cublas", "libcublas.so.13", 15, Path(device))), mode=ctypes.RTLD_GLOBAL)
    os.environ["CUPY_ACCELERATORS"] = ""  # CUB's kernels are compiled for GPUs
    sys.meta_path.insert(0, Finder)
    softlink = importlib.import_module("cupy_backends.cuda._softlink")
    softlink.ctypes = SimpleNamespace(  # type: ignore[attr-defined]
        CDLL=lambda name, **how: ctypes.CDLL(libraries.get(name, name), **how), addressof=ctypes.addressof
    )
    pathfinder = importlib.import_module("cuda.pathfinder")
    found = pathfinder.load_nvidia_dynamic_lib

    def find_library(name: str) -> Any:
        """Find one of NVIDIA's libraries; CuPy calls this function in place of CuPy's own search.

        Libraries with GPU code appear to be missing; cuBLAS needs no search because the emulated one is loaded already.
        """
        if name in ("cudart", "nvrtc"):
            return found(name)
        if name != "cublas":
            raise pathfinder.DynamicLibNotFoundError(REFUSAL.format(name))
        return None

    pathfinder.load_nvidia_dynamic_lib = find_library  # type: ignore[attr-defined]
    cupy = importlib.import_module("cupy")
    for module in (cupy.cuda.cub, cupy.cuda.thrust):
        for name in [name for name, found in vars(module).items() if callable(found) and name[0].islower()]:
            setattr(module, name, _refusal(f"{module.__name__}.{name}"))
    cupy.cuda.compiler._compile_module_with_cache = _compile
    return cupy


def _refusal(name: str) -> type:
    """Return a class whose call raises NotImplementedError, in place of a function or class with GPU code."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(REFUSAL.format(name))

    return type(name.rpartition(".")[2], (), {"__new__": refuse})


def _compile(source: str, options: Sequence[str] = (), *, name_expressions: Any = None, **_: Any) -> Any:
    """Compile a CuPy kernel by g++, in place of CuPy's compiler."""
    if name_expressions:
        raise NotImplementedError("kernels named by C++ expressions cannot run on the emulated device")
    cupy = sys.modules["cupy"]
    compiled.append(source)
    defined = "".join(f"#define {o[2:].replace('=', ' ', 1)}\n" for o in options if o.startswith("-D"))
    text = re.sub(r"extern\s+__shared__\s+(.+?)\s+(\w+)\[\];", r"FLNB_DYNAMIC_SHARED(\1, \2);", source)
    module = cupy.cuda.function.Module()
    checked = getattr(default_driver(), "checked", True)
    module.load(build_kernels(defined + text, checked, [f"cupy/{name}" for name in HEADERS]))
    return module
