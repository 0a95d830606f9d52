"""The whole chain on real training steps: dispatcher, managers, tape and modules emit; everything shown adds up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flnb_telemetry import bus, pump, schema
from flnb_telemetry.live.view import Live

import flnb
from flnb import nn, optim
from flnb.dispatch import announcing, state


@pytest.fixture(autouse=True)
def _alone() -> None:
    """Here, unlike in the other files, the managers do announce their blocks."""
    assert announcing.announce in bus.announcers


@pytest.fixture
def train() -> Any:
    """A function that trains a small CNN for some steps."""
    flnb.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    rng = np.random.default_rng(0)
    images = flnb.asarray(rng.normal(size=(32, 1, 8, 8)).astype(np.float32))
    labels = flnb.asarray(np.arange(32) % 10)

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            loss = flnb.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            flnb.log(loss=float(loss.detach()))

    return steps


def test_a_recorded_training_adds_up(train: Any) -> None:
    train(2)
    with flnb.record("digits", grad_interval=1e-9) as run:
        train(5)
    assert run.dropped == 0
    assert run.steps["index"].tolist() == [0, 1, 2, 3, 4]
    losses = run.metrics["loss"]["value"]
    assert len(losses) == 5
    assert run.metrics["loss"]["step"].tolist() == [0, 1, 2, 3, 4]
    assert losses[-1] < losses[0]
    assert run.ops["conv2d_bias"].count == 5
    by_scope = {row.key: row for row in run.ops.by("scope", "phase")}
    assert by_scope.keys() >= {
        ("sequential.0", "forward"), ("sequential.4", "forward"), ("sequential.0", "backward"), ("", "optimizer"),
    }  # fmt: skip
    nowhere = by_scope["", "backward"].total  # of the loss, which no module computes
    assert nowhere < 0.5 * sum(row.total for (_, phase), row in by_scope.items() if phase == "backward")
    ops = run.table("op")
    assert (ops["t1"] >= ops["t0"]).all()
    assert run.start <= ops["t0"].min()
    assert ops["t1"].max() <= run.end


def test_the_tape_has_every_parameter_and_no_loose_ends(train: Any) -> None:
    with flnb.record(grad_interval=1e-9) as run:
        train(3)
    tape = run.tape
    assert {node.op for node in tape.nodes} >= {"conv2d_bias", "max_pool2d", "linear", "reshape", "cross_entropy"}
    assert tape.nodes[-1].op == "cross_entropy"
    known = {node.id for node in tape.nodes} | {leaf.id for leaf in tape.leaves}
    assert all(parent in known for node in tape.nodes for parent in node.parents)
    assert all(node.parents for node in tape.nodes)
    ends = known - {parent for node in tape.nodes for parent in node.parents}
    assert len(ends) == 1  # the loss
    assert sorted(leaf.shape for leaf in tape.leaves) == sorted([(8, 1, 3, 3), (8,), (10, 128), (10,)])
    assert all(leaf.parameter and leaf.norm is not None and leaf.norm > 0 for leaf in tape.leaves)
    assert all(node.norm is not None and node.bad == 0 and node.forward_ns > 0 for node in tape.nodes)
    assert sum(node.backward_ns for node in tape.nodes) > 0
    assert {node.scope for node in tape.nodes} >= {"sequential.0", "sequential.4"}


def test_each_backward_is_a_tape_of_its_own(train: Any) -> None:
    w = flnb.Variable(np.ones(4))
    with flnb.record(grad_interval=None) as run:
        middle = flnb.tanh(w * 2.0)
        first, second = flnb.sum(middle), flnb.sum(flnb.exp(middle))
        for loss in (second, second, first):  # the nodes of the last have smaller numbers than those before
            bus.want_grad_stats = True
            loss.backward(retain_graph=True)
    assert [node.op for node in run.tape.nodes] == ["multiply", "tanh", "sum"]
    assert all(node.norm is not None for node in run.tape.nodes)
    assert len(run.table("walk")["t"]) == 3


def test_inputs_are_no_parameters() -> None:
    net, x = nn.Linear(3, 2), flnb.Variable(np.full((4, 3), 100.0, np.float32))
    trained = flnb.Variable(np.ones(2, np.float32))
    optim.SGD([trained], lr=0.1)
    live = Live("run", 0.0)
    with flnb.record() as run:
        live.begin()
        flnb.sum(net(x) * trained).backward()
        live.finish()
    leaves = {leaf.shape: leaf for leaf in run.tape.leaves}
    assert {shape: leaf.parameter for shape, leaf in leaves.items()} == {(2, 3): True, (2,): True, (4, 3): False}
    assert leaves[4, 3].norm is not None
    own = [p.grad for p in [*net.parameters(), trained]]
    expected = np.sqrt(sum(float((np.asarray(g) ** 2).sum()) for g in own))
    content, _ = live.frame(keyframe=True)
    assert content["tape"]["gradient"] == pytest.approx(expected)


def test_the_memory_shown_is_the_managers(train: Any) -> None:
    train(1)
    with flnb.record() as run:
        train(3)
        manager = state.current().manager
        expected = {
            (segment.id, block.id, block.address - segment.address, block.size)
            for segment, blocks in manager.snapshot()
            for block in blocks
            if block.id
        }
        seen = run.memory.at(run.seconds)
    mine = {segment.id for segment, _ in manager.snapshot()}
    shown = {
        (segment.id, block.id, block.offset, block.size)
        for segment in seen.segments
        for block in segment.blocks
        if segment.id in mine
    }
    assert shown == expected
    line = run.memory.timeline()
    np.testing.assert_array_equal(line.by_category.sum(axis=1), line.allocated)
    assert (line.allocated <= line.reserved).all()
    assert line.by_category[:, schema.CATEGORIES.index("gradient")].max() > 0
    assert line.by_category[:, schema.CATEGORIES.index("activation")].max() > 0
    blocks = [block for segment in run.memory.peak.segments for block in segment.blocks]
    ran = {run.catalog.plans.items[number].op for number in run.table("op")["plan"].tolist()}
    assert "" not in ran
    assert {block.op for block in blocks} - {""} & ran


def test_the_live_view_agrees(train: Any, new_browser: Any) -> None:
    live, browser = Live("digits", grad_interval=1e-9), new_browser()
    live.begin()
    try:
        with flnb.record(grad_interval=None) as run:
            for i in range(6):
                train(1)
                pump.flush()
                browser.take(live.frame(keyframe=i == 0))
        live._table_due = 0.0
        browser.take(live.frame(keyframe=False))
    finally:
        live.finish()
    assert {name: row["count"] for name, row in browser.ops.items()} == {row.key[0]: row.count for row in run.ops}
    state_ = run.memory.at(run.seconds)
    assert set(browser.blocks) == {block.id for segment in state_.segments for block in segment.blocks}
    assert [value for *_, value in browser.metrics] == run.metrics["loss"]["value"].tolist()
    about, counters = browser.content["run"], browser.content["counters"]
    assert (about["backend"], about["manager"]) == (state.current().backend.name, state.current().manager.name)
    assert about["min_block"] == state.current().min_block
    assert counters["step"] == 5
    assert counters["dropped"] == 0
    assert counters["small_bytes"] > 0
    assert browser.tape is not None
    assert [node["id"] for node in browser.tape["nodes"]] == [node.id for node in run.tape.nodes]


@pytest.mark.parametrize("manager", [flnb.memory.Native, flnb.memory.Caching])
def test_a_recording_shows_the_active_manager_whatever_others_held_before(train: Any, manager: Any) -> None:
    def fragmentation() -> Any:
        with flnb.use_memory_manager(manager), flnb.record() as run:
            kept = [flnb.ones((64, 64 + i)) for i in range(16)]
            del kept[::2]
            flnb.zeros((8,))  # what was dropped is handed back here
        return run.memory.timeline(), run.memory.fragmentation().at_peak

    line, alone = fragmentation()
    big = flnb.zeros((1 << 22,))
    del big
    again, ratio = fragmentation()
    assert ratio == alone
    np.testing.assert_array_equal(line.reserved, again.reserved)
    np.testing.assert_array_equal(line.allocated, again.allocated)


def test_frees_of_blocks_that_were_never_announced_count_nothing(new_browser: Any) -> None:
    earlier = [flnb.ones((256, 256)) for _ in range(3)]
    live, browser = Live("frees"), new_browser()
    with flnb.use_memory_manager(flnb.memory.Native()), flnb.record() as run:
        live.begin()
        earlier.clear()
        kept = flnb.ones((256, 256))
        pump.flush()
        browser.take(live.frame(keyframe=True))
        live.finish()
    assert len(run.table("free_completed")["t"]) == 3
    line = run.memory.timeline()
    assert line.allocated.tolist()[-1] == line.allocated.max() >= kept.nbytes
    assert line.allocated.min() >= 0
    assert line.reserved.min() >= 0
    (block,) = (block for segment in run.memory.peak.segments for block in segment.blocks)
    assert set(browser.blocks) == {block.id}


def test_a_plan_of_more_bytes_than_a_column_holds_spoils_no_analysis() -> None:
    with pytest.raises(flnb.memory.OutOfMemoryError):
        flnb.zeros((2**62, 16))
    with flnb.record() as run:
        for _ in range(3):
            flnb.broadcast_to(flnb.ones((1,)), (2**60,))
    assert run.ops["broadcast_to"].count == 3
    assert run.ops["broadcast_to"].bytes == 2**62
    live = Live("large")
    live.begin()
    flnb.broadcast_to(flnb.ones((1,)), (2**60,))
    pump.flush()
    live.frame(keyframe=True)
    live.finish()
    assert live.tallies.by["op"].bytes.max() == 2**62


def test_all_parents_of_ops_with_many_operands_are_recorded() -> None:
    leaves = [flnb.Variable(np.full(2, float(i))) for i in range(14)]
    constant = flnb.asarray(np.ones(2))
    for count in (2, 3, 7, 8, 12, 14):
        with flnb.record() as run:
            flnb.sum(flnb.relu(flnb.concat([constant, *leaves[:count]]))).backward()
        concat, relu, total = run.tape.nodes
        assert [node.op for node in (concat, relu, total)] == ["concat", "relu", "sum"]
        assert sorted(concat.parents) == sorted(leaf._node[2] for leaf in leaves[:count])
        assert (relu.parents, total.parents) == ((concat.id,), (relu.id,))
