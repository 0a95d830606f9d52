"""Pickles of plain values: read as `pickle` does, and nothing else is read."""

from __future__ import annotations

import itertools
import os
import pickle
import pickletools
from typing import TYPE_CHECKING, Any

import pytest
from flnb_telemetry.foreign.plain_pickle import PickleError, encoded, read
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from pathlib import Path

leaves = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=300)
)
keys = st.text(max_size=5)
plain = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner), max_leaves=40
)
shared = st.lists(st.sampled_from(["key", "name", "long" * 40, 5, 2**40, (1, 2)]), max_size=8)


def lists(value: Any) -> Any:
    """A value with its tuples as lists: a short list of references may come as a tuple, which all of them share."""
    if isinstance(value, dict):
        return {key: lists(item) for key, item in value.items()}
    return [lists(item) for item in value] if isinstance(value, (list, tuple)) else value


@given(
    value=plain,
    rows=st.lists(st.dictionaries(st.sampled_from(["a", "b", "c"]), leaves | shared)),
    protocol=st.integers(2, 5),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_pickle_writes_is_read(tmp_path: Path, value: Any, rows: list[Any], protocol: int) -> None:
    one = {"frames": [{"name": "f"}] * 3}
    whole = [value, rows, rows, [one, one, dict(one)]]
    path = tmp_path / "value.pickle"
    content = pickle.dumps(whole, protocol)
    for written in (content, pickletools.optimize(content)):
        path.write_bytes(written)
        assert lists(read(path)) == lists(whole)


@given(value=plain)
@settings(deadline=None)
def test_what_is_encoded_is_a_pickle(value: Any) -> None:
    assert pickle.loads(b"\x80\x04" + encoded(value) + b".") == value


def test_only_plain_values_are_encoded() -> None:
    with pytest.raises(TypeError, match="expected a plain value for a pickle, got set"):
        encoded({1})


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch executed",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_nothing_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "evil.pickle"
    path.write_bytes(pickle.dumps([{"action": "alloc", "addr": Evil()}], protocol))
    with pytest.raises(PickleError, match=r"would import (posix|nt)\.system .* nothing was executed"):
        read(path)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b"PK\x03\x04", "begins with b'PK', not as a pickle"),
        (b"\x80\x09N.", "not as a pickle of protocol 2 to 5"),
        (b"\x80\x04", "the file ends after 2 bytes, in the middle of a value"),
        (b"\x80\x04}(", "the file ends after 4 bytes, in the middle"),
        (b"\x80\x04X\xff\xff\xff\x7fab", "the file ends after 9 bytes, in the middle"),
        (b"\x80\x04h\x05.", "byte 2 uses stored value number 5, which is missing"),
        (b"\x80\x04Nr\xff\xff\xff\x7fj\xff\xff\xff\x7e.", "uses stored value number 2130706431, which"),
        (b"\x80\x04Nq\x00Nq\x00.", "stores a second value under number 0"),
        (b"\x80\x04\x8b\xff\xff\xff\x00.", "an integer of 16777215 bytes"),
        (b"\x80\x04NN.", "stops at byte 4 within a value"),
        (b"\x80\x04e.", "ends a list or dict that never began"),
        (b"\x80\x04N(Ne.", "appends to NoneType, expected a list"),
        (b"\x80\x04}(Nu.", "sets items of dict, expected a dict and pairs"),
        (b"\x80\x04}]Ns.", "sets a key of type list, expected a string"),
        (b"\x80\x04}K\x01Ns.", "sets a key of type int, expected a string"),
        (b"\x80\x04\x8c\x01a\x94}(h\x00\x8c\x01\xffu.", "no pickle of plain values"),
        (b"\x80\x04\x8c\x03\x1b[m\x94\x93.", r"would import \\x1b\[m "),
        (b"\x80\x04\x86.", "needs 2 values, got 0"),
        (b"\x80\x04\xff.", "byte 2 is 0xff, which is not a pickle opcode"),
        (b"\x80\x04X\x01\x00\x00\x00\xff.", "no pickle of plain values"),
        (b"\x80\x04B\x01\x00\x00\x00a.", "would execute the opcode BINBYTES"),
        (b"\x80\x02cos\nsystem\n(X\x01\x00\x00\x00atR.", r"would import os\.system"),
    ],
)
def test_what_is_no_pickle_of_plain_values_is_told(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "broken.pickle"
    path.write_bytes(content)
    with pytest.raises(PickleError, match=says):
        read(path)


@given(cut=st.integers(0, 400), flip=st.integers(0, 400), byte=st.integers(0, 255))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_is_an_error_or_another_value(tmp_path: Path, cut: int, flip: int, byte: int) -> None:
    content = bytearray(pickle.dumps([{"k": i, "name": f"n{i}", "frames": [["a"], ["b"]]} for i in range(20)], 4))
    content[flip % len(content)] = byte
    path = tmp_path / "damaged.pickle"
    path.write_bytes(content[: len(content) - cut] if cut < len(content) else content)
    try:
        read(path)
    except PickleError:
        pass  # no other kind of error


NESTED = b")" + b"\x86".join([b"\x94h" + bytes([i]) for i in range(200)]) + b"\x86"  # () in () twice, 200 times


@pytest.mark.timeout(20, method="thread")
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"}" + NESTED + b"Ns", "a key of type tuple"),
        (b"}(" + NESTED + b"Nu", "a key of type tuple"),
        (b"(" + NESTED + b"Nd", "a key of type tuple"),
        (b"\x8c\x01a" + NESTED + b"\x93", "would import a "),
    ],
)
def test_values_that_stand_for_endless_ones_are_refused_at_once(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "nested.pickle"
    path.write_bytes(b"\x80\x04" + content + b".")
    with pytest.raises(PickleError, match=says):
        read(path)


@pytest.mark.timeout(60, method="thread")
def test_rows_of_ever_new_keys_take_no_longer_than_others(tmp_path: Path) -> None:
    """A pattern for each would take minutes."""
    texts = b"".join(b"\x8c\x01%c\x94" % (97 + i) for i in range(20))
    keys = itertools.islice(itertools.permutations(range(20), 12), 20_000)
    rows = b"".join(b"}(" + b"".join(b"h%cN" % key for key in some) + b"u" for some in keys)
    path = tmp_path / "rows.pickle"
    path.write_bytes(b"\x80\x04(" + texts + b"](" + rows + b"et.")
    *_, found = read(path)
    assert len(found) == 20_000


@pytest.mark.timeout(60, method="thread")
def test_lists_in_lists_without_end_are_read_and_let_go(tmp_path: Path) -> None:
    path, depth = tmp_path / "deep.pickle", 1_000_000
    path.write_bytes(b"\x80\x04" + b"]" * depth + b"a" * (depth - 1) + b".")
    assert len(read(path)) == 1


def test_rows_are_handed_over_in_order_and_let_go(tmp_path: Path) -> None:
    path = tmp_path / "rows.pickle"
    shared = {"name": "f"}
    rows = [{"row": i, "text": "same", "frames": [shared]} for i in range(10_000)]
    seen: list[int] = []

    def gather(items: list[Any]) -> list[Any]:
        taken = [item for item in items if item.__class__ is dict and "row" in item]
        seen.extend(item["row"] for item in taken)
        assert all(item["frames"][0] == shared for item in taken)
        for item in taken:
            item.clear()
        return [len(taken), *(item for item in items if item)] if taken else items

    for protocol in (2, 4):
        seen.clear()
        path.write_bytes(pickle.dumps({"rows": rows, "after": shared}, protocol))
        value = read(path, gather)
        assert seen == list(range(10_000))
        assert sum(value["rows"]) == 10_000
        assert value["after"] == shared


def test_rows_that_are_kept_are_not_handed_over_again_with_each_row(tmp_path: Path) -> None:
    path, count, handed = tmp_path / "rows.pickle", 20_000, 0

    def gather(items: list[Any]) -> list[Any]:
        nonlocal handed
        handed += len(items)
        return items

    path.write_bytes(b"\x80\x04(\x8c\x01a\x94](" + b"}(h\x00K\x01u" * count + b"et.")
    assert read(path, gather) == ("a", [{"a": 1}] * count)
    assert count <= handed <= 2 * count  # as they come, and when the list ends
