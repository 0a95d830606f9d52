"""Compiles LLVM IR to machine code for this processor, by llvmlite, and caches the machine code in a folder."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import sys
import tempfile
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from flnb_telemetry.extras import require

from flnb_backends.caches import cache_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    Function = tuple[Callable[..., Any], Callable[[Any], Any]]

DIGEST = hashlib.sha256().digest_size


def compiler() -> Compiler:
    """Return the process's compiler.

    Raises:
        ImportError: llvmlite is not installed.
    """
    with _making:  # of two compilers, one would be freed, with machine code that another thread runs
        return _compiler()


@cache
def _compiler() -> Compiler:
    """Return the process's compiler, which is made at the first call."""
    return Compiler()


_making = Lock()


def function(symbol: str, signature: str, key: str, text: Callable[[], str]) -> Function | None:
    """Compile a function, and return an object by which Python calls the function's machine code.

    Args:
        symbol, key, text: as for `Compiler.address`.
        signature: the type of a pointer to the function, in C.

    Returns:
        The function, and another function that returns the pointer to a contiguous array. None if llvmlite or cffi is
        not installed.
    """
    if find_spec("llvmlite") is None or find_spec("cffi") is None:
        return None
    ffi: Any = import_module("_cffi_backend").FFI()  # its methods are C functions; those of `cffi.FFI` call these
    return ffi.cast(signature, compiler().address(symbol, key, text)), ffi.from_buffer


class Compiler:
    """Compiles LLVM IR for this processor and loads the machine code, which is not unloaded until the process ends."""

    def __init__(self) -> None:
        self.llvm: Any = require("llvmlite.binding", "cpu", "compiling kernels")
        self.llvm.initialize_native_target()
        self.llvm.initialize_native_asmprinter()
        if sys.platform == "linux":  # Python may have no functions of the C library's mathematical part of its own
            ctypes.CDLL("libm.so.6", ctypes.RTLD_GLOBAL)
        self.lock = Lock()
        self.loaded: list[Any] = []
        self.names = (f"library{number}" for number in count())  # one that failed to load has used its name up

    @cached_property
    def machine(self) -> Any:
        """Return LLVM's target machine for this processor, which uses all of the processor's features."""
        target = self.llvm.Target.from_default_triple()
        name, features = self.llvm.get_host_cpu_name(), self.llvm.get_host_cpu_features().flatten()
        return target.create_target_machine(cpu=name, features=features, opt=3, reloc="pic", codemodel="small")

    @cached_property
    def linker(self) -> Any:
        """Return the linker that loads machine code into this process and resolves the functions that it calls.

        It is LLVM's JITLink, which places a kernel's code and constants in one range of memory. LLVM's older linker,
        RuntimeDyld, places them separately, and ends the process if they are more than 2 GiB apart.
        """
        return self.llvm.create_lljit_compiler(self.machine, use_jit_link=True)

    @cached_property
    def version(self) -> str:
        """Return a text that changes if LLVM, the processor or flnb's code generators change."""
        from flnb.graph import approximations, emitter, loops, nests, scalars

        binding = self.llvm
        modules = (approximations, emitter, loops, nests, scalars)
        sources = [*Path(__file__).parent.glob("*.py"), *(Path(str(module.__file__)) for module in modules)]
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(sources))).hexdigest()
        host = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten(), binding.get_default_triple()
        return repr((binding.llvm_version_info, host, digest))

    def address(self, symbol: str, key: str, text: Callable[[], str]) -> int:
        """Return the address of a function's machine code, which is read from the cache folder or compiled.

        Args:
            symbol: the function's name in its LLVM module.
            key: a text that determines the module, and so the name of the file in the cache folder.
            text: returns the text of the LLVM module; called only if the folder does not have the code.
        """
        with self.lock:
            path = cache_folder("native") / (hashlib.sha256(f"{self.version}{symbol}{key}".encode()).hexdigest() + ".o")
            code = _read(path)
            if code is None:
                code = self.compiled(text())
                with contextlib.suppress(OSError):  # a disk that is full, or may not be written: compiled each time
                    _write(path, code)
            return self._load(symbol, code)

    def optimized(self, text: str) -> Any:
        """Parse and optimize an LLVM module, given as text.

        Raises:
            RuntimeError: the text is not valid LLVM IR; the message shows the line.
        """
        module = self.llvm.parse_assembly(text)
        module.verify()
        options = self.llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization = options.loop_interleaving = True
        options.loop_unrolling = False
        options.slp_vectorization = False
        builder = self.llvm.create_pass_builder(self.machine, options)
        builder.getModulePassManager().run(module, builder)
        return module

    def compiled(self, text: str) -> bytes:
        """Compile an LLVM module, given as text, and return its machine code as the bytes of an object file."""
        code: bytes = self.machine.emit_object(self.optimized(text))
        return code

    def _load(self, symbol: str, code: bytes) -> int:
        """Load an object file, given as bytes, into the process, and return the address of its function ``symbol``."""
        builder = self.llvm.JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol(symbol)
        library = builder.link(self.linker, next(self.names))
        self.loaded.append(library)
        address: int = library[symbol]
        return address


def _read(path: Path) -> bytes | None:
    """Return the machine code in a file; None if there is no such file, or it is damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, code = content[:DIGEST], content[DIGEST:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write(path: Path, code: bytes) -> None:
    """Write machine code to a file atomically, so that other processes never read a file that is incomplete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
