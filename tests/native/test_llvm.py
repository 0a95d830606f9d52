"""Machine code on disk: what is stored is read, what is damaged is made anew, and processes share it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_backends.native import llvm, nests

from flnb.graph.nests import Nest
from tests.native.oracle import access, load, run, step

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, for a process that knows no kernel yet."""
    monkeypatch.setenv("FLNB_CACHE", str(tmp_path))
    monkeypatch.setattr(nests, "_kernels", {})
    return tmp_path / "native"


def double(expect: float = 2.0) -> None:
    x, y = np.arange(5, dtype="f"), np.zeros(5, "f")
    run(Nest((5,), (), (access(x, (1,)),) * 2, (load(0), step("add", 0, 0)), ((1, 1),)), [x, y])
    np.testing.assert_array_equal(y, expect * x)


def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are compiled from now on."""
    texts: list[str] = []
    compiled = llvm.Compiler.compiled

    def counting(self: Any, text: str) -> bytes:
        texts.append(text)
        return compiled(self, text)

    monkeypatch.setattr(llvm.Compiler, "compiled", counting)
    return texts


def test_compiled_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = compilations(monkeypatch)
    double()
    double()
    assert len(texts) == 1
    assert len(list(folder.iterdir())) == 1
    nests._kernels.clear()  # as in another process
    double()
    assert len(texts) == 1


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_damaged_files_are_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes | None) -> None:
    double()
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage if damage is not None else whole[:-1] + bytes([whole[-1] ^ 1]))
    nests._kernels.clear()
    texts = compilations(monkeypatch)
    double()
    assert len(texts) == 1
    assert file.read_bytes() == whole
    assert list(folder.iterdir()) == [file]


def test_without_a_folder_that_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLNB_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(nests, "_kernels", {})
    double()


def test_another_version_is_another_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    double()
    nests._kernels.clear()
    monkeypatch.setattr(llvm.compiler(), "version", "another")
    double()
    assert len(list(folder.iterdir())) == 2


def test_two_processes_at_once(folder: Path) -> None:
    program = "from tests.native.test_llvm import double; double()"
    paths = os.pathsep.join(str(p) for p in sys.path if p)
    environment = {**os.environ, "PYTHONPATH": paths}
    running = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(2)]
    assert [process.wait(120) for process in running] == [0, 0]
    assert len(list(folder.iterdir())) == 1
    double()


def test_without_llvmlite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    with pytest.raises(ImportError, match=r"compiling kernels needs llvmlite; .* pip install 'flnb\[cpu\]'"):
        llvm.Compiler()


def test_wrong_text_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="expected"):
        llvm.compiler().compiled("define void @f() { nonsense }")
