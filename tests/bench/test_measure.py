"""What is made of the numbers of rounds, on numbers that can be checked by hand."""

from __future__ import annotations

from typing import Any, ClassVar

from flnb.bench.measure import Measured, _measured, measure, threads


def test_measured_by_either_clock() -> None:
    turns = [
        [{"wall": 4.0, "processor": 1.0}, {"wall": 2.0, "processor": 0.5}],
        [{"wall": 8.0, "processor": 3.0}, {"wall": 6.0, "processor": 0.5}],
    ]
    assert _measured(turns, 2, "wall") == Measured([2.0, 4.0], [1.0, 3.0], busy=0.25)
    assert _measured(turns, 2, "processor") == Measured([0.5, 1.5], [0.25, 0.25], busy=0.25)


def test_what_is_captured_by_jit_is_captured_before_it_is_timed() -> None:
    class Capturing:
        """Takes 1 s for an iteration, and 100 s for the second one of a kind, as `flnb.jit` does."""

        done: ClassVar = {True: 4, False: 0}  # `Contestant.memory` has run the iterations with the optimizer

        def call(self, _: str, iterations: int, update: bool) -> dict[str, float]:
            first, self.done[update] = self.done[update], self.done[update] + iterations
            spent = sum(100.0 if at == 1 else 1.0 for at in range(first, first + iterations))
            return {"wall": spent, "processor": spent}

    worker: Any = Capturing()
    assert measure([worker], 1, 0.5) == [Measured([1.0], [1.0], 1.0)]


def test_the_columns_of_a_table() -> None:
    measured = Measured([0.01, 0.03, 0.02], [0.001, 0.002, 0.003], 1.0)
    columns = measured.columns({"live": 2_340_000, "grown": 12_600_000, "allocations": 7})
    assert list(columns.values()) == ["2.00", "0.2000", "2.3", "13", 7]
    unknown = measured.columns({"live": None, "grown": None, "allocations": None})
    assert list(unknown.values())[2:] == ["", "", ""]


def test_threads_are_told_to_whatever_computes() -> None:
    assert threads(3) == {"OMP_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "3", "MKL_NUM_THREADS": "3"}
