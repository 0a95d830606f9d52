"""The timeline: each thread's rows of phases, scopes and ops, of finished recordings and as events arrive."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_telemetry import pump, schema
from flnb_telemetry.live.bars import NODE, NUMBER, PAIR, SHIFT, T0, T1
from flnb_telemetry.live.recording import LiveRecording
from flnb_telemetry.live.threads import KINDS, TABLES, Key, Timeline
from flnb_telemetry.live.timeline import LiveTimeline
from flnb_telemetry.live.view import Live

import flnb
from flnb import distributed, nn, optim
from flnb.widgets.hub import Hub

if TYPE_CHECKING:
    from pathlib import Path

    from flnb_telemetry.recording import Recording


def trained(steps: int = 3) -> Recording:
    with flnb.use_backend("numpy"):
        flnb.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        optimizer = optim.SGD(model.parameters(), lr=1e-2)
        x, y = flnb.randn(8, 8), flnb.asarray([i % 4 for i in range(8)])
        with flnb.record("trained") as run:
            for _ in range(steps):
                with flnb.step():
                    optimizer.zero_grad()
                    with flnb.scope("train"):
                        loss = flnb.cross_entropy(model(x), y)
                    loss.backward()
                    optimizer.step()
    return run


@pytest.fixture(scope="module")
def run() -> Recording:
    return trained()


def flames(run: Recording, timeline: Timeline, depth: int) -> list[tuple[str, str]]:
    """Scope and phase of the bars of one depth, in order."""
    (lane,) = {key.lane for key in timeline.row_keys()}
    pairs = timeline.rows[Key(lane, KINDS.index("scope"), depth)].window(run.start, run.end or 0, 1)[PAIR]
    contexts = [run.catalog.contexts.items[context] for context in (pairs >> SHIFT).tolist()]
    return [(context.scope, schema.PHASES[context.phase]) for context in contexts]


def test_lanes_have_phases_scopes_of_both_directions_and_ops(run: Recording) -> None:
    timeline = Timeline(run.catalog)
    timeline.take({kind: run.table(kind) for kind in TABLES})
    lane = run.table("op")["lane"][0]
    rows = [(KINDS[key.kind], key.depth) for key in timeline.row_keys()]
    assert rows == [("phase", 0), ("scope", 0), ("scope", 1), ("scope", 2), ("op", 0)]
    assert flames(run, timeline, 0) == [("train", "other"), ("train", "backward")] * 3
    assert flames(run, timeline, 1) == [("train.sequential", "other"), ("train.sequential", "backward")] * 3
    inner = [f"train.sequential.{i}" for i in range(3)]
    forward, backward = [(one, "other") for one in inner], [(one, "backward") for one in inner[::-1]]
    assert flames(run, timeline, 2) == (forward + backward) * 3
    phases = timeline.rows[Key(lane, 0)].window(run.start, run.end or 0, 1)
    named = [schema.PHASES[phase] for phase in phases[PAIR].tolist() if phase]
    assert named == ["forward", "backward", "optimizer"] * 3
    op = run.table("op")
    bars = timeline.rows[Key(lane, KINDS.index("op"))].window(run.start, run.end or 0, 1)
    np.testing.assert_array_equal(bars[T0], op["t0"])
    np.testing.assert_array_equal(bars[PAIR] & (1 << SHIFT) - 1, op["plan"])


def test_the_bars_of_backward_ops_have_the_scope_of_their_forward_ops(run: Recording) -> None:
    timeline = Timeline(run.catalog)
    timeline.take({kind: run.table(kind) for kind in TABLES})
    (key,) = (key for key in timeline.row_keys() if KINDS[key.kind] == "op")
    bars = timeline.rows[key].events.bars
    contexts = [run.catalog.contexts.items[context] for context in (bars[PAIR] >> SHIFT).tolist()]
    node = bars[NODE].tolist()
    forward = {n: c.scope for n, c in zip(node, contexts, strict=True) if c.phase != schema.BACKWARD and n}
    backward = [(forward[n], c.scope) for n, c in zip(node, contexts, strict=True) if c.phase == schema.BACKWARD and n]
    assert {scope for _, scope in backward} >= {"train.sequential.0", "train.sequential.2"}
    assert [scope for scope, _ in backward] == [scope for _, scope in backward]


def test_a_live_view_has_the_same_rows_however_its_records_arrive(run: Recording) -> None:
    """Batches end anywhere: in a scope, in a backward pass, between an op and the end of its step."""
    whole = LiveRecording(run).timeline.rows
    rows = [(lane, row) for lane, batch in run._batches for row in batch]
    for size, tab in ((1, "timeline"), (7, "timeline"), (64, "timeline"), (64, "memory")):
        live = Live("again")
        live.timeline = LiveTimeline(live)
        live.look(tab)
        for at in range(0, len(rows), size):
            for lane in {lane for lane, _ in rows[at : at + size]}:
                live.feed(lane, np.array([row for other, row in rows[at : at + size] if other == lane]))
            live._fold()
        own = live.timeline.rows
        if tab == "memory":
            assert not own.rows, "events are added for nobody"
            live.answer({"type": "timeline", "measure": [0, 0]})
        assert own.row_keys() == whole.row_keys()
        for key in own.row_keys():
            got, want = (each.rows[key].window(run.start, run.end or 0, 1) for each in (own, whole))
            if KINDS[key.kind] == "scope":  # a batch may end a backward scope that goes on in the next one
                got = got[:, np.r_[True, got[PAIR, 1:] != got[PAIR, :-1]]]
                want = want[:, np.r_[True, want[PAIR, 1:] != want[PAIR, :-1]]]
                np.testing.assert_array_equal(got[[T0, PAIR]], want[[T0, PAIR]], err_msg=f"{size} {key}")
            else:
                np.testing.assert_array_equal(got[:NUMBER], want[:NUMBER], err_msg=f"{size} {key}")


def test_open_scopes_and_nested_ops_are_there() -> None:
    live = Live("open")
    live.begin()
    try:
        with flnb.use_backend("numpy"), flnb.scope("outer"):
            flnb.exp(flnb.ones(8))
            pump.flush()
            content, _ = live.frame(keyframe=True)
    finally:
        live.finish()
    kinds = [row["kind"] for row in content["timeline"]["rows"]]
    assert kinds == ["phase", "scope", "op"]
    (key, bar), *_ = live.timeline.rows.ongoing(live.timeline.rows.row_keys()[0].lane, live.start + 10**9)
    assert key.depth == 0
    assert bar[T1, 0] > bar[T0, 0]
    nested = np.array([[0, 2, 20], [10, 8, 30], [1, 2, 3], [0, 0, 0], [0, 0, 0]], np.int64)
    table: dict[str, Any] = {"t0": nested[T0], "t1": nested[T1], "lane": np.ones(3, np.int32)}
    table |= {name: np.zeros(3, np.int64) for name in ("plan", "context", "node", "alloc_id", "estimated")}
    none = {kind: schema.table(schema.KINDS[kind], []) for kind in TABLES}
    timeline = Timeline(live.catalog)
    timeline.take(none | {"op": table})
    assert timeline.rows[Key(1, KINDS.index("op"))].events.bars[T0].tolist() == [0, 20]
    assert timeline.rows[Key(1, KINDS.index("part"))].events.bars[T0].tolist() == [2]


def answered(live: LiveRecording, **request: Any) -> dict[str, Any]:
    found = live.answer({"type": "timeline", "id": 3} | request)
    assert found is not None
    assert (found["type"], found["id"]) == ("timeline", 3)
    return found


def columns(message: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    kinds = {"u32": np.uint32, "f64": np.float64}
    return {
        name.removeprefix(prefix): np.frombuffer(message["buffer"], kinds[code], count, at)
        for name, (code, at, count) in message["arrays"].items()
        if code in kinds
    }


def test_a_window_is_answered_in_binary_columns(run: Recording) -> None:
    live = LiveRecording(run)
    op = run.table("op")
    found = answered(live, window=[0, run.seconds * 1e3, 16384])
    (piece,) = found["pieces"]
    told = columns(found)
    assert {len(column) for column in told.values()} == {piece["count"]}
    rows = [row["kind"] for row in found["rows"]]
    mine = told["row"] == rows.index("op")
    assert told["count"][mine].sum() == len(op["t0"])
    exact = answered(live, window=[0, run.seconds * 1e3, 10**9])
    pixel = exact["pieces"][0]["pixel"]  # whole ns
    assert pixel * 16384 == pytest.approx(run.seconds * 1e3, abs=16384 / 1e6)  # no window is wider
    t0, t1 = (op["t0"][5] - run.start) / 1e6, (op["t1"][9] - run.start) / 1e6
    near = columns(answered(live, window=[t0, t1, 16384]))
    mine = near["row"] == rows.index("op")
    np.testing.assert_allclose(near["t0"][mine], (op["t0"][5:10] - run.start) / 1e6)
    np.testing.assert_array_equal(near["what"][mine], op["plan"][5:10])


def test_an_op_is_answered_with_its_backward_ops_and_a_backward_op_with_its_forward(run: Recording) -> None:
    live, op = LiveRecording(run), run.table("op")
    names = [run.catalog.plans.items[plan].op for plan in op["plan"].tolist()]
    at = names.index("matmul")
    lane = int(op["lane"][0])
    told = answered(live, event=[lane, "op", 0, at])["event"]
    assert (told["what"], told["node"], told["block"]) == (op["plan"][at], op["node"][at], op["alloc_id"][at])
    same = [i for i in np.flatnonzero(op["node"] == op["node"][at]).tolist() if i != at]
    assert [one["number"] for one in told["related"]] == same
    assert same
    back = answered(live, event=[lane, "op", 0, same[-1]])["event"]
    assert at in [one["number"] for one in back["related"]]
    for wrong in ([lane, "op", 0, 10**6], [lane + 9, "op", 0, 0], [lane, "nothing", 0, 0]):
        assert answered(live, event=wrong)["event"] is None


def test_the_counterpart_of_an_event_is_found_by_name_scope_and_number_since_a_time(run: Recording) -> None:
    live, op, step = LiveRecording(run), run.table("op"), run.table("step")
    lane = int(op["lane"][0])
    since = (int(step["t0"][1]) - run.start) / 1e6
    plans, contexts = run.catalog.plans.items, run.catalog.contexts.items
    named = [(plans[p].op, contexts[c].scope) for p, c in zip(op["plan"].tolist(), op["context"].tolist(), strict=True)]
    inside = np.flatnonzero(op["t0"] >= step["t0"][1]).tolist()
    late = inside[-1]
    alike = [i for i in inside if named[i] == named[late]]
    told = answered(live, ordinal=[lane, "op", 0, late, since])["ordinal"]
    assert told == {"name": named[late][0], "scope": named[late][1], "before": len(alike) - 1}
    asked = [lane, "op", 0, told["name"], told["scope"]]
    assert answered(live, nth=[*asked, told["before"], since])["nth"]["number"] == late
    assert answered(live, nth=[*asked, 0, since])["nth"]["number"] == alike[0]
    assert answered(live, nth=[*asked, len(alike), since])["nth"] is None
    assert answered(live, nth=[*asked, -1, since])["nth"] is None
    assert answered(live, nth=[lane, "op", 0, "no such op", "", 0, since])["nth"] is None
    assert answered(live, ordinal=[lane, "op", 0, 10**6, since])["ordinal"] is None
    scope = answered(live, ordinal=[lane, "scope", 0, 0, 0.0])["ordinal"]
    assert (scope["scope"], scope["before"]) == ("", 0)
    assert answered(live, nth=[lane, "scope", 0, scope["name"], "", 0, 0.0])["nth"]["number"] == 0


def test_a_range_is_measured_and_a_text_is_found_from_a_time_on(run: Recording) -> None:
    live, op = LiveRecording(run), run.table("op")
    ms = (op["t0"] - run.start) / 1e6
    told = answered(live, measure=[ms[4] - 1e-6, ms[20] - 1e-6])["measure"]
    assert told["counts"]["op"] == 16
    assert told["ns"]["op"] == (op["t1"] - op["t0"])[4:20].sum()
    assert told["complete"]
    names = [run.catalog.plans.items[plan].op for plan in op["plan"].tolist()]
    hits = [i for i, name in enumerate(names) if "matmul" in name]
    found = answered(live, search="MATMUL", after=ms[hits[0]])["search"]
    assert (found["count"], found["at"], found["next"]["number"]) == (len(hits), 1, hits[1])
    found = answered(live, search="matmul", after=ms[hits[-1]])["search"]
    assert (found["at"], found["next"]["number"]) == (0, hits[0])  # from the beginning again
    scope = answered(live, search="sequential.2", after=0)["search"]
    assert scope["next"] is not None
    assert answered(live, search="no such thing", after=0)["search"] == {
        "text": "no such thing", "count": 0, "at": 0, "next": None,
    }  # fmt: skip


def test_the_ops_of_a_step_are_summed_up_by_name(run: Recording) -> None:
    live, op, step = LiveRecording(run), run.table("op"), run.table("step")
    inside = (op["t0"] >= step["t0"][1]) & (op["t0"] < step["t1"][1])
    assert 0 < inside.sum() < len(inside)
    wanted: dict[str, list[int]] = {}
    for plan, ns in zip(op["plan"][inside].tolist(), (op["t1"] - op["t0"])[inside].tolist(), strict=True):
        entry = wanted.setdefault(run.catalog.plans.items[plan].op, [0, 0])
        entry[0] += 1
        entry[1] += ns
    told = answered(live, ops=[(step["t0"][1] - run.start) / 1e6, (step["t1"][1] - run.start) / 1e6])["ops"]
    assert {name: [count, ns] for name, count, ns in told["rows"]} == wanted
    assert [row[2] for row in told["rows"]] == sorted((ns for _, ns in wanted.values()), reverse=True)
    assert told["complete"]


def test_lanes_have_the_names_of_their_threads_also_in_a_file(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with flnb.record("named") as run:
        flnb.exp(flnb.ones(4))
        worker = threading.Thread(target=lambda: flnb.exp(flnb.ones(4)), name="loader")
        worker.start()
        worker.join()
        early = {row["name"] for row in answered(LiveRecording(run), window=[0, 1e6, 100])["rows"]}
    assert early == {"main", "loader"}
    op = run.table("op")
    names = {row["thread"]: row["name"] for row in answered(LiveRecording(run), window=[0, 1e6, 100])["rows"]}
    assert [names[lane] for lane in op["lane"].tolist()][-1] == "loader"
    run.save(tmp_path / "named.flnb")
    again = answered(LiveRecording(flnb.load_run(tmp_path / "named.flnb")), window=[0, 1e6, 100])["rows"]
    assert {row["thread"]: row["name"] for row in again} == names


def test_lanes_of_ranks_are_told_with_their_rank() -> None:
    with flnb.record("ranks") as run:
        distributed.run_threads(3, lambda: distributed.all_reduce(flnb.ones(4)))
    rows = answered(LiveRecording(run), window=[0, 1e6, 100])["rows"]
    told = {row["thread"]: row["rank"] for row in rows if row["kind"] == "op"}
    began = run.table("collective_begin")
    groups = [run.catalog.groups.items[number].rank for number in began["group"].tolist()]
    assert told == dict(zip(began["lane"].tolist(), groups, strict=True))
    assert sorted(told.values()) == [0, 1, 2]


def test_a_frame_has_the_run_coarsely_and_the_newest_steps_in_full(run: Recording) -> None:
    live = LiveRecording(run)
    content, buffer = next(iter(live.frames()))
    section = content["timeline"]
    told = columns({"arrays": content["arrays"], "buffer": buffer}, "timeline.")
    whole, newest = section["pieces"]
    assert whole["count"] + newest["count"] == len(told["t0"])
    rows = [row["kind"] for row in section["rows"]]
    count = told["count"][: whole["count"]][told["row"][: whole["count"]] == rows.index("op")]
    assert count.sum() == len(run.table("op")["t0"])
    assert (told["count"][whole["count"] :] == 1).all()
    assert newest["t1"] == pytest.approx(run.seconds * 1e3)


def test_the_hub_sends_what_is_asked_of_the_timeline(run: Recording) -> None:
    sent: list[tuple[dict[str, Any], list[bytes]]] = []
    both = threading.Event()

    def send(content: dict[str, Any], buffers: list[bytes]) -> None:
        if content["type"] == "timeline":
            sent.append((content, buffers))
            if len(sent) == 2:
                both.set()

    hub = Hub(LiveRecording(run), send)
    hub.receive({"type": "timeline", "id": 1, "window": [0, 1, 100]})
    hub.receive({"type": "timeline", "id": 2, "search": "matmul", "after": 0})
    hub.start()
    try:
        assert both.wait(10)
        assert hub.running
    finally:
        hub.stop()
    assert [content["id"] for content, _ in sent] == [1, 2]
    assert "buffer" not in sent[0][0]
    assert len(sent[0][1][0]) >= max(at + 4 * count for _, at, count in sent[0][0]["arrays"].values())
    assert sent[1][1] == []
