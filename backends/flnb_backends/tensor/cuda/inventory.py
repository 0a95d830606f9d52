"""The components of CUDA on this machine, for `flnb doctor`: driver, devices, libraries and compilers."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from flnb_backends.tensor.cuda.compiler import nvrtc_version
from flnb_backends.tensor.cuda.driver import default_driver

if TYPE_CHECKING:
    from collections.abc import Callable


def inventory(version_of: Callable[[str], str | None]) -> list[tuple[str, str]]:
    """Return, for each component, its name and its version or how to install it. CuPy is not imported.

    Args:
        version_of: returns the installed version of a package, or None.
    """
    try:
        driver = default_driver()
        version = driver.version()
        rows = [("cuda driver", f"CUDA {version // 1000}.{version % 1000 // 10}  ({driver.path})")]
        for i in range(driver.devices()):
            major, minor = driver.capability(i)
            size = f"{driver.capacity(i) / 2**30:.1f} GiB"
            rows.append((f"cuda:{i}", f"{driver.name(i)}, {size}, compute capability {major}.{minor}"))
    except RuntimeError as error:
        rows = [("cuda driver", str(error).removeprefix("cuda: "))]
    try:
        nvrtc = "{}.{}".format(*nvrtc_version())
    except FileNotFoundError as error:
        nvrtc = f"not found: {error}"
    found = [(name, version_of(name)) for name in ("cupy-cuda13x", "cupy-cuda12x", "cupy")]
    cupy = ", ".join(f"{name} {installed}" for name, installed in found if installed)
    cudnn = version_of("nvidia-cudnn-frontend") or "not installed"
    return [
        *rows,
        ("cupy", cupy or "not installed: the cuda backend needs it: pip install 'flnb[cuda]', or [cuda12] for CUDA 12"),
        ("nvrtc", nvrtc),
        ("cudnn frontend", f"{cudnn}  (with it and cuDNN itself, convolutions are cuDNN's; else matrix products)"),
        ("g++", shutil.which("g++") or "not found: install Debian's g++ package for the emulated CUDA device"),
    ]
