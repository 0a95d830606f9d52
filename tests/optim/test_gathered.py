"""Small parameters side by side: the same bits as one by one, fewer ops, the state still by parameter."""

import copy
import pickle

import numpy as np
import pytest
from flnb_telemetry import intern, schema

import flnb
import flnb.nn as nn
import flnb.optim as optim
from flnb.optim.gathered import LARGEST, LONGEST

GATHERING = [
    (optim.Adam, {"weight_decay": 0.1}), (optim.AdamW, {}), (optim.AMSgrad, {}), (optim.Adadelta, {}),
    (optim.RMSProp, {"momentum": 0.5, "centered": True}), (optim.Adagrad, {"lr_decay": 0.1}),
]  # fmt: skip
SHAPES = [(4, 3), (3,), (), (2, 1, 3), (LARGEST // 4 + 1,)]
EACH = pytest.mark.parametrize(("kind", "settings"), GATHERING, ids=lambda x: getattr(x, "__name__", ""))


def parameters():
    rng = np.random.default_rng(0)
    return [nn.Parameter(flnb.asarray(rng.standard_normal(shape).astype(np.float32))) for shape in SHAPES]


def give_gradients(items, step, leave_out=()):
    rng = np.random.default_rng(100 + step)
    for i, item in enumerate(items):
        g = rng.standard_normal(item.shape).astype(np.float32)
        item.grad = None if i in leave_out else flnb.asarray(g)


def alone(kind):
    """The same algorithm, each parameter by itself: a subclass does not say that it gathers."""
    return type(kind.__name__, (kind,), {})


@EACH
def test_same_bits_as_one_by_one(kind, settings):
    results = []
    for one in (kind, alone(kind)):
        items = parameters()
        optimizer = one(items, **settings)
        for step in range(9):  # of 3, 4 and 7, one parameter has no gradient; from then on it is an update behind
            give_gradients(items, step, leave_out=(1,) if step in (3, 4, 7) else ())
            optimizer.step()
        results.append(
            [item.data.numpy() for item in items] + [v.numpy() for v in optimizer.state_dict()["state"].values()]
        )
    for gathered, single in zip(*results, strict=True):
        np.testing.assert_array_equal(gathered, single)


@EACH
def test_state_goes_between_gathered_and_single(kind, settings):
    items, others = parameters(), parameters()
    first, second = kind(items, **settings), alone(kind)(others, **settings)
    for step in range(3):
        give_gradients(items, step)
        first.step()
    for item, other in zip(items, others, strict=True):
        flnb.assign(other.data, item.data)
    second.load_state_dict(first.state_dict())
    for group, optimizer in ((items, first), (others, second)):
        give_gradients(group, 3)
        optimizer.step()
    for item, other in zip(items, others, strict=True):
        np.testing.assert_array_equal(item.data.numpy(), other.data.numpy())


def test_ops_of_a_step_do_not_grow_with_every_parameter():
    counts = {}
    for number in (2, 12):
        items = [nn.Parameter(flnb.ones((3,))) for _ in range(number)]
        optimizer = optim.Adam(items)
        give_gradients(items, 0)
        optimizer.step()
        with flnb.record() as run:
            optimizer.step()
        counts[number] = len(run.table("op")["t0"])
    assert counts == {2: 3, 12: 3}  # all copies to the vectors, the update, all copies back


def test_copies_are_made_one_by_one_where_the_user_overrides_copy():
    class Counting(flnb.backends.NumpyBackend):
        copied = 0

        def copy(self, x, out=None):
            Counting.copied += 1
            return super().copy(x, out)

    with flnb.use_backend(Counting()):
        items = [nn.Parameter(flnb.ones((3,))) for _ in range(4)]
        optimizer = optim.Adam(items, lr=0.5)
        give_gradients(items, 0)
        before, Counting.copied = [item.data.numpy().copy() for item in items], 0
        optimizer.step()
        assert Counting.copied == 4 * 3  # data and gradient to the vectors, and the data back
        for item, old in zip(items, before, strict=True):
            np.testing.assert_allclose(np.abs(item.data.numpy() - old), 0.5, rtol=1e-4)


def test_large_parameters_are_updated_block_by_block_to_the_same_bits():
    for kind, settings in [(optim.AdamW, {}), (optim.AMSgrad, {"weight_decay": 0.1}), (optim.NAG, {"lr": 0.1})]:
        results = []
        for one in (kind, alone(kind)):
            rng = np.random.default_rng(0)
            shapes = [(300, 211), (211, 300)]  # more than a block, and no multiple of one
            items = [nn.Parameter(flnb.asarray(rng.standard_normal(s).astype(np.float32))) for s in shapes]
            optimizer = one(items, **settings)
            for step in range(3):
                give_gradients(items, step)
                optimizer.step()
            results.append([item.data.numpy() for item in items])
        for whole, single in zip(*results, strict=True):
            np.testing.assert_array_equal(whole, single)


def test_a_parameter_written_between_steps_is_seen_and_gradients_are_left():
    items = [nn.Parameter(flnb.asarray([1.0])), nn.Parameter(flnb.asarray([2.0]))]
    optimizer = optim.Adam(items, lr=0.5)
    for item in items:
        item.grad = flnb.asarray([1.0])
    optimizer.step()
    flnb.assign(items[0].data, flnb.asarray([10.0]))
    optimizer.step()
    assert float(items[0].data[0]) == pytest.approx(9.5)
    assert float(items[1].data[0]) == pytest.approx(1.0)
    assert items[0].grad.numpy().tolist() == [1.0]


@EACH
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
def test_a_copy_goes_on_like_the_original(kind, settings, copied):
    items = parameters()
    optimizer = kind(items, **settings)
    give_gradients(items, 0)
    optimizer.step()
    others, other = copied((items, optimizer))
    for step in (1, 2):
        for group, one in ((items, optimizer), (others, other)):
            give_gradients(group, step)
            one.step()
    for one, two in zip(items, others, strict=True):
        np.testing.assert_array_equal(one.data.numpy(), two.data.numpy())


def test_parameters_that_share_memory_are_updated_one_after_the_other():
    shared = flnb.asarray([1.0, 2.0])
    items = [flnb.Variable(shared), flnb.Variable(shared), *(nn.Parameter(flnb.ones((2,))) for _ in range(2))]
    optimizer = optim.Adam(items, lr=0.1)
    for _ in range(2):
        for item in items:
            item.grad = flnb.ones((2,))
        optimizer.step()
        items[2].data = items[3].data  # shared from the second step on
    np.testing.assert_allclose(shared.numpy(), [0.6, 1.6], rtol=1e-5)
    np.testing.assert_allclose(items[3].data.numpy(), 0.7, rtol=1e-5)


def test_one_without_a_gradient_parts_its_neighbours_and_no_more():
    items = [nn.Parameter(flnb.ones((3,))) for _ in range(9)]
    optimizer = optim.Adam(items)
    counts = []
    for late in (False, True, False, False):
        give_gradients(items, 0, leave_out=(4,) if late else ())
        with flnb.record() as run:
            optimizer.step()
        phases = [intern.contexts.items[context].phase for context in run.table("op")["context"].tolist()]
        counts.append(phases.count(schema.OPTIMIZER))
    assert counts[2:] == [7, 7]  # two vectors, and the one between them, an update behind


def test_a_gradient_of_another_dtype_is_an_error_and_counts_nothing():
    items = [nn.Parameter(flnb.ones((2,))) for _ in range(3)]
    optimizer = optim.Adam(items)
    give_gradients(items, 0)
    optimizer.step()
    items[1].grad = flnb.ones((2,), dtype="float64")
    with pytest.raises(ValueError, match=r"float64\[2\] but out is float32\[2\]"):
        optimizer.step()


def test_many_parameters_make_several_vectors_that_share_their_room():
    shapes = [(LARGEST // 4,)] * (2 * LONGEST // LARGEST) + [(7,), (8,)]
    items = [nn.Parameter(flnb.ones(shape)) for shape in shapes]
    optimizer = optim.Adam(items, lr=0.5)
    give_gradients(items, 0)
    before = flnb.memory.stats()["allocated"]
    optimizer.step()
    assert [len(vector.members) for vector in optimizer._gathered] == [8, 8, 2]
    state = 2 * sum(item.data.nbytes for item in items)
    assert flnb.memory.stats()["allocated"] - before <= state + 3 * LONGEST + LARGEST + 4096
    single = [nn.Parameter(flnb.ones(shape)) for shape in shapes]
    give_gradients(single, 0)
    alone(optim.Adam)(single, lr=0.5).step()
    for item, other in zip(items, single, strict=True):
        np.testing.assert_array_equal(item.data.numpy(), other.data.numpy())


def test_parameters_of_two_dtypes_are_gathered_apart():
    items = [nn.Parameter(flnb.ones((3,), dtype=dtype)) for dtype in ("float32", "float64") * 2]
    optimizer = optim.Adam(items, lr=0.5)
    for item in items:
        item.grad = flnb.ones((3,), dtype=item.dtype)
    optimizer.step()
    assert [item.data.dtype.name for item in items] == ["float32", "float64"] * 2
    for item in items:
        np.testing.assert_allclose(item.data.numpy(), 0.5, rtol=1e-6)


def test_a_subclass_that_asks_which_parameter_it_has_gets_each():
    seen = []

    class Watching(optim.Adam):
        def update(self, data, gradient, state, scratch):
            seen.append(data.shape)
            super().update(data, gradient, state, scratch)

    items = parameters()
    give_gradients(items, 0)
    Watching(items).step()
    assert seen == SHAPES


def test_a_model_cast_after_the_first_step_is_an_error():
    net = nn.Linear(3, 2)
    optimizer = optim.Adam(net.parameters())
    give_gradients(optimizer.parameters, 0)
    optimizer.step()
    net.astype("float64")
    for item in optimizer.parameters:
        item.grad = flnb.ones(item.shape, dtype="float64")
    with pytest.raises(RuntimeError, match=r"Adam: parameter 0 is float64\[.*\] now, its state was made for float32"):
        optimizer.step()
