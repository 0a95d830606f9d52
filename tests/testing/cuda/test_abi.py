"""The emulated device under a binding that is not ours: NVIDIA's cuda.bindings calls it as it calls a GPU's driver."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from flnb.testing.cuda.building import build_device, build_kernels

HERE = Path(__file__).parent

if (shutil.which("g++") is None or find_spec("cuda") is None) and "CI" not in os.environ:
    pytest.skip("g++ or cuda-bindings is not installed", allow_module_level=True)


def test_nvidias_own_binding_finds_the_documented_driver(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").symlink_to(build_device())
    image = build_kernels((HERE / "kernels.cu").read_text())
    command = [sys.executable, str(HERE / "by_cuda_bindings.py"), os.fsdecode(image)]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "every call was answered as documented\n"
