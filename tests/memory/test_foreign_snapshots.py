"""Files that are no PyTorch memory snapshots, damaged ones and hostile ones: one kind of error, at once."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
from flnb_telemetry import schema
from flnb_telemetry.formats.parquet import RunFileError
from flnb_telemetry.live.recording import LiveRecording
from flnb_telemetry.recording import Recording
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flnb.memory import load_snapshot
from tests.memory.pretended_torch import BASE, MIB, event, saved

if TYPE_CHECKING:
    from pathlib import Path

FAST = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

GOOD = event("alloc", BASE, 7)
LIVE = {"size": 512, "state": "active_allocated"}
SEGMENT = {"device": 0, "address": BASE, "total_size": 512, "blocks": [LIVE]}
CUT_UP = [event("segment_map", BASE, 2000 * MIB)]
CUT_UP += [event("segment_unmap", BASE + (2 * i + 1) * MIB, MIB) for i in range(990)]
CUT_UP += [event(action, BASE, 2000 * MIB) for action in ["segment_unmap", "segment_map"] * 200]
FRAME = {"name": "f", "filename": "a.py", "line": 1}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (3, "the file holds 3, expected a dict with segments and device_traces"),
        ({"weights": 1}, "the file holds a dict with 'weights', expected"),
        ({"segments": {}, "device_traces": []}, "segments is a dict of 0, expected a list"),
        ({"segments": [], "device_traces": [3]}, r"device_traces\[0\] is 3, expected a list of events"),
        ({"segments": [], "device_traces": [[3]]}, r"device_traces\[0\] holds 3, expected events"),
        (
            {"segments": [{"device": 0}], "device_traces": []},
            "a segment is a dict with 'device', expected a dict with a list of blocks",
        ),
        ({"segments": [7], "device_traces": []}, "a segment is 7, expected a dict with a list of blocks"),
        ({"device_traces": [[GOOD | {"addr": "x"}]]}, "an event has addr 'x', expected an integer from 0 to "),
        ({"device_traces": [[GOOD | {"size": 2**70}]]}, "an event has size 1180591620717411303424, expected"),
        ({"device_traces": [[GOOD | {"size": [1]}]]}, "an event has size a list of 1, expected"),
        ({"device_traces": [[GOOD | {"size": 1.5}]]}, "an event has size 1.5, expected"),
        ({"device_traces": [[GOOD | {"frames": 1}]]}, "frames is int, expected a list of frames"),
        (
            {"device_traces": [[GOOD | {"frames": [{"name": "f"}]}]]},
            "a frame is a dict with 'name', expected a dict with name",
        ),
        ({"device_traces": [[GOOD | {"frames": [[FRAME]]}]]}, "a frame is .*, expected a dict with name"),
        (
            {"device_traces": [[GOOD | {"frames": [FRAME]}, GOOD | {"frames": FRAME}]]},
            "frames is dict, expected a list",
        ),
        ({"device_traces": [[GOOD | {"action": []}]]}, "an event's action or category is not a string"),
        ({"device_traces": [[GOOD | {"time_us": 2**62}]]}, "an event has time_us 4611686018427387904, expected"),
        ({"device_traces": [[GOOD | {"size": -1}]]}, "an event has size -1, expected an integer from 0 to"),
        ({"device_traces": [[GOOD | {"frames": [FRAME | {"line": 2**90}]}]]}, "a frame is .*, expected strings as"),
        ({"segments": [SEGMENT | {"blocks": [7]}]}, "a block is 7, expected a dict with size and state"),
        ({"segments": [SEGMENT | {"blocks": [{"state": "inactive"}]}]}, "a block has size None, expected an integer"),
        ({"segments": [SEGMENT | {"address": 2**63}]}, "a segment has address 9223372036854775808, expected"),
        ({"segments": [SEGMENT] * 2}, "two segments have the same list of blocks"),
        ({"segments": [SEGMENT | {"blocks": [LIVE | {"history": [3]}]}]}, "a block has history a list of 1, expected"),
        ({"device_traces": [CUT_UP]}, "segments overlap in thousands of pieces"),
    ],
)
def test_what_is_no_snapshot_is_told(tmp_path: Path, value: Any, says: str) -> None:
    path = saved(tmp_path / "other.pickle", value)
    with pytest.raises(RunFileError, match=r"'.*other\.pickle' is not a readable PyTorch memory snapshot: .*" + says):
        load_snapshot(path)


def endless(kind: Any = list) -> Any:
    """A list of lists (or tuple of tuples) in which the innermost comes 2**200 times."""
    value = kind()
    for _ in range(200):
        value = kind((value, value))
    return value


@pytest.mark.timeout(30, method="thread")
@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize(
    "where",
    [
        lambda nested: nested,
        lambda nested: [nested],
        lambda nested: {"segments": nested},
        lambda nested: {"segments": [], "device_traces": nested},
        lambda nested: {"device_traces": [[nested]]},
        lambda nested: {"device_traces": [[GOOD | {"action": nested}]]},
        lambda nested: {"device_traces": [[GOOD | {"category": nested}]]},
        lambda nested: {"device_traces": [[GOOD | {"size": nested}]]},
        lambda nested: {"device_traces": [[GOOD | {"frames": nested}]]},
        lambda nested: {"device_traces": [[GOOD | {"frames": [FRAME | {"name": nested}]}]]},
        lambda nested: {"device_traces": [[GOOD | {"frames": [FRAME | {"shape": nested, "dtype": "", "phase": 0}]}]]},
        lambda nested: {"segments": [SEGMENT | {"device": nested}]},
        lambda nested: {"segments": [SEGMENT | {"blocks": nested}]},
        lambda nested: {"segments": [SEGMENT | {"blocks": [LIVE | {"history": nested}]}]},
    ],
)
def test_a_few_bytes_that_stand_for_an_endless_value_are_refused_at_once(tmp_path: Path, where: Any, kind: Any) -> None:
    path = saved(tmp_path / "tiny.pickle", where(endless(kind)))
    assert path.stat().st_size < 4000
    with pytest.raises(RunFileError, match="is not a readable PyTorch memory snapshot"):
        load_snapshot(path)


@pytest.mark.timeout(30, method="thread")
def test_what_a_foreign_file_says_of_itself_is_kept_only_where_it_is_plain(tmp_path: Path) -> None:
    about = {"name": endless(), "meta": {"manager": endless(), "backend": "b"}, "start": (1, 2**90), "cuts": endless()}
    run = load_snapshot(saved(tmp_path / "s.pickle", {"segments": [SEGMENT], "device_traces": [[GOOD]], "flnb": about}))
    assert (run.name, run.meta["manager"], run.meta["backend"]) == ("s", "PyTorch's caching allocator", "b")
    assert "run 's' finished" in repr(run)


def test_long_names_of_files_cost_no_more_than_their_length(tmp_path: Path) -> None:
    trace = [GOOD | {"frames": [FRAME | {"filename": "a" * 2_000_000 + ".py"}]}]
    run = load_snapshot(saved(tmp_path / "s.pickle", {"device_traces": [trace]}))
    assert len(run.catalog.contexts.items[1].scope) == 2_000_007


def test_a_snapshot_has_the_columns_of_a_recording_and_can_be_viewed(tmp_path: Path) -> None:
    run = load_snapshot(
        saved(
            tmp_path / "s.pickle", {"segments": [SEGMENT], "device_traces": [[GOOD, event("segment_map", BASE, MIB)]]}
        )
    )
    empty = Recording()
    for kind in schema.KINDS:
        assert run.table(kind).keys() == empty.table(kind).keys()
    assert list(LiveRecording(run).frames())


WHOLE = {"segments": [SEGMENT], "device_traces": [[GOOD | {"frames": [FRAME]}, event("segment_map", BASE, MIB)]]}
WHOLE |= {"flnb": {"name": "n", "meta": {"backend": "b"}, "start": (1, 2), "end": (3, 4), "cuts": [BASE]}}
BYTES = {protocol: pickle.dumps(WHOLE, protocol) for protocol in (2, 4)}


@given(
    protocol=st.sampled_from([2, 4]),
    flips=st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 2**16),
)
@FAST
def test_damage_is_the_named_error_or_another_snapshot(tmp_path: Path, protocol: int, flips: Any, cut: int) -> None:
    content = bytearray(BYTES[protocol])
    for at, byte in flips:
        content[at % len(content)] = byte
    path = tmp_path / "damaged.pickle"
    path.write_bytes(content[: cut if cut < len(content) else None])
    try:
        repr(load_snapshot(path))
    except RunFileError:
        pass


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"load_snapshot: no file '.*none\.pickle'"):
        load_snapshot(tmp_path / "none.pickle")
