"""Launches flnb's own kernels: CUDA C in the folder ``kernels``, compiled when needed for the dtypes of a call."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from flnb_backends.tensor.cuda.driver import Driver

FOLDER = Path(__file__).parent / "kernels"
TYPES = {
    "bool": "bool", "int8": "signed char", "uint8": "unsigned char", "int16": "short", "uint16": "unsigned short",
    "int32": "int", "uint32": "unsigned", "int64": "long long", "uint64": "unsigned long long", "float16": "half",
    "float32": "float", "float64": "double",
}  # fmt: skip
"""The CUDA C type of each dtype."""
THREADS, BLOCKS = 256, 1 << 14
"""The launch configuration of kernels with a grid-stride loop: threads of a block, and the most blocks."""


@cache
def kernel_text(file: str, types: tuple[tuple[str, str], ...]) -> str:
    """Return the source of ``kernels/FILE.cu``, preceded by typedefs for the types that the source does not define.

    ``#include`` lines for files of the folder are replaced by the files' texts.

    Args:
        file: the name of the file, without ".cu".
        types: pairs of a name in the source and a dtype's name.

    >>> from flnb_backends.tensor.cuda.launcher import kernel_text
    >>> kernel_text("creation", (("T", "float32"),)).partition(";")[0]
    'typedef float T'
    """
    half = "#include <cuda_fp16.h>\n" if any(dtype == "float16" for _, dtype in types) else ""
    named = "".join(f"typedef {TYPES[dtype]} {name};\n" for name, dtype in types)
    return f"{half}{named}{included(f'{file}.cu')}"


def included(name: str) -> str:
    """Return the text of a file in the folder, with its ``#include`` lines replaced by the files' texts."""
    return re.sub(r'#include "(\w+\.cuh)"\n', lambda match: included(match[1]), (FOLDER / name).read_text())


class Launcher:
    """The kernels of one device; each is compiled and loaded at the first launch with given dtypes.

    Args:
        driver: the driver API.
        ordinal: the device's number.
        stream: returns the stream in which kernels run; by default the default stream, 0.
    """

    def __init__(self, driver: Driver, ordinal: int = 0, stream: Callable[[], int] = int) -> None:
        self.driver, self.ordinal, self.stream = driver, ordinal, stream
        self.kernels: dict[tuple[Any, ...], int] = {}

    def launch(
        self, file: str, name: str, types: dict[str, np.dtype[Any]], blocks: Sequence[int], threads: Sequence[int],
        *arguments: Any, shared: int = 0,
    ) -> None:  # fmt: skip
        """Launch the kernel ``name`` of ``kernels/FILE.cu``.

        Args:
            file: the name of the file, without ".cu".
            name: the name of the kernel.
            types: a dict from the name of a type that the source does not define to the dtype.
            blocks: the extents of the grid in blocks, one to three.
            threads: the extents of a block in threads, one to three.
            arguments: arrays of the device (objects with ``data.ptr``), ints for parameters of type ``long long``,
                NumPy scalars for others.
            shared: bytes of dynamic shared memory of each block.

        Raises:
            CompileError: the kernel does not compile.
            DriverError: the device reports an error.
        """
        key = file, name, *[dtype.char for dtype in types.values()]
        kernel = self.kernels.get(key)
        if kernel is None:
            text = kernel_text(file, tuple((name, dtype.name) for name, dtype in types.items()))
            kernel = self.kernels[key] = self.loaded(text, name)
        given = [
            value.data.ptr if hasattr(value, "data") and hasattr(value.data, "ptr") else value for value in arguments
        ]
        self.driver.launch(kernel, blocks, threads, given, self.stream(), shared)

    def loaded(self, text: str, name: str) -> int:
        """Compile CUDA C source and load it; returns its kernel of this name.

        Raises:
            CompileError: the source does not compile.
        """
        with self.driver.using(self.ordinal):
            return self.driver.kernel(self.driver.load(self.driver.build(text, self.ordinal)), name)

    def launch_each(self, file: str, name: str, types: dict[str, np.dtype[Any]], items: int, *arguments: Any) -> None:
        """Launch a kernel with a grid-stride loop over ``items`` items, as `launch` does; without items do nothing."""
        if items:
            self.launch(file, name, types, (min(-(-items // THREADS), BLOCKS),), (THREADS,), *arguments)
