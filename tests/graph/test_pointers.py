"""The places in a program's calls that hold the addresses of arrays that differ from run to run."""

import numpy as np
import pytest

from flnb.graph.pointers import MANY, Pointers


@pytest.mark.parametrize("count", [1, MANY - 1, MANY, 3 * MANY], ids=str)
def test_all_addresses_at_once_are_those_set_one_by_one(count):
    rng = np.random.default_rng(count)
    values = [f"value {i}" for i in range(count)]
    addresses = [int(x) for x in rng.integers(1 << 40, 1 << 62, count)]
    found = []
    for at_once in (True, False):
        segments = [np.full(2 * count, 7, np.uint64), np.full(5, 7, np.uint64), np.zeros(0, np.uint64)]
        pointers = Pointers(values)
        pointers.add(segments[0], [(value, 2 * i, 64 * i) for i, value in enumerate(values)])
        pointers.add(segments[1], [(values[-1], 3, 0), (values[0], 1, 8), (values[0], 0, -40)])
        pointers.add(segments[2], [])
        assert [*pointers.values] == values
        if at_once:
            pointers.set_all(addresses)
        else:
            for value, address in zip(values, addresses, strict=True):
                pointers.set(value, address)
        found.append([segment.tolist() for segment in segments])
    expected = [x for i, address in enumerate(addresses) for x in (address + 64 * i, 7)]
    last = [addresses[0] - 40, addresses[0] + 8, 7, addresses[-1], 7]
    assert found == [[expected, last, []]] * 2
