"""Combinators of indices against what a list of the same samples does."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flnb.data import (
    BatchDataset,
    ConcatDataset,
    ResampleDataset,
    ShuffleDataset,
    SpanDataset,
    TensorDataset,
    round_robin,
)

sizes = st.integers(0, 12)


def numbers(count: int, start: int = 0) -> TensorDataset:
    return TensorDataset(np.arange(start, start + count))


def values(dataset) -> list[int]:
    return [int(x) for (x,) in dataset]


@st.composite
def pairs(draw, depth: int = 3):
    """A dataset under random combinators, and the list it should be."""
    kind = draw(st.sampled_from(["numbers", "resample", "span", "concat"])) if depth else "numbers"
    if kind == "numbers":
        count, start = draw(sizes), draw(st.integers(0, 99))
        return numbers(count, start), list(range(start, start + count))
    dataset, model = draw(pairs(depth=depth - 1))
    if kind == "resample":
        order = draw(st.lists(st.integers(-len(model), len(model) - 1), max_size=12)) if model else []
        return ResampleDataset(dataset, order), [model[i] for i in order]
    if kind == "span":
        start = draw(st.integers(0, len(model)))
        length = draw(st.none() | st.integers(0, len(model) - start))
        return SpanDataset(dataset, start, length), model[start:][:length]
    other, more = draw(pairs(depth=depth - 1))
    return ConcatDataset(dataset, other), model + more


@given(pairs(), st.data())
def test_indices_agree_with_a_list(pair, data):
    dataset, model = pair
    assert (len(dataset), values(dataset)) == (len(model), model)
    for index in (len(model), -len(model) - 1):
        with pytest.raises(IndexError, match=f"of length {len(model)} has no item {index}"):
            dataset[index]
        with pytest.raises(IndexError, match=r"has no item"):
            dataset.take(np.asarray([index]))
    if model:
        chosen = data.draw(st.lists(st.integers(-len(model), len(model) - 1), min_size=1, max_size=9))
        assert [int(dataset[i][0]) for i in chosen] == [model[i] for i in chosen]
        assert dataset.take(np.asarray(chosen))[0].tolist() == [model[i] for i in chosen]


@given(sizes, st.integers(0, 2**31))
def test_shuffling_is_a_permutation(count, seed):
    shuffled = ShuffleDataset(numbers(count), seed)
    first, second = values(shuffled), values(shuffled)
    assert sorted(first) == sorted(second) == list(range(count))
    assert values(ShuffleDataset(numbers(count), seed)) == first


@given(sizes, st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_round_robin_deals_each_index_to_one_part(samples, parts, batch, allow_empty):
    dealt = [round_robin(samples, part, parts, batch, allow_empty).tolist() for part in range(parts)]
    together = sorted(index for part in dealt for index in part)
    left_out = samples - len(together)
    assert together == list(range(samples - left_out))
    assert 0 <= left_out < (1 if allow_empty else parts)
    if not allow_empty:  # all take equally many steps
        assert len({-(-len(part) // batch) for part in dealt}) == 1
    rounds = samples // (parts * batch)
    for part, indices in enumerate(dealt):
        model = [r * parts * batch + part * batch + i for r in range(rounds) for i in range(batch)]
        assert indices[: len(model)] == model


@given(st.integers(1, 20), st.integers(1, 6), st.sampled_from(["include", "skip"]))
def test_batches_agree_with_slices(count, size, last):
    model = [list(range(count))[i : i + size] for i in range(0, count, size)]
    if last == "skip":
        model = [group for group in model if len(group) == size]
    assume(model)
    batches = BatchDataset(numbers(count), size, last)
    assert [x.tolist() for (x,) in batches] == model
    assert len(batches) == len(model)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: ResampleDataset(numbers(3), [0, 3]), IndexError, "TensorDataset of length 3 has no item 3"),
        (lambda: ResampleDataset(numbers(3), [0.5]), TypeError, r"whole numbers, got shape \(1,\) of float64"),
        (lambda: SpanDataset(numbers(3), 2, 2), ValueError, "expected a range within 3 samples, got 2 to 4"),
        (lambda: SpanDataset(numbers(3), -1), ValueError, "expected a range within 3 samples, got -1 to 3"),
        (lambda: round_robin(4, 2, 2), ValueError, "got samples 4, part 2 of 2, batch 1"),
        (lambda: ResampleDataset(numbers(0), [])[0], IndexError, "ResampleDataset of length 0 has no item 0"),
    ],
)
def test_errors(make, error, text):
    with pytest.raises(error, match=text):
        make()
