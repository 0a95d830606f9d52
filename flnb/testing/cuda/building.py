"""Builds the emulated device and its kernel libraries with g++, and caches them in a folder."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from flnb_backends.tensor.cuda.compiler import CompileError, cache_folder, include_options, kernel_names

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCE = Path(__file__).parent / "source"
MAGIC = b"flnb kernels "
"""The first bytes of an image that the emulated device loads; the path of a library follows."""
OPTIONS = ("-std=c++17", "-fPIC", "-g1")
CHECKED = ("-O1", "-fsanitize=thread")
"""Options by which g++ puts a call at every load and store of a kernel, to functions of the device, not of libtsan."""


def build_device() -> Path:
    """Build the library of the emulated device, unless it is in the cache folder, and return its path.

    Raises:
        FileNotFoundError: there is no g++.
    """
    sources = sorted(SOURCE.glob("*.cpp"))
    return built([*OPTIONS, "-O2", "-shared"], sources, ["-ldl"], _text_of(SOURCE.glob("*.?pp")))


def build_kernels(text: str, checks: bool = True, headers: Sequence[str] = ()) -> bytes:
    """Compile kernels for the emulated device; return an image that its driver can load.

    Args:
        text: the kernels' source, CUDA C as for NVRTC.
        checks: whether each load and store calls the device's checks.
        headers: names of headers that the text includes; parsing them once saves seconds for each text.

    Raises:
        CompileError: the text is not CUDA C, or uses what the emulated device lacks.
        FileNotFoundError: there is no g++.
    """
    doors = "\n".join(f"FLNB_KERNEL({name})" for name in kernel_names(text))
    options = [*OPTIONS, *(CHECKED if checks else ["-O2"]), "-fno-strict-aliasing", *include_options()]
    header = precompiled(("kernel.hpp", *headers), options)
    whole = f'#include "{header}"\n#line 1 "kernels.cu"\n{text}\n{doors}\n'
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernels.cpp")
        source.write_text(whole)
        return MAGIC + os.fsencode(built(options, [source], [], whole, linked_apart=True))


@cache
def _headers_text() -> str:
    return _text_of([*SOURCE.glob("*.hpp"), Path(__file__)])


def precompiled(names: tuple[str, ...], options: Sequence[str]) -> Path:
    """Return the path of a header, precompiled by g++ with ``options``, that includes the headers ``names``."""
    text = "".join(f"#include <{name}>\n" for name in names[1:])
    text = f'#include "{SOURCE / names[0]}"\n{text}'
    digest = hashlib.blake2b("\0".join([*options, text, _headers_text()]).encode(), digest_size=12).hexdigest()
    header = cache_folder() / f"{digest}.hpp"
    parsed = header.with_suffix(".hpp.gch")
    if not parsed.exists():
        with tempfile.TemporaryDirectory(dir=header.parent) as folder:
            made = Path(folder, "made.hpp")
            made.write_text(text)
            run([_compiler(), *options, "-x", "c++-header", str(made), "-o", f"{made}.gch"])
            made.replace(header)
            Path(f"{made}.gch").replace(parsed)
    return header


def built(
    options: Sequence[str], sources: Sequence[Path], libraries: Sequence[str], key: str, linked_apart: bool = False
) -> Path:
    """Return the path of the library that g++ builds from ``sources``; if it is in the cache folder, nothing is built.

    Args:
        options: the options of g++.
        sources: the source files.
        libraries: further arguments for linking.
        key: text that, with the options, identifies the library in the cache; it must change if the sources change.
        linked_apart: compile and link in two calls, and add the table of `_shared_spans`.
    """
    digest = hashlib.blake2b("\0".join([*options, key]).encode(), digest_size=12).hexdigest()
    library = cache_folder() / f"{digest}.so"
    if library.exists():
        return library
    compiler = _compiler()
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made, compiled = Path(folder, "made.so"), Path(folder, "made.o")
        if linked_apart:  # else libtsan would be linked
            run([compiler, *options, "-c", *map(str, sources), "-o", str(compiled)])
            spans = Path(folder, "spans.cpp")
            spans.write_text(_shared_spans(run(["objdump", "-t", str(compiled)])))
            run([compiler, "-shared", "-fPIC", str(compiled), str(spans), "-o", str(made)])
        else:
            run([compiler, *options, *map(str, sources), "-o", str(made), *libraries])
        made.replace(library)
    return library


def _compiler() -> str:
    if (compiler := shutil.which("g++")) is None:
        raise FileNotFoundError("the emulated device is built by g++, which is missing; install g++")
    return compiler


def _shared_spans(symbols: str) -> str:
    """Return C++ source with a table of the begin and end of each shared-memory array, from an object file's symbols.

    The arrays are adjacent, so that an access beyond the end of one is detected only by this table; a gap follows the
    last array. For each kernel the source also has the total bytes of shared memory: of the arrays that the kernel
    declares, and of the arrays that belong to no kernel.
    """
    found = re.findall(r"^(\w+) .{7} flnb_shared\t(\w+) +(\S+)", symbols, re.M)
    arrays = [(int(begin, 16), int(size, 16), _function_of(name)) for begin, size, name in found if int(size, 16)]
    numbers = "".join(f"{begin}, {begin + size}, " for begin, size, _ in sorted(arrays))
    gap = '__attribute__((section("flnb_shared"), used)) static char gap[4096];\n' if arrays else ""
    kernels = re.findall(r" flnb_enter_(\w+)$", symbols, re.M)
    totals = {name: sum(size for *_, size, of in arrays if of == name or of not in kernels) for name in kernels}
    shared = "".join(f"extern const unsigned long flnb_static_shared_{name} = {n};\n" for name, n in totals.items())
    return f'{gap}extern "C" {{ extern const unsigned long flnb_shared_spans[] = {{{numbers}0, 0}};\n{shared}}}\n'


def _function_of(symbol: str) -> str:
    """Return the function that declares a variable, given the variable's symbol: "f" for ``_ZZ1fE4part``."""
    match = re.match(r"_ZZL?(\d+)", symbol)
    return symbol[match.end() :][: int(match[1])] if match else ""


def run(command: Sequence[str], **environment: str) -> str:
    """Run a command with additional environment variables and return its output.

    Raises:
        CompileError: the command failed; the error has the command's output.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    if done.returncode:
        raise CompileError(done.stderr.strip())
    return done.stdout


def _text_of(paths: object) -> str:
    return "\0".join(path.read_text() for path in sorted(paths))  # type: ignore[call-overload]
