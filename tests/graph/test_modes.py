"""The paper's Figure 2, from events: when each mode calls, compiles and runs ops, and when it allocates memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import flnb
from flnb.memory import Caching, HostDevice

if TYPE_CHECKING:
    from flnb_telemetry import Recording

pytest.importorskip("llvmlite")


class Everything(HostDevice):
    """Memory in which also the smallest tensors have blocks, and so events."""

    min_block = 0


def function(x: Any, w: Any) -> Any:
    h = flnb.matmul(x, w)
    h = flnb.tanh(h + 1.0) * 0.5
    return flnb.sum(h * h)


def observe(backend: str, jit: bool, calls_before: int) -> Recording:
    """Record a call of the function in a scope "call", and the request of its value in a scope "ask"."""
    with flnb.use_backend(backend), flnb.use_memory_manager(Caching(Everything())):
        x, w = flnb.ones((64, 32)), flnb.ones((32, 48))
        f = flnb.jit(function) if jit else function
        with flnb.record("before"):  # as the recorded call: a program tells of its ops' scopes
            for _ in range(calls_before):
                with flnb.scope("call"):
                    y = f(x, w)
                with flnb.scope("ask"):
                    y.item()
        y = None
        with flnb.record("mode") as run:
            with flnb.scope("call"):
                y = f(x, w)
            with flnb.scope("ask"):
                value = y.item()
    h = 0.5 * np.tanh(np.full((64, 48), 33.0))
    assert value == pytest.approx((h * h).sum(), rel=1e-5)
    return run


def moments(run: Recording) -> tuple[int, int, int, int]:
    """When the call began and ended, when the value was asked for, and when it was there."""
    scope = run.table("scope")
    names = [run.catalog.contexts.items[context].scope for context in scope["context"].tolist()]
    assert (names[0], names[2]) == ("call", "ask")
    begin, end, asked, ready = scope["t"].tolist()
    return begin, end, asked, ready


def spans(run: Recording, *kinds: str) -> Any:
    """Beginnings and ends of events, shape (2, n); of ops those that ran alone."""
    tables = [run.table(kind) for kind in kinds]
    chosen = [table["estimated"] == 0 if "estimated" in table else slice(None) for table in tables]
    return np.concatenate(
        [[table["t0"][rows], table["t1"][rows]] for table, rows in zip(tables, chosen, strict=True)], 1
    )


def programs(run: Recording) -> Any:
    """Like `spans`, of the compilations of programs; those of an op's first call have no calls of a program."""
    return spans(run, "compile")[:, run.table("compile")["calls"] > 0]


def within(run: Recording, kinds: tuple[str, ...], begin: int, end: int) -> bool:
    """Whether there are events of these kinds, and all are between two times."""
    t0, t1 = spans(run, *kinds)
    return len(t0) > 0 and bool((t0 >= begin).all() and (t1 <= end).all())


def test_eager_runs_each_op_in_its_call() -> None:
    run = observe("numpy", jit=False, calls_before=1)
    begin, end, _, _ = moments(run)
    assert within(run, ("op",), begin, end)
    for kind in ("record", "materialize", "compile", "kernel"):
        assert len(run.table(kind)["t0"]) == 0, kind


@pytest.mark.parametrize("calls_before", [0, 1, 3, 4])
def test_deferred_records_in_the_call_and_runs_when_the_value_is_asked_for(calls_before: int) -> None:
    run = observe("deferred", jit=False, calls_before=calls_before)
    begin, end, asked, ready = moments(run)
    recorded = run.table("record")["t0"]
    assert np.count_nonzero((recorded >= begin) & (recorded <= end)) == 6
    assert within(run, ("op", "kernel"), asked, ready)
    assert within(run, ("materialize",), asked, ready)
    assert within(run, ("op", "kernel"), *spans(run, "materialize")[:, 0].tolist())
    compiled = programs(run)
    assert compiled.shape[1] == (calls_before == 3)
    if calls_before == 3:
        assert asked <= compiled[0, 0]
        assert compiled[1, 0] <= spans(run, "materialize")[0, 0] <= spans(run, "op", "kernel")[0].min()


@pytest.mark.parametrize("calls_before", [0, 1, 3, 4])
def test_nothing_is_allocated_before_a_value_is_asked_for(calls_before: int) -> None:
    run = observe("deferred", jit=False, calls_before=calls_before)
    begin, end, asked, _ = moments(run)
    allocated = run.table("alloc")["t"]
    before = np.count_nonzero((allocated >= begin) & (allocated <= end))
    assert before == 0
    assert run.memory.at((asked - run.start) / 1e9).allocated == run.memory.at((begin - run.start) / 1e9).allocated
    if calls_before < 4:  # later the block of the program is there
        assert np.count_nonzero(allocated >= asked) > 0


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_jit_compiles_in_the_second_call_and_launches_in_later_ones(backend: str) -> None:
    try:
        flnb.backends.CpuBackend()
    except (ImportError, OSError) as error:
        pytest.skip(str(error))
    captured, repeated = (observe(backend, jit=True, calls_before=n) for n in (1, 2))
    for run in (captured, repeated):
        begin, end, _, _ = moments(run)
        assert within(run, ("op", "kernel"), begin, end), "what a call returns is there"
        assert len(run.table("kernel")["t0"]) == 1
        assert spans(run, "op").shape[1] == 1, "the product of matrices is a call of the library"
    compiled = programs(captured)
    assert compiled.shape == (2, 1)
    assert moments(captured)[0] <= compiled[0, 0] < compiled[1, 0] <= spans(captured, "op", "kernel")[0].min()
    recorded = captured.table("record")["t0"]
    assert len(recorded) == 6
    assert ((recorded >= compiled[0, 0]) & (recorded <= compiled[1, 0])).all()
    for kind in ("record", "compile", "materialize"):
        assert len(repeated.table(kind)["t0"]) == 0, kind


def test_the_figure_has_what_the_events_tell() -> None:
    pytest.importorskip("plotly")
    runs = {"eager": observe("numpy", jit=False, calls_before=1), "deferred": observe("deferred", False, 4)}
    figure = flnb.plot.modes(runs)
    assert [note.text for note in figure.layout.annotations] == list(runs)
    traces = [trace for trace in figure.data if trace.yaxis == "y2"]
    begin, _, asked, ready = moments(runs["deferred"])
    (line,) = [trace for trace in traces if trace.name == "waits for the value"]
    assert list(line.x) == pytest.approx([(asked - begin) / 1e6, (ready - begin) / 1e6])
    (kernel,) = [trace for trace in traces if trace.name == "fused kernel"]
    assert list(kernel.base) == pytest.approx((spans(runs["deferred"], "kernel")[0] - begin) / 1e6)
    (calls,) = [trace for trace in traces if trace.name == "call or record"]
    assert len(calls.x) == 6
    with flnb.record("other") as other:
        flnb.ones(3)
    with pytest.raises(ValueError, match="has no scope 'ask': read the value inside"):
        flnb.plot.modes({"other": other})
    with pytest.raises(ValueError, match="got no recordings"):
        flnb.plot.modes({})
