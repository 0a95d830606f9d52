"""What moves of saved tensors amount to: a device that suffices, events, memory over time, figures."""

import itertools
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest

import flnb
from flnb.memory import Caching, HostDevice, Native, OutOfMemoryError, offload
from tests.memory.test_offloading import MIB, N, live, start, tower

pytestmark = pytest.mark.usefixtures("nothing_held")


def train(device, wrap, steps=2, layers=48):
    """Parameters after some steps of a network whose saved activations are `layers` MiB, on a device."""
    with flnb.use_memory_manager(Caching(device)) as active:
        flnb.manual_seed(0)
        blocks = [[flnb.nn.Linear(N, N), flnb.nn.ReLU()] for _ in range(2)]
        net = flnb.nn.Sequential(*itertools.chain(*blocks))
        optimizer = flnb.optim.SGD(net.parameters(), lr=0.1)
        x = flnb.random.normal((N, N))
        for _ in range(steps):
            with wrap() as moves:
                y = net(x)
                for _ in range(layers):
                    y = flnb.tanh(y)
                (y * y).mean().backward()
            del y
            optimizer.step()
            optimizer.zero_grad()
        return [p.numpy().copy() for p in map(flnb.Variable.detach, net.parameters())], active, moves


def test_a_model_whose_activations_exceed_the_device_trains_to_the_same_bits():
    expected, unlimited, _ = train(HostDevice(), nullcontext)
    with pytest.raises(OutOfMemoryError, match="out of memory"):
        train(HostDevice("32MiB"), nullcontext)
    got, small, moves = train(HostDevice("32MiB"), offload)
    assert unlimited.stats()["peak_allocated"] > 48 * MIB
    assert small.stats()["peak_reserved"] <= 32 * MIB
    assert moves.away_bytes >= 40 * MIB
    assert moves.back == moves.away
    assert [g.tobytes() for g in got] == [e.tobytes() for e in expected]
    assert live(moves.manager) == 0


def test_a_manager_that_is_given_keeps_its_segments_for_the_next_step():
    host, seen = Caching(HostDevice("64MiB")), []
    for _ in range(2):
        with offload(host) as moves:
            tower(start()).backward()
        assert moves.away > 0
        assert live(host) == 0
        seen.append([state.segment.id for state in host.snapshot()])
    assert seen[0] == seen[1] != []
    with offload() as moves:
        tower(start()).backward()
    assert moves.manager.stats()["reserved"] == 0


@contextmanager
def recorded():
    with flnb.record(grad_interval=None) as run, offload(keep_last=0) as moves:
        yield run, moves
        y = tower(start())
        y.backward()


def test_every_move_is_an_event(manager, tmp_path):
    with recorded() as (run, moves):
        pass
    table = run.table("transfer")
    assert table["direction"].tolist() == [1] * 5 + [2] * 5  # away, back
    assert table["nbytes"].tolist() == [MIB] * 10
    assert table["copy"][:5].tolist() == table["copy"][:4:-1].tolist()  # the last away is the first back
    assert table["node"][:5].tolist() == table["node"][:4:-1].tolist()
    assert (table["t1"] > table["t0"]).all()
    spent = (table["t1"] - table["t0"]).sum() / 1e9
    np.testing.assert_allclose(spent, moves.away_seconds + moves.back_seconds, rtol=1e-6)
    born = dict(zip(*(run.table("alloc")[name].tolist() for name in ("alloc_id", "category")), strict=True))
    assert {born[number] for number in [*table["alloc_id"].tolist(), *table["copy"].tolist()]} == {3}
    assert "saved tensors moved: 5 away (5.00 MiB in " in repr(run)
    pytest.importorskip("pandas")
    frame = run.to_pandas("transfer")
    assert frame["direction"].tolist() == ["away"] * 5 + ["back"] * 5
    assert frame["phase"].tolist() == ["forward"] * 5 + ["backward"] * 5
    pytest.importorskip("pyarrow")
    run.save(tmp_path / "run.flnb")
    again = flnb.load_run(tmp_path / "run.flnb")
    assert again.table("transfer")["copy"].tolist() == table["copy"].tolist()
    assert again.summary() == run.summary()


def test_a_runs_memory_is_that_of_its_device(manager):
    with flnb.record() as without:
        tower(start()).backward()
    peak = without.memory.peak.allocated
    with recorded() as (run, moves):
        pass
    line = run.memory.timeline()
    assert run.memory.peak.allocated < peak
    assert run.memory.aside.allocated.max() == 5 * MIB
    assert line.allocated.max() + 5 * MIB > peak
    assert run.memory.aside.reserved.max() == moves.manager.device.peak
    assert line.reserved.max() <= manager.device.peak
    later = Native(HostDevice())
    with offload(later, keep_last=0):
        y = tower(start())
        with flnb.record() as run:  # begun when there is something away
            y.backward()
    assert run.memory.aside.allocated.max() == 5 * MIB
    assert run.memory.at(0.0).allocated < 5 * MIB


def test_live_views_count_the_device_alone(manager):
    from flnb_telemetry.live.memory import LiveMemory

    with recorded() as (run, _):
        pass
    view = LiveMemory()
    rows = np.concatenate([rows for _, rows in run._batches])
    view.fold(rows, rows[:0])
    told = view.news(True, run.start)[0]
    assert set(told["alloc.segment"].tolist()).isdisjoint(run.table("aside")["segment_id"].tolist())
    assert set(told["segment.id"].tolist()).isdisjoint(run.table("aside")["segment_id"].tolist())


def test_the_figure_marks_the_moves(manager):
    pytest.importorskip("plotly")
    with recorded() as (run, _):
        pass
    traces = {trace.name: trace for trace in flnb.plot.memory(run).data}
    assert max(traces["moved away"].y) == 5.0
    assert (len(traces["away"].x), len(traces["back"].x)) == (5, 5)
    assert traces["away"].mode == "markers"
    np.testing.assert_allclose(traces["away"].x, (run.table("transfer")["t0"][:5] - run.start) / 1e9)
    line = run.memory.timeline()
    live = [line.allocated[line.t <= t][-1] / MIB for t in traces["back"].x]
    np.testing.assert_allclose(traces["back"].y, live)
