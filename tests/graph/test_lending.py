"""Addresses of the arrays that programs work on, and the pool of output arrays."""

import numpy as np
import pytest

from flnb.graph.lending import Lending, address_of

WHOLE = np.arange(12.0).reshape(3, 4)
READ_ONLY = WHOLE.view()
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    "array",
    [WHOLE, WHOLE[1:, 1:], WHOLE.T, WHOLE[::-1], WHOLE[:0], READ_ONLY, READ_ONLY[:, 2], WHOLE[1, 1:2].reshape(())],
    ids=["whole", "part", "transposed", "reversed", "empty", "read-only", "read-only column", "scalar"],
)
def test_the_address_of_any_view_is_that_of_its_first_element(array):
    assert address_of(array) == array.ctypes.data


def test_the_address_of_a_devices_array_is_that_of_its_memory():
    class Data:
        ptr = 1 << 40

    class Array:
        data = Data

    assert address_of(Array()) == 1 << 40


def test_ctrl_c_while_an_array_is_added_to_the_pool_does_no_harm():
    class Interrupted(dict):
        def __setitem__(self, number, lent):
            lending.known = {}
            raise KeyboardInterrupt

    lending = Lending()
    lending.known = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        lending.take("an output", lambda _: np.zeros(2))
    taken = [lending.take("an output", lambda _: np.zeros(2)).array for _ in range(4)]
    assert len({id(array) for array in taken}) == 4
