"""An epoch goes on where a checkpoint was taken, with every combinator below."""

import json

import numpy as np
import pytest

from flnb.data import BatchDataset, ConcatDataset, PrefetchDataset, ShuffleDataset, TensorDataset


def make(prefetch: bool):
    concat = ConcatDataset(ShuffleDataset(TensorDataset(np.arange(9)), seed=1), TensorDataset(np.arange(9, 13)))
    batches = BatchDataset(ShuffleDataset(concat, seed=2), 3)
    return PrefetchDataset(batches, workers=2) if prefetch else batches


def epoch(dataset) -> list[list[int]]:
    return [x.tolist() for (x,) in dataset]


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("stop", [0, 1, 4, 5])
def test_a_resumed_epoch_is_the_rest_of_the_one_left(prefetch, stop):
    dataset = make(prefetch)
    plain = make(False)
    whole = [epoch(plain) for _ in range(3)]
    assert epoch(dataset) == whole[0]
    items = iter(dataset)
    for _ in range(stop):
        next(items)
    saved = json.loads(json.dumps(dataset.state))
    assert saved == {"epoch": 1, "index": stop, "size": 5}
    again = make(prefetch)
    again.state = saved
    assert again.state == saved
    assert [epoch(again), epoch(again)] == [whole[1][stop:], whole[2]]
    assert again.state == {"epoch": 3, "index": 0, "size": 5}


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"epoch": 0, "index": 0, "size": 6}, "state is of a dataset of 6 items, BatchDataset has 5"),
        ({"epoch": 0, "index": 6, "size": 5}, "epoch 0, index 6 is not a position in a dataset of 5"),
        ({"epoch": -1, "index": 0, "size": 5}, "epoch -1, index 0 is not a position"),
        ({"epoch": 0}, "a dict of epoch, index and size, got {'epoch': 0}"),
        (3, "a dict of epoch, index and size, got 3"),
    ],
)
def test_a_wrong_state_is_refused(state, text):
    with pytest.raises(ValueError, match=text):
        make(False).state = state
