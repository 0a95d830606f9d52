"""The committed table of what kernels need: that it is of today's kernels, and how occupancies are computed."""

from __future__ import annotations

import json
import os
import shutil
from importlib.util import find_spec

import pytest
from flnb_backends.tensor.cuda.compiler import compile_kernels, kernel_names

from benchmarks import kernels
from benchmarks.kernels import ARCHITECTURES, active_blocks, digest, files, text_of
from benchmarks.report import RESULTS

if (shutil.which("g++") is None or find_spec("nvidia") is None) and "CI" not in os.environ:
    pytest.skip("g++ or NVIDIA's headers are not installed", allow_module_level=True)

ROWS = json.loads((RESULTS / "kernels.json").read_text())["rows"]


def test_the_table_is_of_todays_kernels() -> None:
    """If not, run `python -m benchmarks kernels`."""
    known = {(row["file"], row["digest"], row["kernel"], row["arch"]) for row in ROWS}
    kernels = [(file, digest(file), name) for file in files() for name in kernel_names(text_of(file))]
    assert known == {(*kernel, arch) for kernel in kernels for arch in ARCHITECTURES}
    page = (RESULTS / "README.md").read_text()
    assert all(f"| {file} | {name} |" in page for file, _, name in kernels)


def test_no_kernel_spills() -> None:
    assert [row["kernel"] for row in ROWS if row["arch"] == "sm_90" and row["spilled"]] == []


def test_registers_are_those_that_the_assembler_reports() -> None:
    """Another version of NVRTC may need some more or fewer."""
    usage = compile_kernels(text_of("reductions"), "sm_90").usage
    for row in ROWS:
        if (row["file"], row["arch"]) == ("reductions", "sm_90"):
            used = usage[row["kernel"]]
            assert (used.shared, used.spilled) == (row["shared"], row["spilled"])
            assert abs(used.registers - row["registers"]) <= 8


@pytest.mark.parametrize(
    ("arch", "registers", "shared", "threads", "blocks"),
    [
        ("sm_90", 32, 0, 256, 8),  # 2048 threads
        ("sm_90", 40, 0, 256, 6),  # 65536 / (256 * 40) = 6.4
        ("sm_90", 255, 0, 256, 1),
        ("sm_90", 32, 48 << 10, 256, 4),  # 228 KiB / 49 KiB
        ("sm_75", 32, 0, 256, 4),  # 1024 threads
        ("sm_120", 32, 0, 1024, 1),  # 1536 threads
        ("sm_80", 32, 0, 32, 32),  # the most blocks
    ],
)
def test_occupancies_worked_out_by_hand(arch: str, registers: int, shared: int, threads: int, blocks: int) -> None:
    assert active_blocks([(*ARCHITECTURES[arch], registers, shared, threads, 0)]) == [blocks]


def test_a_changed_kernel_has_another_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    before, text = digest("scans"), text_of("scans")
    monkeypatch.setattr(kernels, "text_of", lambda file: f"// a remark\n{text}")
    assert digest("scans") == before
    monkeypatch.setattr(kernels, "text_of", lambda file: text.replace("<", "<=", 1))
    assert digest("scans") != before
