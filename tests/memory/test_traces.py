"""Traces: what a recorded program asked of its manager, in order."""

from __future__ import annotations

import numpy as np
import pytest

import flnb
from flnb.memory import Caching, Trace

pytestmark = pytest.mark.usefixtures("nothing_held")


def recorded() -> flnb.telemetry.Recording:
    with flnb.use_memory_manager(Caching()):
        kept = flnb.ones((256, 256))
        with flnb.record("small") as run, flnb.scope("block"):
            for _ in range(3):
                kept = kept + 1.0
        del kept
    return run


def test_a_recording_tells_what_was_asked_in_order() -> None:
    run = recorded()
    trace = flnb.memory.trace(run)
    size = 256 * 256 * 4
    # the first sum comes while what was there before lives; from then on each one that goes makes room for the next
    assert trace.calls.tolist()[:2] == [1, 2]
    assert trace.nbytes.tolist() == [size] * 4
    assert trace.peak_live == 2 * size
    assert [trace.op[k] for k in range(1, 4)] == ["add"] * 3
    assert trace.scope[1] == "block"
    assert trace.shapes[1] == (256, 256)
    assert (np.diff(trace.t) >= 0).all()


def test_lifetimes_are_the_calls_that_make_and_free() -> None:
    trace = Trace.of_calls([1, 2, -1, 3], [512, 1024, 2048])
    born, died = trace.lifetimes
    assert born.tolist() == [0, 1, 3]
    assert died.tolist() == [2, 4, 4]


@pytest.mark.parametrize(
    ("calls", "sizes", "says"),
    [
        ([1, -1, -1], [8], "call 2 frees allocation 1, which is not allocated at that point"),
        ([-1, 1], [8], "call 0 frees allocation 1"),
        ([2, 1], [8, 8], "expected the allocations 1 to 2 in this order"),
        ([1], [-8], "expected sizes of 0 or more bytes, got -8"),
    ],
)
def test_a_trace_that_no_program_can_make_is_refused(calls: list[int], sizes: list[int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Trace.of_calls(calls, sizes)


def test_a_run_without_allocations_says_why() -> None:
    with flnb.record() as run:
        pass
    with pytest.raises(ValueError, match="has no allocation; tensors smaller than the manager's min_block"):
        flnb.memory.trace(run)


def test_what_is_no_source_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"expected a recording .*, got int"):
        flnb.memory.trace(3)


def test_more_live_bytes_than_numbers_can_hold_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the live bytes of 'trace' are more than 2\*\*62, which no device can hold"):
        Trace.of_calls([1, 2], [2**62, 2**62]).live  # noqa: B018
    assert Trace.of_calls([1, -1, 2], [2**61, 2**61]).peak_live == 2**61
