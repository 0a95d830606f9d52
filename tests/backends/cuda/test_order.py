"""Order of streams: each record, wait, note and stream argument of the backend and its manager is needed."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from tests.backends.cuda.ordered import PROGRAMS
from tests.backends.cuda.removals import Removal, functions, removals, without

if TYPE_CHECKING:
    from flnb.testing.cuda import EmulatedDevice

ORDERS = 50
ALL = tuple(dict.fromkeys(program for programs in PROGRAMS.values() for program in programs))
code = cache(functions)


def found(program: Any, cuda: EmulatedDevice, order: Any, seed: int) -> str:
    """What is wrong with a program in an order: numbers, or what the device has reported; "" if nothing."""
    cuda.begin(order, seed)
    try:
        program(cuda)
        assert cuda.reports == []
    except (AssertionError, RuntimeError, AttributeError, pytest.fail.Exception) as error:
        return f"{type(error).__name__} {error}"
    finally:
        cuda.begin()
    return ""


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.__name__)
def test_programs_are_right_in_every_order(program: Any, cuda: EmulatedDevice) -> None:
    for order, seed in [("eager", 0), ("lazy", 0), *[("random", seed) for seed in range(4)]]:
        assert found(program, cuda, order, seed) == "", (order, seed)


def test_every_place_has_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """A function that orders streams, and is new, has to name the programs that need it."""
    assert {removal.where for removal in removals()} == set(PROGRAMS)
    assert len(removals()) > 80
    with capsys.disabled():
        count = len(removals())
        print(f"\n{count} places order streams; without each, one of {len(ALL)} programs fails in {ORDERS} orders")


@pytest.mark.parametrize("function", PROGRAMS)
def test_each_place_is_needed(function: str, cuda: EmulatedDevice) -> None:
    """Without it a program is wrong, or a race is named, within 50 orders."""

    def needed(removal: Removal) -> bool:
        with without(removal, code()):
            return any(found(program, cuda, "random", i) for i in range(ORDERS) for program in PROGRAMS[function])

    assert [str(each) for each in removals() if each.where == function and not needed(each)] == []
    for program in PROGRAMS[function]:  # what was wrong has left nothing behind, for which the next would seem needed
        assert found(program, cuda, "random", 0) == ""
