"""Addresses of the arrays that programs work on, and the pool of output arrays."""

import numpy as np
import pytest

from flnb.dispatch.plan import spec_of
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


def test_an_array_is_not_lent_again_while_its_tensor_is_used():
    def output():
        array = lending.take("an output", lambda _: np.zeros(2)).array
        return lending.tensor(array, spec)

    lending, spec = Lending(), spec_of((2,), np.dtype(np.float64))
    first, second = output(), output()
    assert first._data is not second._data
    assert first.shape == (2,)
    other = output()  # no third one is in the pool as long as the two are used
    assert other is not first
    assert other is not second
    made = id(second)
    del second
    assert id(output()) == made
    view, made = other._data[1:], id(other)
    del other
    assert id(output()) != made  # the view refers to the memory
    del view
    assert id(output()) == made


def test_a_tensor_of_an_array_that_is_not_in_the_pool_is_a_new_one():
    lending, array, spec = Lending(), np.zeros(2), spec_of((2,), np.dtype(np.float64))
    first, second = lending.tensor(array, spec), lending.tensor(array, spec)
    assert first is not second
    assert first._data is second._data is array
