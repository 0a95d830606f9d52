"""Machine code on disk: what is stored is read, what is damaged is made anew, and processes share it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier, BrokenBarrierError
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


def test_threads_at_once_share_one_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one would be freed, with machine code in use."""
    made, both = [], Barrier(2)

    class Slow(llvm.Compiler):
        def __init__(self) -> None:
            made.append(self)
            with contextlib.suppress(BrokenBarrierError):
                both.wait(0.2)  # a second thread that makes one meets this one here

    monkeypatch.setattr(llvm, "Compiler", Slow)
    monkeypatch.setattr(llvm, "_compiler", cache(lambda: llvm.Compiler()))
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: llvm.compiler(), range(2))
    assert one is other
    assert len(made) == 1


def test_wrong_text_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="expected"):
        llvm.compiler().compiled("define void @f() { nonsense }")


SCATTERED = """
import ctypes, mmap
from flnb_backends.native.llvm import Compiler

text = '''
@table = private constant [4 x double] [double 1.5, double 2.5, double 3.5, double 4.5]
declare double @exp(double)
define double @f(i64 %i) {
  %place = getelementptr [4 x double], ptr @table, i64 0, i64 %i
  %x = load double, ptr %place
  %y = call double @exp(double %x)
  ret double %y
}'''
compiler = Compiler()
code = compiler.compiled(text)
pages = [mmap.mmap(-1, mmap.PAGESIZE) for _ in range(400)]
far = mmap.mmap(-1, 5 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)  # below them; takes no memory
for page in pages[::2]:
    page.close()  # room for one page, and the next room is 5 GiB away
for _ in range(300):
    f = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64)(compiler._load("f", code))
    assert abs(f(1) - 12.182493960703473) < 1e-9
"""


@pytest.mark.skipif(sys.platform != "linux", reason="flags of Linux's mmap")
def test_code_and_constants_are_together_in_a_scattered_address_space() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(p) for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", SCATTERED], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_code_that_cannot_be_loaded_leaves_room_for_others(folder: Path) -> None:
    with pytest.raises(RuntimeError):
        llvm.compiler()._load("f", b"no object file at all")
    double()
