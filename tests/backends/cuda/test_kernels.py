"""Every kernel's text: NVRTC compiles it for devices that there are, g++ for the emulated one."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from typing import Any

import pytest
from flnb_backends.tensor.cuda.compiler import compile_kernels, kernel_names

from benchmarks.kernels import ARCHITECTURES, files, text_of
from flnb.testing.cuda import building

FILES = files()


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("file", FILES)
def test_nvrtc_compiles_it_without_spills(file: str, arch: str) -> None:
    if find_spec("nvidia") is None and "CI" not in os.environ:
        pytest.skip("NVRTC is not installed")
    text = text_of(file)
    image, usage = compile_kernels(text, arch)
    assert image.startswith(b"\x7fELF")
    assert set(usage) == set(kernel_names(text))
    for name, used in usage.items():
        assert used.spilled == 0, name
        assert 0 < used.registers <= 128, name
        assert used.shared <= 48 << 10, name


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("file", FILES)
def test_nvrtc_compiles_it_for_other_dtypes(file: str, dtype: str) -> None:
    if find_spec("nvidia") is None and "CI" not in os.environ:
        pytest.skip("NVRTC is not installed")
    assert compile_kernels(
        text_of(file, T=dtype, **dict.fromkeys("AF", "float64" if dtype == "float64" else "float32")), "sm_90"
    ).usage


@pytest.mark.parametrize("file", FILES)
def test_both_compilers_get_the_same_text(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What g++ compiles is NVRTC's text between a header and a footer, which define no part of a kernel."""
    if shutil.which("g++") is None and "CI" not in os.environ:
        pytest.skip("g++ is not installed")
    seen: list[str] = []

    def built(options: Any, sources: Any, *more: Any, **how: Any) -> str:
        seen.append(sources[0].read_text())
        return "library"

    monkeypatch.setattr(building, "built", built)
    text = text_of(file)
    building.build_kernels(text)
    before, _, after = seen[0].partition(f"{text}\n")
    assert after.split() == [f"FLNB_KERNEL({name})" for name in kernel_names(text)]
    assert len(before.splitlines()) == 2
    assert all(line.startswith(("#include", "#line")) for line in before.splitlines())
