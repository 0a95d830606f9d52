"""The analyses of a recording against numbers counted by hand or by brute force."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
from flnb_telemetry import bus, record, schema, step
from flnb_telemetry.analysis.ops import KEYS
from flnb_telemetry.formats.svg import extremes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def test_op_statistics_are_exact(program: Any) -> None:
    rng = np.random.default_rng(1)
    times = {"matmul": rng.integers(500, 90_000, 1000), "add": rng.integers(100, 900, 77)}
    with record() as run:
        for name, spent in times.items():
            for ns in spent.tolist():
                program.op(name, ns, family="matmul" if name == "matmul" else "elementwise", shape=(4, 2))
    everything = sum(int(spent.sum()) for spent in times.values())
    assert [row.key for row in run.ops] == [("matmul",), ("add",)]
    for name, spent in times.items():
        row = run.ops[name]
        assert (row.count, row.total, row.max) == (len(spent), int(spent.sum()), int(spent.max()))
        assert row.mean == pytest.approx(spent.mean())
        assert row.p99 == int(np.sort(spent)[math.ceil(0.99 * len(spent)) - 1])
        assert row.share == pytest.approx(spent.sum() / everything)
        assert row.bytes == 32 * len(spent)


def test_ops_group_by_scope_phase_shape_and_dtype(program: Any) -> None:
    with record() as run:
        with bus.scope("net"):
            program.op("add", 10, shape=(2,))
            program.op("add", 20, shape=(), node=3)
            with bus.scope("conv"), bus.phase("backward"):
                program.op("add", 30)
        program.op("exp", 40)
    assert {row.key: row.total for row in run.ops.by("scope", "phase")} == {
        ("net", "other"): 10, ("net", "forward"): 20, ("net.conv", "backward"): 30, ("", "other"): 40,
    }  # fmt: skip
    assert {row.key[0]: row.count for row in run.ops.by("shape")} == {"2": 1, "scalar": 1, "8×8": 2}
    assert {row.key for row in run.ops.by("dtype", "family")} == {("float32", "elementwise")}
    assert [row.key[0] for row in run.ops.sort("count")] == ["add", "exp"]
    assert [row.key[0] for row in run.ops.sort("name", descending=False)] == ["add", "exp"]
    assert [row.total for row in run.ops.sort("total", descending=False)] == [40, 60]


def test_an_op_of_the_backward_belongs_to_the_scope_of_its_forward(program: Any) -> None:
    unseen = 10_000
    with record() as run:
        with bus.scope("net"), bus.scope("conv"):
            a = program.forward("conv2d", -1, spent=10)
        with bus.scope("net"):
            b = program.forward("add", a, spent=20)
        with bus.scope("train"), bus.phase("backward"):
            program.op("multiply", 30, node=b)
            program.op("conv2d_grad", 40, node=a)
            program.op("add", 50, node=unseen)
        with bus.scope("train"), bus.phase("optimizer"):
            program.op("add", 60)
    assert {row.key: row.total for row in run.ops.by("scope", "phase")} == {
        ("net.conv", "forward"): 10, ("net", "forward"): 20, ("net", "backward"): 30, ("net.conv", "backward"): 40,
        ("train", "backward"): 50, ("train", "optimizer"): 60,
    }  # fmt: skip
    assert run.to_pandas()["scope"].tolist() == ["net.conv", "net", "net", "net.conv", "train", "train"]


def test_ops_say_what_is_wrong_and_show_themselves(program: Any) -> None:
    with record() as run:
        program.op("add", 1500)
    with pytest.raises(KeyError, match="no op 'mul' in this recording; it has add"):
        run.ops["mul"]
    with pytest.raises(ValueError, match="cannot group by place; expected one or more of " + ", ".join(KEYS)):
        run.ops.by("place")
    with pytest.raises(ValueError, match="no column 'speed'; the columns are name, count, total"):
        run.ops.sort("speed")
    text = repr(run.ops).splitlines()
    assert text[0].split() == ["op", "count", "total", "mean", "p99", "max", "share", "bytes"]
    assert text[1].split() == ["add", "1", *4 * ["1.50", "µs"], "100.0", "%", "256", "B"]
    assert "<td" in run.ops._repr_html_()
    frame = run.ops.to_pandas()
    assert frame.loc[0, "op"] == "add"
    assert frame.loc[0, "total"] == 1500
    with record() as empty:
        pass
    assert repr(empty.ops) == "no op events"


class Heap:
    """Two segments of 1 MiB filled first-fit, brute force, with every state kept."""

    SIZE = 1 << 20

    def __init__(self, program: Any) -> None:
        self.program = program
        self.blocks: dict[int, tuple[int, int, int, int, str]] = {}  # id: segment, offset, size, requested, category
        self.states: list[tuple[int, dict[int, tuple[int, int, int, int, str]]]] = []
        for segment in (1, 2):
            program.segment(segment, segment << 32, self.SIZE)
        self.states.append((program.t, {}))

    def holes(self, blocks: dict[int, tuple[int, int, int, int, str]]) -> list[int]:
        found = []
        for segment in (1, 2):
            end = 0
            for _, offset, size, *_ in sorted(block for block in blocks.values() if block[0] == segment):
                found.append(offset - end)
                end = offset + size
            found.append(self.SIZE - end)
        return sorted(hole for hole in found if hole)

    def alloc(self, requested: int, category: str) -> None:
        size = -(-requested // 512) * 512
        for segment in (1, 2):
            end = 0
            inside = sorted(block for block in self.blocks.values() if block[0] == segment)
            for _, offset, length, *_ in [*inside, (segment, self.SIZE, 0)]:
                if offset - end >= size:
                    address = (segment << 32) + end
                    number = self.program.alloc(address, size, requested, segment=segment, category=category)
                    self.blocks[number] = (segment, end, size, requested, category)
                    self.states.append((self.program.t, dict(self.blocks)))
                    return
                end = offset + length

    def free(self, which: int) -> None:
        if self.blocks:
            number = sorted(self.blocks)[which % len(self.blocks)]
            segment, offset, size, *_ = self.blocks.pop(number)
            self.program.free(number, (segment << 32) + offset, size, segment=segment)
            self.states.append((self.program.t, dict(self.blocks)))


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), st.integers(1, 300_000), st.sampled_from(schema.CATEGORIES)),
        st.tuples(st.just("free"), st.integers(0, 1000), st.just("")),
    ),
    max_size=60,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS, stride=st.sampled_from([3, 1024]))
def test_memory_at_any_time_is_what_brute_force_says(
    new_program: Any, actions: list[tuple[str, int, str]], stride: int
) -> None:
    from flnb_telemetry.analysis import memory as module

    before, module.CHECKPOINT = module.CHECKPOINT, stride
    try:
        with record() as run:
            heap = Heap(new_program())
            for action, number, category in actions:
                if action == "alloc":
                    heap.alloc(number, category)
                else:
                    heap.free(number)
        memory = run.memory
        line = memory.timeline()
        for t, blocks in heap.states:
            state = memory.at((t - run.start) / 1e9)
            seen = {b.id: (s.id, b.offset, b.size, b.requested, b.category) for s in state.segments for b in s.blocks}
            assert seen == blocks
            assert sorted(state.holes.tolist()) == heap.holes(blocks)
            assert state.allocated == sum(block[2] for block in blocks.values())
            assert state.reserved == 2 * Heap.SIZE
            row = int(np.searchsorted(line.t, (t - run.start) / 1e9, "right")) - 1
            assert line.allocated[row] == state.allocated == line.by_category[row].sum()
            assert line.requested[row] == sum(block[3] for block in blocks.values())
            assert dict(zip(schema.CATEGORIES, line.by_category[row].tolist(), strict=True)) == state.by_category
        np.testing.assert_array_equal(line.by_category.sum(axis=1), line.allocated)
        most = max((sum(block[2] for block in blocks.values()) for _, blocks in heap.states), default=0)
        assert memory.peak.allocated == most
        found = memory.fragmentation(request=65_536)
        for i, t in enumerate(found.t):
            blocks = [state for ns, state in heap.states if (ns - run.start) / 1e9 <= t]
            free = heap.holes(blocks[-1]) if blocks else [Heap.SIZE] * min(2, i + 1)
            assert found.largest[i] == max(free, default=0)
            assert found.unusable[i] == pytest.approx(sum(h for h in free if h < 65_536) / max(1, sum(free)))
    finally:
        module.CHECKPOINT = before


def test_fragmentation_follows_its_formulas(program: Any) -> None:
    with record() as run:
        start = program.t
        program.segment(1, 0, 1000)
        program.t = start + 100
        a = program.alloc(0, 300, 200)  # at 101
        b = program.alloc(500, 100)  # at 102: holes of 200 and 400
        program.t = start + 201
        program.free(a, 0, 300)  # at 202: holes of 500 and 400
    found = run.memory.fragmentation(request=450)
    assert found.reserved.tolist() == [1000] * 4
    assert found.live.tolist() == [0, 300, 400, 100]
    assert found.largest.tolist() == [1000, 700, 400, 500]
    assert found.unusable.tolist() == pytest.approx([0, 0, 1, 4 / 9])
    assert found.internal.tolist() == pytest.approx([0, 1 / 3, 1 / 4, 0])
    assert math.isnan(found.ratio[0])
    assert found.ratio[1:].tolist() == pytest.approx([1000 / 300, 2.5, 10])
    assert found.at_peak == 2.5
    assert found.average == pytest.approx(1000 * 201 / (300 * 1 + 400 * 100))
    assert "unusable(r) = sum(free blocks < r) / sum(free)" in repr(found)
    assert run.memory.fragmentation().request == 300
    assert b == 2


def test_a_long_timeline_is_sampled_with_its_peak(program: Any) -> None:
    with record() as run:
        program.segment(1, 0, 1 << 30)
        for i in range(2000):
            block = program.alloc(0, 512 + 512 * (i == 777))
            program.free(block, 0, 512 + 512 * (i == 777))
    found = run.memory.fragmentation(points=64)
    assert len(found.t) <= 64
    assert found.live.max() == 1024
    assert found.at_peak == (1 << 30) / 1024


def test_a_long_timeline_is_drawn_with_its_extremes() -> None:
    levels = np.zeros((2, 200_000), np.int64)
    levels[0, 123_456] = levels[1, 77_777] = 7
    levels[:, 0] = -1
    kept = extremes(1000, *levels)
    assert 500 < len(kept) <= 1000
    assert {0, 77_777, 123_456, 199_999} <= set(kept.tolist())
    assert extremes(5, levels[0, :5]).tolist() == [0, 1, 2, 3, 4]


def test_frees_of_unknown_blocks_count_nothing_and_announced_blocks_count_once(program: Any) -> None:
    with record() as run:
        program.segment(1, 0, 4096)
        program.free(99, 0, 512)
        program.alloc(0, 512)
        bus.emit(schema.ALLOC | 3 << 8, program.t + 50, 1, 0, 512, 512, 1)  # told again by an announcement
        program.free(1, 0, 512)
        program.release(1, 0, 4096)
    assert run.memory.timeline().allocated.tolist() == [0, 512, 0, 0]
    assert run.memory.timeline().reserved.tolist() == [4096, 4096, 4096, 0]
    assert run.memory.at(1e9).segments == ()


def test_a_block_waiting_to_be_free_is_pending(program: Any) -> None:
    with record() as run:
        program.segment(1, 0, 4096)
        block = program.alloc(0, 512)
        program.free(block, 0, 512, pending=1000)
    (segment,) = run.memory.at((program.t - 500 - run.start) / 1e9).segments
    assert [(b.id, b.state) for b in segment.blocks] == [(block, "pending")]
    assert run.memory.at((program.t - run.start) / 1e9).allocated == 0


def backward(program: Any, leaf: str, bad: int = 0) -> list[int]:
    """One forward and backward of exp(w * x) over three inputs, sampled; the nodes."""
    with bus.scope("net"), bus.phase("forward"):
        a = program.forward("multiply", -1, -2, spent=100)
        b = program.forward("concat", a, -1, -2, a, spent=200)
        inner = program.t
        c = program.forward("softmax", b, spent=400)
        program.op("exp", 50, node=c, at=inner + 10)  # the composite's body: within its own time
    with bus.phase("backward"):
        for node, norm in ((c, 1.0), (b, 2.0), (a, 3.0)):
            program.op("multiply", 70, node=node)
            program.gradient(node, float("nan") if node == a and bad else norm, bad=bad if node == a else 0, saved=256)
            if node == b and bad:
                bus.emit(schema.NAN_ORIGIN, program.t, b)
    program.gradient(-1, 5.0, name=leaf)
    return [a, b, c]


def test_the_tape_of_the_last_sampled_backward(program: Any) -> None:
    with record() as run:
        with step():
            backward(program, "w")
        with step():
            a, b, c = backward(program, "w", bad=2)
    # the pretended times are ahead of the clock: the steps end where they do
    tape = run.tape
    assert [(node.id, node.op, node.parents) for node in tape.nodes] == [
        (a, "multiply", (-1, -2)), (b, "concat", (a, -1, -2)), (c, "softmax", (b,)),
    ]  # fmt: skip
    assert [(node.forward_ns, node.backward_ns) for node in tape.nodes] == [(100, 70), (200, 70), (400, 70)]
    assert [node.norm for node in tape.nodes[1:]] == [2.0, 1.0]
    assert math.isnan(tape.nodes[0].norm or 0)
    assert [node.bad for node in tape.nodes] == [2, 0, 0]
    assert {node.scope for node in tape.nodes} == {"net"}
    assert [(leaf.id, leaf.name, leaf.parameter, leaf.norm) for leaf in tape.leaves] == [
        (-1, "w", True, 5.0),
        (-2, "", False, None),
    ]
    assert set(tape.edges) == {(-1, a), (-2, a), (a, b), (-1, b), (-2, b), (b, c)}
    assert "NaN or Inf in 1 gradients, begins at concat net" in repr(tape)
    assert "3 ops, 2 leaves, 768 B saved" in repr(tape)


def test_the_tape_of_a_step_that_was_not_sampled_has_no_norms(program: Any) -> None:
    import time

    with record() as run:
        with step():
            program.t = time.perf_counter_ns()
            a = program.forward("exp", -1, spent=10)
            b = program.forward("log", a, spent=10)
            time.sleep(0.001)
        with step():
            program.t = time.perf_counter_ns()
            program.forward("tanh", -1, spent=10)
            time.sleep(0.001)
    assert [node.op for node in run.tape.nodes] == ["tanh"]
    first = run.tape.step(0)
    assert [(node.id, node.op, node.norm) for node in first.nodes] == [(a, "exp", None), (b, "log", None)]
    assert first.index == 0
    with pytest.raises(LookupError, match="no step 5 in this recording; it has 0 to 1"):
        run.tape.step(5)


def test_a_program_without_a_tape_has_an_empty_one() -> None:
    with record() as empty:
        pass
    assert "nothing was differentiated op by op while this was recorded; a program of flnb.jit" in repr(empty.tape)


def test_a_summary_lists_modules_with_equal_blocks_once(program: Any) -> None:
    with record() as run:
        node = -1
        for scope in ("net.stem", *(f"net.blocks.{i}" for i in range(3)), "loss"):
            with bus.scope(scope):
                for op in ("exp", "log") if "blocks" in scope else ("cos", scope):
                    node = program.forward(op, node, spent=1000)
    lines = run.tape.summary().splitlines()
    assert lines[0].split() == ["nodes", "forward", "backward", "saved", "output", "|grad|"]
    assert [line.split()[0] for line in lines[1:4]] == ["stem", "cos", "net.stem"]
    assert [line.strip().partition("  ")[0] for line in lines if "blocks" in line] == ["blocks.0–2 ×3", "blocks.0"]
    assert lines[-1].split()[:4] == ["in", "all", "10", "10.0"]
    assert "8×8 float32" in lines[1]
    shallow = run.tape.summary(depth=1).splitlines()
    assert [line.partition("  ")[0] for line in shallow[1:]] == ["stem", "blocks.0–2 ×3", "loss", "in all"]


def test_a_tape_is_a_networkx_graph(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    networkx = pytest.importorskip("networkx")
    with record() as run:
        a, _, c = backward(program, "w")
    made = run.tape.to_networkx()
    assert set(made.edges) == set(run.tape.edges)
    assert made.nodes[c]["op"] == "softmax"
    assert [made.nodes[n]["kind"] for n in (a, -1, -2)] == ["op", "parameter", "input"]
    assert networkx.has_path(made, -1, c)
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(ImportError, match=r"networkx graph needs networkx; install it with: pip install 'flnb\[lab\]'"):
        run.tape.to_networkx()


def test_a_long_tape_is_read_whole_although_only_the_end_was_measured(program: Any) -> None:
    with record() as run:
        node = -1
        for _ in range(1000):
            node = program.forward("exp", node)
        program.forward("log", -2)  # nobody reads it: it is not on the tape of the loss
        for i in range(10):
            program.gradient(node - i, 1.0, saved=7)
    tape = run.tape
    assert (len(tape.nodes), tape.truncated) == (1000, 0)
    assert [tape.nodes[i].norm for i in (0, 989, 990)] == [None, None, 1.0]
    assert tape.nodes[999].saved == 7
