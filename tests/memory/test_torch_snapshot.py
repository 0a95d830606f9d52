"""PyTorch memory snapshots: read as what happened; what is written is read again, by PyTorch's own tools too."""

from __future__ import annotations

import pickle
import pickletools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_telemetry import schema
from flnb_telemetry.foreign import torch_export
from flnb_telemetry.live.recording import LiveRecording
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import flnb
from flnb.memory import load_snapshot
from tests.memory.pretended_torch import BASE, MIB, PretendedTorch, event, saved

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("nothing_held")

FAST = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(seed=st.integers(0, 10**6), calls=st.integers(1, 120), kept=st.floats(0, 1), protocol=st.sampled_from([2, 4, 5]))
@example(seed=111, calls=67, kept=1.0, protocol=4)  # a growing segment meets one that an unmapping cut off
@example(seed=583936, calls=138, kept=1.0, protocol=4)  # one was there before that lay across where two meet
@FAST
def test_a_snapshot_tells_what_happened(tmp_path: Path, seed: int, calls: int, kept: float, protocol: int) -> None:
    torch = PretendedTorch(seed)
    for _ in range(calls):
        torch.step()
    most = max(1, int(kept * len(torch.events)))
    run = load_snapshot(saved(tmp_path / "torch.pickle", torch.snapshot(most), protocol))
    line = run.memory.timeline()
    t = run.start + np.round(line.t * 1e9).astype(np.int64)
    alloc = run.table("alloc")
    times = np.array([10**18 + (i // 3) * 1000 for i in range(len(torch.events))])[-most:]
    times = np.maximum.accumulate(times - np.arange(most)) + np.arange(most)
    row = np.searchsorted(t, times, "right") - 1
    truth = np.array(torch.truth[-most:])
    assert line.requested[row].tolist() == truth[:, 0].tolist()
    assert line.reserved[row].tolist() == truth[:, 1].tolist()
    end = run.memory.at(run.seconds)
    live = {
        (segment.address + b.offset, b.size, b.requested, b.state) for segment in end.segments for b in segment.blocks
    }
    names = {False: "active", True: "pending"}
    assert live == {(a, size, asked, names[freed]) for a, (size, asked, _, freed) in torch.blocks.items()}
    assert (alloc["segment_id"] > 0).all()
    frames = {a: tuple(f["name"] for f in block[2]) for a, block in torch.blocks.items()}
    last = dict(zip(alloc["address"].tolist(), alloc["context"].tolist(), strict=True))
    assert {a: tuple(frame.name for frame in run.stacks[last[a]]) for a in frames} == frames
    assert flnb.memory.trace(run).peak_live == line.requested.max()
    again = load_snapshot(saved(tmp_path / "torch.pickle", torch.snapshot(most), protocol))
    run.to_torch_snapshot(tmp_path / "again.pickle")
    check_alike(run, again)
    check_alike(run, load_snapshot(tmp_path / "again.pickle"))


def check_alike(run: Any, other: Any) -> None:
    """The same trace, timeline and peak."""
    for one, two in zip(run.memory.timeline(), other.memory.timeline(), strict=True):
        assert np.array_equal(one, two)
    if len(run.table("alloc")["t"]):
        one, two = flnb.memory.trace(run), flnb.memory.trace(other)
        for name in ("calls", "nbytes", "t", "category"):
            assert np.array_equal(getattr(one, name), getattr(two, name)), name
        for name in ("op", "scope", "shapes"):
            assert list(getattr(one, name)) == list(getattr(two, name)), name
    assert run.memory.peak.by_category == other.memory.peak.by_category
    for name in ("largest_hole", "allocated", "reserved"):
        assert getattr(run.memory.peak, name) == getattr(other.memory.peak, name), name
    for name in ("requested", "free", "largest_hole", "capacity", "reserved"):
        assert run.table("oom")[name].tolist() == other.table("oom")[name].tolist()


managers = st.sampled_from(
    [flnb.memory.Caching, flnb.memory.Native, flnb.memory.Expandable, flnb.memory.BestFit, flnb.memory.Buddy]
)


@given(manager=managers, moves=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3 * MIB)), max_size=60))
@FAST
def test_an_exported_run_is_the_same_run(tmp_path: Path, manager: Any, moves: list[tuple[int, int]]) -> None:
    held: list[Any] = []
    lease = manager(flnb.memory.SimulatedDevice("64MiB"))
    held.append(flnb.memory.allocate(lease, 5000))
    with flnb.use_memory_manager(lease), flnb.record("moves") as run:
        for kind, size in moves:
            if kind < 4:
                try:
                    with flnb.scope(f"part{kind}"):
                        held.append(flnb.memory.allocate(lease, size, category=kind))
                except flnb.OutOfMemoryError:
                    lease.release_cached()
            elif held:
                flnb.memory.release(lease, held.pop(size % len(held)))
    path = tmp_path / "run.pickle"
    run.to_torch_snapshot(path)
    back = flnb.load_run(path)
    check_alike(run, back)
    assert back.name == "moves"
    check_structure(path)


def check_structure(path: Path) -> None:
    """What the viewer needs, see its reader: opcodes, protocol, plain values, small numbers, categories, tiles."""
    content = path.read_bytes()
    known = {
        "PROTO", "APPEND", "APPENDS", "NEWFALSE", "NEWTRUE", "NONE", "BINGET", "BININT", "BININT1", "BININT2",
        "EMPTY_DICT", "EMPTY_LIST", "LONG1", "LONG_BINGET", "MARK", "MEMOIZE", "BINPUT", "LONG_BINPUT", "SETITEMS",
        "SHORT_BINUNICODE", "BINUNICODE", "STOP", "TUPLE", "TUPLE2", "EMPTY_TUPLE", "BINFLOAT", "SETITEM", "FRAME",
    }  # fmt: skip
    ops = list(pickletools.genops(content))
    assert {op.name for op, _, _ in ops} <= known
    assert ops[0][1] == 4
    assert all(abs(arg) < 2**53 for op, arg, _ in ops if op.name == "LONG1")
    value = pickle.loads(content)
    segments, (trace,) = value["segments"], value["device_traces"]
    held: list[tuple[int, int]] = []
    for happened in trace:
        if happened["action"] in ("segment_alloc", "segment_map"):
            held.append((happened["addr"], happened["addr"] + happened["size"]))
        elif happened["action"] == "alloc":
            assert any(begin <= happened["addr"] for begin, _ in held), "segment_alloc before its allocs"
        assert happened["category"] in schema.CATEGORIES if "category" in happened else happened["action"] == "oom"
    assert any(row.get("category") == "unknown" for row in trace)
    for segment in segments:
        position = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == position
            position += block["size"]
            assert block["state"] in ("active_allocated", "active_pending_free", "inactive")
        assert position == segment["address"] + segment["total_size"]


def trained() -> Any:
    """A run with shapes, phases, steps, blocks that outlive it."""
    kept = [flnb.ones((300, 300))]
    with flnb.use_memory_manager(flnb.memory.Caching()), flnb.record("trained") as run, flnb.scope("net"):
        for i in range(4):
            with flnb.step():
                v = flnb.Variable(flnb.ones((100 + 40 * i, 200)))
                (v * 2.0 + 1.0).sum().backward()
                kept.append(v)
    del kept
    return run


def test_ops_shapes_scopes_and_steps_are_in_the_file(tmp_path: Path) -> None:
    run, path = trained(), tmp_path / "trained.pickle"
    run.to_torch_snapshot(path)
    check_alike(run, flnb.load_run(path))
    value = pickle.loads(path.read_bytes())
    frames = [frame for event in value["device_traces"][0] for frame in event["frames"]]
    assert {("multiply", "net"), ("add", "net")} <= {(frame["name"], frame["filename"]) for frame in frames}
    assert [note["stage"] for note in value["external_annotations"]] == ["START", "END"] * 4
    assert len({id(frame) for frame in frames}) == len({str(frame) for frame in frames})


def test_pytorchs_own_tools_read_it(tmp_path: Path) -> None:
    viz = pytest.importorskip("torch.cuda._memory_viz")
    run, path = trained(), tmp_path / "trained.pickle"
    run.to_torch_snapshot(path)
    value = pickle.loads(path.read_bytes())
    assert "segments: " in viz.segsum(value)
    text = viz.trace(value)
    assert text.count("= cudaMalloc(") == len(run.table("segment_alloc")["t"])
    assert text.count("free completed for") == len(run.table("free_completed")["t"])
    plain = {"format_flamegraph": lambda lines: lines}
    assert "net:0:multiply" in viz.memory(value, **plain)
    assert ":(v * 2.0 + 1.0).sum().backward();net:0:multiply" in viz.memory(value, **plain)
    assert "active_allocated" in viz.segments(value, **plain)
    assert viz.compare(value["segments"], value["segments"], **plain) == ""
    for page in (viz.segment_plot(value), viz.trace_plot(value), viz.trace_plot(value, plot_segments=True)):
        assert "add_local_files" in page
    assert "add_local_files" in viz.trace_plot(value, filter_freed=True)


def test_a_file_is_a_source_of_traces_and_reports(tmp_path: Path) -> None:
    torch = PretendedTorch(3)
    for _ in range(80):
        torch.step()
    path = saved(tmp_path / "torch.pickle", torch.snapshot())
    assert flnb.memory.trace(path).peak_live == max(requested for requested, _ in torch.truth)
    run = load_snapshot(path)
    assert "manager PyTorch's caching allocator, device cuda:0" in repr(run)
    assert "<svg" in run._repr_html_()
    replay = flnb.memory.replay(path, ["caching"])
    assert replay.rows[0].peak_reserved >= replay.trace.peak_live
    assert set(flnb.memory.trace(run).op) >= {"f0", "f1"}
    assert set(flnb.memory.trace(run).scope) >= {"m0.py:0:f0", "m1.py:1:f1"}


def frame(name: str, file: str, line: int) -> dict[str, Any]:
    return {"name": name, "filename": file, "line": line}


NATIVE = [
    frame("c10::cuda::CUDACachingAllocator::malloc(void**)", "/pytorch/c10/cuda/CUDACachingAllocator.cpp", 120),
    frame("at::_ops::linear::call(at::Tensor const&)", "??", 0),
]
TORCHS = frame("forward", "/usr/lib/python3/dist-packages/torch/nn/modules/linear.py", 117)
USERS = [frame("forward", "/project/model.py", 12), frame("main", "/project/train.py", 90)]
CPYTHON = [frame("_PyEval_EvalFrameDefault", "/src/Python/ceval.c", 5), frame("_start", "libc.so.6", 0)]


def test_blocks_belong_to_the_innermost_line_of_the_user_and_native_frames_are_one_line(tmp_path: Path) -> None:
    stacks = ([*NATIVE, TORCHS, *USERS, *CPYTHON], [TORCHS], NATIVE)
    trace = [event("alloc", BASE + 4096 * i, 512, 5 + i) | {"frames": frames} for i, frames in enumerate(stacks)]
    run = load_snapshot(saved(tmp_path / "s.pickle", {"segments": [], "device_traces": [trace]}))
    wanted = ["model.py:12: forward", "linear.py:117: forward", ""]
    assert {row.key[0] for row in run.memory.at(run.seconds).by("line")} == set(wanted)
    answers = [LiveRecording(run).answer({"type": "stack", "context": context}) for context in (1, 2, 3)]
    assert [answer and answer["lines"] for answer in answers] == [
        [
            "2 C++ frames, from at::_ops::linear::call", "linear.py:117 forward", "model.py:12 forward",
            "train.py:90 main", "2 C++ frames, from _start",
        ],
        ["linear.py:117 forward"],
        ["2 C++ frames, from at::_ops::linear::call"],
    ]  # fmt: skip


def test_stacks_survive_being_saved(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    torch = PretendedTorch(4)
    for _ in range(30):
        torch.step()
    run = load_snapshot(saved(tmp_path / "torch.pickle", torch.snapshot()))
    run.save(tmp_path / "run.flnb")
    assert flnb.load_run(tmp_path / "run.flnb").stacks == run.stacks != {}


def test_unmatched_frees_were_there_before(tmp_path: Path) -> None:
    trace = [event("free_requested", BASE, 1000, 5), event("free_completed", BASE, 1000, 5), event("alloc", BASE, 3, 6)]
    run = load_snapshot(saved(tmp_path / "s.pickle", {"segments": [], "device_traces": [trace]}))
    line = run.memory.timeline()
    assert line.requested.tolist() == [1000, 0, 3]
    assert line.allocated.tolist() == [1024, 0, 512]
    assert flnb.memory.trace(run).calls.tolist() == [1, -1, 2]


def test_an_alloc_whose_free_is_missing_ends_where_the_next_begins(tmp_path: Path) -> None:
    trace = [event("alloc", BASE, 1000, 5), event("alloc", BASE, 2000, 6)]
    run = load_snapshot(saved(tmp_path / "s.pickle", {"segments": [], "device_traces": [trace]}))
    assert flnb.memory.trace(run).calls.tolist() == [1, -1, 2]


def test_running_out_of_memory_is_told_with_the_holes_there_were(tmp_path: Path) -> None:
    oom = {"action": "oom", "device_free": 5 * MIB, "size": 64 * MIB, "stream": 0, "time_us": 9, "frames": []}
    trace = [event("segment_alloc", BASE, 8 * MIB), event("alloc", BASE + MIB, MIB), oom]
    run = load_snapshot(saved(tmp_path / "s.pickle", {"segments": [], "device_traces": [trace]}))
    table = run.table("oom")
    found = [int(table[name][0]) // MIB for name in ("requested", "free", "largest_hole", "reserved")]
    assert found == [64, 12, 6, 8]
    run.to_torch_snapshot(tmp_path / "again.pickle")
    (told,) = (
        e for e in pickle.loads((tmp_path / "again.pickle").read_bytes())["device_traces"][0] if e["action"] == "oom"
    )
    assert told["device_free"] == 5 * MIB


OLD_BLOCK = {"size": 1024, "state": "active_awaiting_free"}
OLD_FRAME = {"name": "f", "filename": "a.py", "line": 3}
OLD_BLOCK |= {"history": [{"addr": BASE, "real_size": 1000, "frames": [OLD_FRAME]}]}


@pytest.mark.parametrize("whole", [True, False])
def test_old_snapshots_have_no_times_addresses_or_traces(tmp_path: Path, whole: bool) -> None:
    segments = [
        {"device": 0, "address": BASE, "total_size": 2048, "blocks": [OLD_BLOCK, {"size": 1024, "state": "inactive"}]}
    ]
    run = load_snapshot(
        saved(tmp_path / "s.pickle", {"segments": segments, "device_traces": []} if whole else segments)
    )
    (segment,) = run.memory.at(1.0).segments
    (block,) = segment.blocks
    assert (segment.size, block.size, block.requested, block.op, block.state) == (2048, 1024, 1000, "f", "pending")


def test_a_device_is_chosen(tmp_path: Path) -> None:
    traces = [[event("alloc", BASE, 7)], [], [event("alloc", BASE, 8), event("alloc", 2 * BASE, 8)]]
    path = saved(tmp_path / "s.pickle", {"segments": [], "device_traces": traces})
    assert load_snapshot(path).meta["device"] == "cuda:2"
    assert load_snapshot(path).meta["devices"] == {"0": 1, "2": 2}
    assert load_snapshot(path, device=0).table("alloc")["requested"].tolist() == [7]
    with pytest.raises(ValueError, match=r"has no device 1; it has \[0, 2\]"):
        load_snapshot(path, device=1)


def test_addresses_that_do_not_fit_are_moved(tmp_path: Path) -> None:
    """Two devices of addresses alone use the same ones."""
    with flnb.record() as run:
        held = []
        for _ in range(2):
            manager = flnb.memory.Caching(flnb.memory.SimulatedDevice())
            held.append([flnb.memory.allocate(manager, MIB * size) for size in (1, 3, 30)])
    assert len(set(run.table("alloc")["address"].tolist())) < 6
    run.to_torch_snapshot(tmp_path / "run.pickle")
    back = flnb.load_run(tmp_path / "run.pickle")
    assert len(set(back.table("alloc")["address"].tolist())) == 6
    check_alike(run, back)
    check_structure(tmp_path / "run.pickle")


def test_blocks_in_no_segment_are_exported_in_segments_of_their_own_size(tmp_path: Path) -> None:
    far = 900 << 40
    trace = [event("alloc", BASE, 1000), event("alloc", BASE + 1024, 512), event("alloc", BASE + far, 3 * MIB)]
    run = load_snapshot(saved(tmp_path / "s.pickle", {"device_traces": [[*trace, event("free", BASE, 1000)]]}))
    run.to_torch_snapshot(tmp_path / "again.pickle")
    check_structure(tmp_path / "again.pickle")
    segments = pickle.loads((tmp_path / "again.pickle").read_bytes())["segments"]
    assert [(s["address"], s["total_size"]) for s in segments] == [(BASE, 1536), (BASE + far, 3 * MIB)]
    back = load_snapshot(tmp_path / "again.pickle")
    assert back.memory.timeline().requested.tolist() == [0, *run.memory.timeline().requested.tolist()]
    assert back.memory.peak.reserved == 1536 + 3 * MIB


def doubled(x: Any) -> Any:
    return x * 2.0


@pytest.mark.parametrize("stacks", [False, True])
def test_the_user_s_lines_are_frames_of_the_file_and_lines_again(tmp_path: Path, stacks: bool) -> None:
    manager = flnb.memory.Caching()
    with flnb.use_memory_manager(manager), flnb.record(stacks=stacks) as run, flnb.scope("net"):
        held = [doubled(flnb.ones((64, 64))), flnb.memory.allocate(manager, 1000)]
    run.to_torch_snapshot(tmp_path / "run.pickle")
    back = flnb.load_run(tmp_path / "run.pickle")
    back.to_torch_snapshot(tmp_path / "again.pickle")
    for other in (back, flnb.load_run(tmp_path / "again.pickle")):
        check_alike(run, other)
        for keys in (("line", "op", "scope"), ("stack",)):
            mine, its = ({row.key: row.bytes for row in one.memory.at(one.seconds).by(*keys)} for one in (run, other))
            assert mine == its
        assert len(mine) == 2  # the lines of the product and of the block
        assert sum(": return x * 2.0" in stack for (stack,) in mine) == 1
        assert bool(other.stacks) == stacks
    trace = pickle.loads((tmp_path / "run.pickle").read_bytes())["device_traces"][0]
    first, *users = next(e["frames"] for e in trace if [f["name"] for f in e["frames"][:1]] == ["multiply"])
    assert (first["filename"], first["shape"]) == ("net", (64, 64))
    number = doubled.__code__.co_firstlineno + 1
    if stacks:
        names = ["doubled", "test_the_user_s_lines_are_frames_of_the_file_and_lines_again"]
        assert [frame["name"] for frame in users] == names
        assert (users[0]["filename"], users[0]["line"]) == (__file__, number)
    else:
        assert users == [frame("return x * 2.0", "test_torch_snapshot.py", number)]
    flnb.memory.release(manager, held.pop())


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("train.py:12: y = x * w", [frame("y = x * w", "train.py", 12)]),
        ("In [5]:14: d = {1: 2}", [frame("d = {1: 2}", "In [5]", 14)]),
        ("f0.py:1", [frame("", "f0.py", 1)]),
        ("a.py:1: f()\nfrom b.py:2: g()", [frame("f()", "a.py", 1), frame("g()", "b.py", 2)]),
        ("a.py:99999999999: f()", [frame("a.py:99999999999: f()", "flnb", 0)]),
        ("\n:x", [frame("\n:x", "flnb", 0)]),
        ("", []),
    ],
)  # fmt: skip
def test_the_text_of_a_line_is_read_as_frames(line: str, wanted: list[dict[str, Any]]) -> None:
    assert torch_export._user_frames(line) == wanted


def test_a_snapshot_of_an_earlier_version_has_no_lines(tmp_path: Path) -> None:
    old = frame("multiply", "net", 0) | {"shape": (2,), "dtype": "float32", "phase": 1}
    trace = [event("alloc", BASE, 512) | {"frames": [old]}]
    run = load_snapshot(saved(tmp_path / "s.pickle", {"segments": [], "device_traces": [trace]}))
    assert [row.key for row in run.memory.at(run.seconds).by("op", "scope", "line")] == [("multiply", "net", "")]
    trace = [event("alloc", BASE, 512) | {"frames": [old | {"source_line": 3}]}]
    with pytest.raises(flnb.telemetry.RunFileError, match="a frame is"):
        load_snapshot(saved(tmp_path / "s.pickle", {"segments": [], "device_traces": [trace]}))
