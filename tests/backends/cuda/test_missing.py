"""What is missing for CUDA is named, and nobody who uses another backend pays for it: each in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest

WITHOUT_DRIVER = """
from flnb_backends.tensor.cuda import driver
driver.Driver.__init__.__defaults__ = ("libcuda-that-is-absent.so.1",)
"""
WITHOUT_GPU = """
from flnb_backends.tensor.cuda import driver
def fail(self, path=""):
    raise driver.DriverError("cuInit", "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected")
driver.Driver.__init__ = fail
"""
EMULATED = """
from flnb.testing.cuda import emulate
emulate()
"""
needs_cupy = pytest.mark.skipif(find_spec("cupy") is None and "CI" not in os.environ, reason="CuPy is not installed")
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None and "CI" not in os.environ, reason="g++ is not installed")


def run(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=250, check=False)


def error(program: str) -> str:
    """The last line that a program writes, which fails."""
    done = run(program)
    assert done.returncode == 1, done.stdout
    return done.stderr.strip().splitlines()[-1]


def test_other_backends_load_neither_cupy_nor_the_driver() -> None:
    done = run("""
import sys
import flnb
x = flnb.Variable(flnb.ones(3))
(x * x).sum().backward()
assert "cupy" not in sys.modules and "flnb_backends.tensor.cuda.backend" not in sys.modules
maps = open("/proc/self/maps").read()
assert "libcuda" not in maps and "nvrtc" not in maps
""")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("use", ["flnb.set_backend('cuda')", "flnb.use_backend('cuda').__enter__()"])
def test_without_cupy_the_extra_is_named(use: str) -> None:
    said = error(f"import sys\nsys.modules['cupy'] = None\nimport flnb\n{use}")
    assert said == "ImportError: flnb: the cuda backend needs cupy; install it with: pip install 'flnb[cuda]'"


HIDING = """
import importlib.util
from importlib.machinery import PathFinder
found = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name in {hidden} else found(name, *rest)
"""


@needs_cupy
@needs_gxx
@pytest.mark.parametrize(
    ("setup", "lacking"),
    [
        (HIDING.format(hidden=["cupy"]), "cupy-cuda13x"),
        (
            "from flnb_backends.tensor.cuda import compiler\ncompiler._packages = lambda name: []",
            "nvidia-cuda-runtime, nvidia-cuda-crt",
        ),
        (
            HIDING.format(hidden=["Cython", "pip"])
            + "from pathlib import Path\nfrom flnb.testing.cuda import wheel\n"
            + "wheel.cache_folder = lambda: Path('absent')",
            "cython, pip",
        ),
    ],
)
def test_what_the_emulated_devices_cupy_lacks_is_named_with_its_extra(setup: str, lacking: str) -> None:
    said = error(f"import flnb.testing.cuda\n{setup}\n{EMULATED}")
    assert said == (
        f"RuntimeError: CuPy on the emulated device needs {lacking}, not installed: pip install 'flnb[cuda-emulated]'"
    )


@needs_cupy
@pytest.mark.parametrize(
    "use", ["flnb.set_backend('cuda')", "flnb.ones(3).to('cuda:0')", "flnb.set_memory_device('cuda')"]
)
def test_without_a_driver_it_and_the_emulated_device_are_named(use: str) -> None:
    said = error(f"import flnb\n{WITHOUT_DRIVER}\n{use}")
    assert said.startswith("RuntimeError: cuda: there is no NVIDIA driver (libcuda-that-is-absent.so.1: cannot open")
    assert "flnb.testing.cuda.emulate()" in said


@needs_cupy
def test_a_driver_without_a_gpu_is_told_from_no_driver() -> None:
    said = error(f"import flnb\n{WITHOUT_GPU}\nflnb.set_backend('cuda')")
    assert "the NVIDIA driver finds no usable GPU (cuInit: CUDA_ERROR_NO_DEVICE (no CUDA-capable device" in said


@needs_cupy
@needs_gxx
def test_a_device_that_is_not_there() -> None:
    done = run(f"""{EMULATED}
import flnb
for use in (lambda: flnb.set_backend("cuda:7"), lambda: flnb.ones(3).to("cuda:7")):
    try:
        use()
    except ValueError as error:
        print(error)
assert flnb.set_backend("cuda:1").name == "cuda:1"
""")
    expected = "cuda: got device 7, expected a number from 0 to 1 (devices: 2)"
    assert (done.stdout.splitlines(), done.returncode) == ([expected] * 2, 0), done.stderr


def report(program: str = "") -> dict[str, str]:
    """The rows of the doctor's report in a fresh interpreter."""
    done = run(f"{program}\nfrom flnb.doctor import doctor\nprint(doctor())")
    assert done.returncode == 0, done.stderr
    return {name.strip(): text for line in done.stdout.splitlines() for name, _, text in [line.partition("  ")]}


def test_doctor_names_what_cuda_lacks() -> None:
    rows = report(f"""{WITHOUT_DRIVER}
import os
from flnb_backends.tensor.cuda import compiler
import importlib.metadata
compiler._places = list
found = importlib.metadata.version
def version(name):
    if "cu" in name:
        raise importlib.metadata.PackageNotFoundError
    return found(name)
importlib.metadata.version = version
os.environ["PATH"] = "/nowhere"
""")
    assert "no NVIDIA driver (libcuda-that-is-absent" in rows["cuda driver"]
    assert "emulate()" in rows["cuda driver"]
    assert "pip install 'flnb[cuda]'" in rows["cupy"]
    assert "pip install nvidia-cuda-nvrtc" in rows["nvrtc"]
    assert rows["cudnn frontend"].strip().startswith("not installed")
    assert "install Debian's g++ package" in rows["g++"]
    assert "cuda:0" not in rows


@needs_gxx
def test_doctor_lists_devices_and_does_not_import_cupy() -> None:
    rows = report("""
import atexit, sys
from flnb.testing.cuda import emulated_device
from flnb_backends.tensor.cuda.driver import use_driver
use_driver(emulated_device().driver)
atexit.register(lambda: print("imported ", "cupy" in sys.modules))
""")
    assert rows["cuda driver"].strip().startswith("CUDA 13.0 ")
    for name in ("cuda:0", "cuda:1"):
        assert rows[name].strip() == "flnb emulated device (on the CPU), 0.1 GiB, compute capability 9.0"
    assert rows["imported"].strip() == "False"
