"""Chrome traces: written with Kineto's keys and read again to the same numbers; PyTorch's own; and bad files."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema  # nbformat needs it
import pytest
from flnb_telemetry import RunFileError, bus, load_run, log, phase, record, schema, scope, step
from flnb_telemetry.foreign import json_stream

if TYPE_CHECKING:
    from flnb_telemetry.recording import Recording

TRACES = Path(__file__).with_name("traces")
NAMES = ("mlp", "conv", "threads")


def plain(name: str) -> list[dict[str, Any]]:
    """The events of one of PyTorch's traces, as `json` reads them."""
    with gzip.open(TRACES / f"torch-{name}.json.gz", "rt") as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


@pytest.fixture
def run(program: Any) -> Any:
    """Two steps with forward and backward ops, blocks in a segment, scopes and metrics, of which one value is NaN."""
    with record("a </script> trace") as recorded:
        program.segment(1, 1 << 40, 1 << 20)
        program.segment(2, 1 << 44, 1 << 20)
        program.resize(2, 1 << 44, 1 << 21)
        program.release(2, 1 << 44, 1 << 21)
        for i in range(2):
            with step(), scope("net.block1"):
                block = program.alloc(1 << 40, 1024 << i, 1000, category="gradient")
                node = program.forward("matmul", block=block)
                program.op("exp", 1234, shape=(3, 5))
                with phase("backward"):
                    program.op("exp_pull", 777, node=node)
                program.free(block, 1 << 40, 1024 << i)
            log(loss=1.0 / (i + 1), bad=float("nan"))
    return recorded


def sums(run: Recording) -> list[tuple[Any, ...]]:
    """Counts, times and bytes by all that tells ops apart."""
    rows = run.ops.by("op", "family", "scope", "phase", "line", "shape", "dtype")
    return sorted((row.key, row.count, row.total, row.max, row.bytes) for row in rows)


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_a_run_is_the_same_after_it_was_read_again(run: Any, tmp_path: Path, ending: str) -> None:
    run.save_trace(tmp_path / f"run{ending}")
    again = load_run(tmp_path / f"run{ending}")
    assert (again.name, again.state, again.error) == (run.name, run.state, run.error)
    assert sums(again) == sums(run)
    assert again.seconds == run.seconds
    assert set(again.threads().values()) == set(run.threads().values()) == {"main"}
    segments = ("segment_alloc", "segment_resize", "segment_free")
    for kind in ("op", "step", "metric", "scope", "alloc", "free_completed", *segments):
        ours, theirs = run.table(kind), again.table(kind)
        assert len(ours["lane"]) == len(theirs["lane"]), kind
        for key in {"t", "t0", "t1"} & ours.keys():
            assert (ours[key] - run.start).tolist() == (theirs[key] - again.start).tolist()
        for key in {"alloc_id", "node", "index", "total", "step", "address", "size", "category", "enter"} & ours.keys():
            assert ours[key].tolist() == theirs[key].tolist(), (kind, key)
    assert repr(again.memory.peak) == repr(run.memory.peak)
    assert (again.memory.timeline().by_category == run.memory.timeline().by_category).all()
    assert {name: repr(one["value"]) for name, one in again.metrics.items()} == {
        name: repr(one["value"]) for name, one in run.metrics.items()
    }
    assert os.listdir(tmp_path) == [f"run{ending}"]


def test_the_trace_has_kinetos_keys(run: Any, tmp_path: Path) -> None:
    run.save_trace(tmp_path / "run.json")
    whole = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    form = json.loads((TRACES / "kineto.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(form)
    assert [error.message for error in validator.iter_errors(whole)] == []
    for breaks in ({"ph": "?"}, {"ts": "1"}, {"dur": -1.0, "ph": "X"}):  # the schema does find what is wrong
        assert list(validator.iter_errors(whole | {"traceEvents": [whole["traceEvents"][-1] | breaks]}))
    events = whole["traceEvents"]
    counts = Counter((event["ph"], event.get("cat")) for event in events)
    assert counts["X", "cpu_op"] == len(run.table("op")["t0"]) == 6
    assert counts["s", "fwdbwd"] == counts["f", "fwdbwd"] == 2
    spent = sum(round(event["dur"] * 1000) for event in events if event.get("cat") == "cpu_op")
    assert spent == sum(row.total for row in run.ops)
    totals = [event["args"]["Total Allocated"] for event in events if event["name"] == "[memory]"]
    assert totals == [1024, 0, 2048, 0]
    counted = [event["args"]["live"] for event in events if event["ph"] == "C" and event["name"] == "memory"]
    assert max(counted) == run.memory.peak.allocated
    steps = [event["name"] for event in events if event["name"].startswith("ProfilerStep#")]
    assert steps == ["ProfilerStep#0", "ProfilerStep#1"]
    for begin in [event for event in events if event["ph"] == "s"]:
        (end,) = [event for event in events if event["ph"] == "f" and event["id"] == begin["id"]]
        assert begin["ts"] < end["ts"]
        assert any(event["ts"] == begin["ts"] and event.get("cat") == "cpu_op" for event in events)


def test_slices_of_a_thread_nest_although_an_op_seems_to_begin_while_it_is_compiled(
    program: Any, tmp_path: Path
) -> None:
    with record("compiled") as run:
        lane, code = bus.lanes.lane, schema.COMPILE
        lane.emit(code, program.t, program.t + 5000, 0, 0, lane.context, 0, 0)
        program.op("relu", 2000, at=program.t + 4000)  # its time without compiling
        program.t += 10_000
        lane.emit(code, program.t, program.t + 5000, 0, 0, lane.context, 0, 0)
        program.op("inside", 1000, at=program.t + 2000)
    run.save_trace(tmp_path / "run.json")
    events = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))["traceEvents"]
    slices = [
        (each["name"], round(each["dur"] * 1000)) for each in events if each["ph"] == "X" and each["tid"] != "flnb"
    ]
    assert slices == [("relu", 2000), ("inside", 1000), ("compile", 4000), ("compile", 5000)]


@pytest.mark.parametrize("name", NAMES)
def test_pytorchs_traces_pass_the_same_schema(name: str) -> None:
    with gzip.open(TRACES / f"torch-{name}.json.gz", "rt") as file:
        whole = json.load(file)
    form = json.loads((TRACES / "kineto.schema.json").read_text())
    assert [error.message for error in jsonschema.Draft202012Validator(form).iter_errors(whole)] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_trace_of_pytorch_has_the_counts_of_plain_json(name: str, tmp_path: Path) -> None:
    events, run = plain(name), load_run(TRACES / f"torch-{name}.json.gz")
    ops = [event for event in events if event.get("cat") == "cpu_op"]
    assert Counter(event["name"] for event in ops) == {row.key[0]: row.count for row in run.ops}
    spent: Counter[str] = Counter()
    for event in ops:
        spent[event["name"]] += round(event["dur"] * 1000)
    assert spent == {row.key[0]: row.total for row in run.ops}
    sizes = [event["args"]["Bytes"] for event in events if event["name"] == "[memory]"]
    assert run.table("alloc")["size"].tolist() == [size for size in sizes if size >= 0]
    assert (-run.table("free_completed")["size"]).tolist() == [size for size in sizes if size < 0]
    assert len({event["tid"] for event in ops}) == len(set(run.table("op")["lane"].tolist()))
    steps = sorted(event["name"] for event in events if event["name"].startswith("ProfilerStep#"))
    assert [f"ProfilerStep#{index}" for index in run.steps["index"]] == steps
    assert run._repr_html_()
    assert repr(run.tape)
    run.save_trace(tmp_path / "again.json")
    again = load_run(tmp_path / "again.json")
    assert sums(again) == sums(run)
    assert {kind: len(again.table(kind)["lane"]) for kind in schema.KINDS} == {
        kind: len(run.table(kind)["lane"]) for kind in schema.KINDS
    }


def test_a_trace_of_pytorch_knows_where_its_ops_ran() -> None:
    conv, mlp, threads = (load_run(TRACES / f"torch-{name}.json.gz") for name in NAMES[1:2] + NAMES[:1] + NAMES[2:])
    scopes = {row.key: row for row in conv.ops.by("op", "scope", "phase")}
    assert scopes["aten::conv2d", "forward part.Sequential_0.Conv2d_0", "forward"].count == 1
    assert {key[2] for key in scopes if key[0].startswith("autograd::engine")} == {"backward"}
    assert conv.ops.by("op", "family")["aten::conv2d", "matmul"].count == 1
    assert {row.key[0] for row in mlp.ops.by("phase")} == {"forward", "backward", "optimizer", "other"}
    assert all(name.startswith("thread ") for name in threads.threads().values())
    assert threads.threads().keys() == {str(lane) for lane in threads.table("op")["lane"].tolist()}
    assert {row.key[0] for row in threads.ops.by("scope")} == {f"worker {number}" for number in (0, 1, 2, 9)}
    shapes = {plan.inputs for plan in mlp.catalog.plans.items if plan.op == "aten::addmm"}
    assert ((16,), (32, 8), (8, 16), (), ()) in shapes
    assert conv.meta["not read"]["python_function"] == 164


def event(**keys: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": "add", "pid": 1, "tid": 1, "ts": 1.5, "dur": 2.0, "args": {}} | keys


def gpu(name: str, category: str, ts: float, **about: Any) -> dict[str, Any]:
    """An event as Kineto writes it of a GPU, or of the call that queued it."""
    where = {"pid": 0, "tid": 7} if category != "cuda_runtime" else {}
    return event(name=name, cat=category, ts=ts, args={"device": 0, "stream": 7} | about, **where)


def test_kernels_and_copies_of_gpus_are_read(tmp_path: Path) -> None:
    sizes = {"grid": [4, 1, 1], "block": [128, 1, 1], "shared memory": 512}
    events = [
        event(name="aten::add", ts=1.0, dur=9.0),
        event(name="cudaLaunchKernel", cat="cuda_runtime", ts=2.0, args={"correlation": 5}),
        gpu("add_kernel", "kernel", 20.0, correlation=5, **sizes),
        event(name="cudaMemcpyAsync", cat="cuda_runtime", ts=30.0, args={"correlation": 6}),
        gpu("Memcpy DtoH (Device -> Pinned)", "gpu_memcpy", 40.0, correlation=6, bytes=4096),
        gpu("orphan", "kernel", 50.0, correlation=8, **sizes),  # the call that queued it is not in the trace
        event(name="cudaStreamSynchronize", cat="cuda_runtime", ts=60.0, args={"correlation": 9}),
        gpu("Memset (Device)", "gpu_memset", 70.0, correlation=10, bytes=8),
    ]
    head = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100"}], "schemaVersion": 1, "traceName": "a"}
    whole = head | {"displayTimeUnit": "ms", "baseTimeNanoseconds": 1, "traceEvents": events}
    events[0]["args"]["External id"] = 1
    form = json.loads((TRACES / "kineto.schema.json").read_text())
    assert [error.message for error in jsonschema.Draft202012Validator(form).iter_errors(whole)] == []
    (tmp_path / "a.json").write_text(json.dumps(whole))
    run = load_run(tmp_path / "a.json")
    task, kernels = run.devices.task, run.catalog.kernels.items
    assert run.meta["not read"] == {"cuda_runtime": 1, "gpu_memset": 1}
    assert run.devices.infos["cuda:0"].name == "NVIDIA H100"
    assert [kernels[number].name for number in task["kernel"].tolist()] == ["add_kernel", "", "orphan"]
    assert kernels[1][1:4] == ((4, 1, 1), (128, 1, 1), 512)
    assert [run.catalog.plans.items[number].op for number in task["plan"].tolist()] == ["aten::add", "", ""]
    assert (task["nbytes"].tolist(), task["pinned"].tolist(), task["route"].tolist()) == (
        [0, 4096, 0],
        [0, 1, 0],
        [0, 2, 0],
    )
    assert (task["ran0"].tolist(), task["ran1"].tolist()) == ([20_000, 40_000, 50_000], [22_000, 42_000, 52_000])
    assert (task["t0"].tolist(), task["stream"].tolist()) == ([2_000, 30_000, 50_000], [7, 7, 7])
    broken = whole | {"traceEvents": [*events, gpu("bad", "kernel", 1.0, correlation="5", **sizes)]}
    assert list(jsonschema.Draft202012Validator(form).iter_errors(broken))
    (tmp_path / "b.json").write_text(json.dumps(broken))
    with pytest.raises(RunFileError, match=r"event 8 is .*expected an integer of at most 62 bits"):
        load_run(tmp_path / "b.json")
    worse = whole | {"traceEvents": [*events, gpu("bad", "kernel", 1.0, correlation=7, **sizes | {"stream": "x"})]}
    (tmp_path / "c.json").write_text(json.dumps(worse))
    with pytest.raises(RunFileError, match=r"of the events of devices, a number is 'x', expected an integer"):
        load_run(tmp_path / "c.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "damaged or no flnb run"),
        ("{", "the file ends in the middle: it was cut off, or is still being written"),
        ("{}", "the file is a dict of 0, expected traceEvents among its keys"),
        ('{"a": 1}', "the file is a dict with 'a', expected traceEvents among its keys"),
        ('{"traceEvents": 3}', "traceEvents begins with '3', expected one list of events"),
        ('{"traceEvents": [], "traceEvents": []}', "expected one list of events"),
        ("[]", "the file has no ops, annotations or memory events"),
        ("[1]", "event 0 is 1, expected an object with a string as ph"),
        ('[{"ph": "M"} {', r"the file has '{.*', expected ','"),
        ('[{"ph": X, "name": "something that is long"}]', r"the file is no JSON at 'X, "),
        ('{"traceEvents": []} more', "the trace is followed by .*more.*, expected nothing"),
        ("[" * 100_000, "a value is nested too deeply|the file ends in the middle"),
        ("[" + "9" * 5000 + "]", "integer string conversion"),
        (json.dumps([event(ts="1")]), "ts is '1', expected µs, a number below 1e"),
        (json.dumps([event(ts=1e300)]), r"ts is 1e\+300, expected µs"),
        (json.dumps([event(dur=float("nan"))]), "dur is nan, expected µs"),
        (json.dumps([event(name=["add"])]), "name is a list of 1, expected a string"),
        (json.dumps([event(tid=[1])]), "pid and tid are 1 and a list of 1, expected numbers or texts"),
        (json.dumps([event(args=[1])]), "event 0 is a dict with 'ph'"),
        (json.dumps([event(args={"Sequence number": 1 << 80})]), "expected an integer"),
        (json.dumps([event(ph="i", name="[memory]", args={"Addr": 1})]), "a number is None, expected an integer"),
        (json.dumps([event(ph="i", name="[memory]", args={"Addr": 1, "Bytes": 1 << 51})]), "of at most 50 bits"),
        (
            json.dumps([event(args={"nbytes": 1 << 60})]),
            "a number is 1152921504606846976, expected an integer of at most 50 bits",
        ),
        (json.dumps([event(args={"flops": 1 << 60})]), "of at most 50 bits"),
    ],
)
def test_a_bad_trace_is_refused_with_the_reason(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.json").write_text(text, encoding="utf-8")
    with pytest.raises(RunFileError, match=message) as caught:
        load_run(tmp_path / "bad.json")
    assert "bad.json" in str(caught.value)


def test_a_trace_that_is_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    path, whole = tmp_path / "cut.json.gz", (TRACES / "torch-threads.json.gz").read_bytes()
    for size in (2, 10, 11, 500, len(whole) - 9, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(
            RunFileError, match=r"is not a readable trace: (the file's compressed data is damaged|the file ends in the)"
        ):
            load_run(path)
    path, text = tmp_path / "cut.json", gzip.decompress(whole)
    for size in random.Random(0).sample(range(2, len(text) - 3), 12):
        path.write_bytes(text[:size])
        with pytest.raises(RunFileError, match="the file ends in the middle"):
            load_run(path)


def test_events_with_values_of_other_types_are_read_or_refused(tmp_path: Path) -> None:
    rng, events = random.Random(0), plain("conv")
    kinds = [next(each for each in events if (each["ph"], each.get("cat")) == kind)
             for kind in dict.fromkeys((each["ph"], each.get("cat")) for each in events)]  # fmt: skip
    refused = 0
    for _ in range(150):
        broken = json.loads(json.dumps(rng.choice(kinds)))
        place = broken["args"] if broken.get("args") and rng.random() < 0.5 else broken
        place[rng.choice(list(place))] = rng.choice([None, -1, 1e30, "", [], {}, [[[]]], True, "\ud800", 1 << 70])
        (tmp_path / "broken.json").write_text(json.dumps([event(), broken]))
        try:
            repr(load_run(tmp_path / "broken.json"))
        except RunFileError:
            refused += 1
    assert 20 < refused < 140


def test_long_values_and_many_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flnb_telemetry.foreign import kineto

    monkeypatch.setattr(json_stream, "CHUNK", 64)
    (tmp_path / "long.json").write_text(json.dumps([event(), event(name="x" * 5000, ts=12345.25)]))
    assert load_run(tmp_path / "long.json").table("op")["t0"].tolist() == [1500, 12345250]
    monkeypatch.setattr(json_stream, "LONGEST", 2000)
    with pytest.raises(RunFileError, match="one value is longer than 2,000 characters, the limit"):
        load_run(tmp_path / "long.json")
    monkeypatch.setattr(kineto, "MOST_EVENTS", 5)
    (tmp_path / "many.json").write_text(json.dumps([event()] * 6))
    with pytest.raises(RunFileError, match="the file has more than 5 events; record fewer steps"):
        load_run(tmp_path / "many.json")


def test_an_event_of_negative_time_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "back.json").write_text(json.dumps([event(), event(dur=-3.0, name="mul"), event(dur=0)]))
    run = load_run(tmp_path / "back.json")
    assert [(row.key, row.count) for row in run.ops] == [(("add",), 2)]
    assert run.meta["not read"] == {"negative dur": 1}


def test_the_number_of_lost_events_is_in_the_trace(run: Any, tmp_path: Path) -> None:
    run.over_limit = 7
    run.save_trace(tmp_path / "lost.json")
    assert load_run(tmp_path / "lost.json").dropped == run.dropped == 7
    text = (tmp_path / "lost.json").read_text().replace('"dropped":7', '"dropped":-7')
    (tmp_path / "lost.json").write_text(text)
    assert load_run(tmp_path / "lost.json").dropped == 0


def test_memory_of_other_devices_is_told_apart(tmp_path: Path) -> None:
    def memory(t: float, size: int, kind: int) -> dict[str, Any]:
        told = {"Addr": 64, "Bytes": size, "Device Type": kind, "Device Id": kind - 1}
        return event(ph="i", name="[memory]", ts=t, args=told)

    events = [memory(1, 512, 0), memory(2, 1024, 1), memory(3, -1024, 1), memory(4, 256, 1), memory(5, -4096, 0)]
    (tmp_path / "two.json").write_text(json.dumps([event(), *events]))
    run = load_run(tmp_path / "two.json")
    assert run.meta["device"] == "device 1:0"
    assert run.meta["devices"] == {"device 1:0": 3, "host": 2}
    assert run.memory.timeline().allocated.max() == 1024
    assert [len(run.table(kind)["t"]) for kind in ("alloc", "free_completed")] == [2, 1]
    assert schema.KINDS.keys() == run.tables.keys()
