"""The section of frames on programs: kernels with their ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flnb_telemetry import intern, schema
from flnb_telemetry.live.programs import Kernels
from flnb_telemetry.live.recording import LiveRecording
from flnb_telemetry.live.view import Live
from hypothesis import example, given, settings
from hypothesis import strategies as st

import flnb
from flnb.graph.describing import launches

pytest.importorskip("llvmlite")


def column(content: dict[str, Any], buffer: bytes, name: str) -> Any:
    code, offset, count = content["arrays"][name]
    return np.frombuffer(buffer, {"f64": np.float64, "u32": np.uint32}[code], count, offset)


@pytest.fixture(scope="module")
def told() -> Any:
    """A program of two kernels around a product, called three times: recording, first frame, program."""
    rng = np.random.default_rng(0)
    w = flnb.asarray(rng.normal(size=(64, 64)).astype(np.float32))

    def f(x: Any) -> Any:
        y = flnb.exp(x) * 2.0 + 1.0
        z = flnb.matmul(y, w)
        return flnb.sum(flnb.tanh(z) - z)

    jitted = flnb.jit(f)
    x = flnb.ones((64, 64))
    live = Live("programs")
    live.begin()
    with flnb.record("programs") as run:
        for _ in range(5):
            with flnb.step():
                jitted(x).item()
    live.finish()
    return run, live, live.frame(keyframe=True), jitted


def test_kernels_have_the_ops_shares_and_lines_of_the_program(told: Any) -> None:
    run, _, (content, buffer), jitted = told
    found = [each for each in launches(jitted.programs[0]) if each.kind == "kernel"]
    items = content["kernels"]["items"]
    plans, contexts = content["plans"]["items"], content["contexts"]["items"]
    assert [[plans[plan]["op"] for plan, _, _ in each["parts"]] for each in items] == [each.ops for each in found]
    for item, launch in zip(items, found, strict=True):
        shares = [share for _, _, share in item["parts"]]
        assert sum(shares) == pytest.approx(1, abs=1e-3)
        assert shares == pytest.approx(launch.shares, abs=0.05)
        lines = [contexts[context]["line"] for _, context, _ in item["parts"]]
        assert all(line.startswith("test_programs.py:") for line in lines), lines
    assert [item["name"] for item in items] == ["exp+multiply+add 64×64", "tanh+subtract+sum scalar"]

    spent = run.table("kernel")["t1"] - run.table("kernel")["t0"]
    assert column(content, buffer, "kernel.count").sum() == len(spent)
    assert column(content, buffer, "kernel.total").sum() == spent.sum()


def test_a_recording_that_has_ended_has_the_same(told: Any) -> None:
    run, _, (live, _), _ = told
    content, buffer = next(LiveRecording(run).frames())
    assert [each["name"] for each in content["kernels"]["items"]] == [each["name"] for each in live["kernels"]["items"]]
    assert column(content, buffer, "kernel.count").sum() == len(run.table("kernel")["t0"])


def test_a_run_without_programs_has_no_section() -> None:
    live = Live("eager")
    live.begin()
    with flnb.use_backend("numpy"), flnb.record("eager") as run:
        flnb.exp(flnb.ones(3))
    live.finish()
    for content, _ in (live.frame(keyframe=True), next(LiveRecording(run).frames())):
        assert "kernels" not in content


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 2), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(10, 99)),
        max_size=20,
    )
)
@example(launches=[(1, [1, 2, 2, 1], 10), (1, [2, 1, 1, 2], 10)])  # a sum weighted by place was the same for both
@example(launches=[(1, [1], 10), (1, [2], 10), (1, [1], 20)])  # the longest launch of the second is earlier
def test_kernels_of_threads_are_told_apart_by_their_ops(launches: list[tuple[int, list[int], int]]) -> None:
    """Kernels with the same ops have one number, in the order of their first launches, whichever threads run them."""
    catalog = intern.Catalog()
    plans = [catalog.plans.id_of(intern.Plan(f"op{i}", "elementwise", (2,), "float32", 8)) for i in range(5)]
    kernels: dict[str, list[int]] = {name: [] for name in ("lane", "t0", "t1", "plan", "context", "ops")}
    ops: dict[str, list[int]] = {name: [] for name in ("lane", "t0", "t1", "plan", "context", "estimated")}
    for at, (lane, members, ns) in enumerate(launches):
        t0 = 1000 * at
        row = (lane, t0, t0 + ns * len(members), plans[0], 0, len(members))
        for name, value in zip(kernels, row, strict=True):
            kernels[name].append(value)
        for i, member in enumerate(members):
            for name, value in zip(ops, (lane, t0 + ns * i, t0 + ns * i + ns, plans[member], 0, 1), strict=True):
                ops[name].append(value)
    tables = [{name: np.array(column, np.int64) for name, column in table.items()} for table in (kernels, ops)]
    found = Kernels(catalog)
    numbers = found.numbers(tables[0], tables[1]).tolist()
    seen: dict[tuple[int, ...], int] = {}
    for number, (_, members, _) in zip(numbers, launches, strict=True):
        assert seen.setdefault(tuple(members), number) == number
        assert [plan for plan, _, _ in found.items[number].parts] == [plans[member] for member in members]
    assert list(seen.values()) == list(range(len(found.items)))
    assert len({each.name for each in found.items}) == len(found.items)


def test_a_recording_that_ends_within_a_kernel_leaves_that_out(told: Any) -> None:
    run, *_ = told
    kernel, op = run.table("kernel"), run.table("op")
    cut = {name: values[:-1] for name, values in op.items()}
    assert op["estimated"][-1] == 1
    assert Kernels(run.catalog).numbers(kernel, cut).tolist().count(-1) == 1
    assert schema.KINDS["kernel"].words[4] == "ops"
