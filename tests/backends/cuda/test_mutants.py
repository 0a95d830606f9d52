"""Own kernels that are broken at one place: the tests of the methods that launch them must notice."""

from __future__ import annotations

import os
import random
import shutil

import pytest

from benchmarks.kernels import FOLDER
from tests.backends.cuda.mutants import BREAKS, EQUIVALENT, JUDGES, Mutant, mutants, noticed, reason

if shutil.which("g++") is None and "CI" not in os.environ:
    pytest.skip("g++ is not installed", allow_module_level=True)

FILES = sorted(path.name for path in FOLDER.glob("*.cu*"))
SAMPLE = 12


def test_every_file_has_judges() -> None:
    assert sorted(JUDGES) == FILES


def test_places_are_broken_one_at_a_time() -> None:
    every = [mutant for file in FILES for mutant in mutants(file)]
    assert len(every) > 500
    for mutant in every:
        text = (FOLDER / mutant.file).read_text()
        assert mutant.text != text
        assert len(mutant.text) - len(text) == len(mutant.new) - len(mutant.old)
    kinds = {mutant.old.strip() for mutant in every}
    assert {"__syncthreads();", "0xffffffffu", "<", "threadIdx.x", "gridDim.x", "%"} <= kinds
    assert len(BREAKS) <= len(kinds)


def test_kernels_that_are_not_broken_are_let_pass() -> None:
    assert not noticed(Mutant("scans.cu", 0, "", "", "", (FOLDER / "scans.cu").read_text()))


def judge(count: int, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Judge a sample of mutants of all files."""
    every = [mutant for file in FILES for mutant in mutants(file)]
    sample = random.Random(seed).sample([mutant for mutant in every if not reason(mutant)], count)
    missed = [f"{mutant.file}: {mutant.where}" for mutant in sample if not noticed(mutant)]
    with capsys.disabled():
        print(f"\n{count - len(missed)} of {count} mutants noticed (seed {seed}), of {len(every)} that there are")
    assert missed == []


def test_a_sample_of_broken_kernels_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    judge(8, 0, capsys)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_large_sample_of_broken_kernels_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m tests.backends.cuda.mutants` judges all."""
    judge(40, 1, capsys)


def test_few_mutants_change_no_result() -> None:
    every = [mutant for file in FILES for mutant in mutants(file)]
    assert sum(bool(reason(mutant)) for mutant in every) <= 0.05 * len(every)
    for (file, where), why in EQUIVALENT.items():
        assert any(where in mutant.where for mutant in mutants(file)), f"no such mutant: {file}, {where}, {why}"
