"""The kernels' text, which g++ compiles for the emulated device, compiled by NVRTC for devices that there are."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from flnb_backends.tensor.cuda import compiler
from flnb_backends.tensor.cuda.compiler import CompileError, compile_kernels, kernel_names

TEXT = (Path(__file__).parent / "kernels.cu").read_text()

if find_spec("nvidia") is None and "CI" not in os.environ:
    pytest.skip("NVRTC is not installed", allow_module_level=True)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"])
def test_nvrtc_compiles_the_same_text_for_every_architecture(arch: str) -> None:
    image, usage = compile_kernels(TEXT, arch)
    assert image.startswith(b"\x7fELF")
    assert set(usage) == set(kernel_names(TEXT))
    assert usage["matmul"].shared == 2 * 16 * 17 * 4
    assert usage["block_sum"].shared == 128
    assert all(0 < used.registers <= 255 and used.spilled == 0 for used in usage.values()), usage


def test_an_error_shows_the_line() -> None:
    with pytest.raises(CompileError, match=r'identifier "nonsense" is undefined\n    2 \|   x\[0\] = nonsense;'):
        compile_kernels('extern "C" __global__ void one(float *x) {\n  x[0] = nonsense;\n}\n', "sm_90")


def test_an_image_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLNB_CACHE", str(tmp_path))
    text = 'extern "C" __global__ void one(float *x) { x[0] = 1; }'
    first = compile_kernels(text, "sm_90")
    assert sorted(path.suffix for path in tmp_path.rglob("*.*")) == [".cubin", ".log"]
    monkeypatch.setattr(compiler, "_compiled", None)
    assert compile_kernels(text, "sm_90") == first
    with pytest.raises(TypeError):  # another one would have to be compiled
        compile_kernels(text, "sm_80")


def test_without_nvrtc_there_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_places", lambda: iter(["no_such_nvrtc.so"]))
    compiler._library.cache_clear()
    try:
        with pytest.raises(FileNotFoundError, match="pip install nvidia-cuda-nvrtc"):
            compile_kernels(TEXT, "sm_90")
    finally:
        compiler._library.cache_clear()
