"""`pytest -m gpu` and `python -m benchmarks gpu`: what they do, as far as no GPU is needed to see it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.report import RESULTS

ROOT = Path(__file__).parents[3]
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None and "CI" not in os.environ, reason="g++ is not installed")


def run(program: str) -> str:
    """The output of a fresh interpreter in the repository, for which the emulated device is the machine's GPU."""
    program = f"import sys\nfrom flnb.testing.cuda import emulate\nemulate()\n{program}"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@needs_gxx
def test_the_same_tests_run_on_the_machines_device() -> None:
    """The emulated device stands in for a GPU, whose counts a test cannot ask for."""
    said = run("""
import pytest
chosen = "test_place or test_rows_are_read or (test_gradients and add)"
paths = ["tests/backends/cuda/test_indexing.py", "tests/backends/cuda/test_backend.py"]
sys.exit(pytest.main(["-m", "gpu", "-k", chosen, "-p", "no:cacheprovider", *paths]))
""")
    passed, skipped = (int(re.search(rf"(\d+) {word}", said.splitlines()[-1])[1]) for word in ("passed", "skipped"))  # type: ignore[index]
    assert passed >= 10
    assert skipped == 1
    assert "add_rows: only the emulated device counts" in said
    assert all(what in said for what in gpu.UNMEASURED)


def test_what_is_broken_on_purpose_stays_off_a_gpu() -> None:
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(Path(__file__).parent)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    chosen = {line.partition("::")[0].rpartition("/")[2] for line in done.stdout.splitlines() if "::" in line}
    assert {"test_backend.py", "test_whole.py", "test_sorting.py", "test_training.py", "test_gpu.py"} <= chosen
    assert not chosen & {"test_memory.py", "test_mutants.py", "test_traffic.py", "test_missing.py"}


@pytest.mark.gpu
def test_times_of_this_gpu_are_stored() -> None:
    try:
        gpu.gpu_at()
    except (ImportError, RuntimeError) as error:
        pytest.skip(str(error))
    assert gpu.main([]) == 0


@needs_gxx
def test_the_benchmark_runs_everything_and_stores_no_times_of_the_emulated_device() -> None:
    before = sorted(RESULTS.iterdir())
    said = run("from benchmarks import gpu\nsys.exit(gpu.main(['--quick']))")
    for name in ("copy from pinned memory", "softmax", "matmul", "sum of columns", "conv2d 3 x 3, 16 channels"):
        assert f"| {name} | 64 x 64 |" in said
    assert said.rstrip().endswith("Times of the emulated device mean nothing: not stored.")
    assert sorted(RESULTS.iterdir()) == before


def test_the_results_say_what_is_unmeasured() -> None:
    page = (RESULTS / "README.md").read_text()
    assert gpu.unmeasured() in page
    assert len(gpu.UNMEASURED) == 9
