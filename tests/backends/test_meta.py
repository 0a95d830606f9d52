"""The meta backend: shapes, dtypes, strides and memory of every op as on NumPy, and an error where a value is asked."""

import re

import numpy as np
import pytest

import flnb
from flnb import optim
from flnb.memory import Caching, HostDevice, Native, SimulatedDevice
from flnb.nn import Dropout, Linear
from flnb.show.modules import module_html
from flnb.show.tensors import tensor_html
from flnb.testing import check_backend
from flnb.testing.samples import samples

ASKING = ("nonzero", "nonzero-unique_all")  # samples whose result has a shape that depends on values


def on_addresses(min_block=0, manager=Caching):
    """A manager of a simulated device where tensors of so many bytes or more have blocks."""
    made = manager(SimulatedDevice())
    made.min_block = min_block
    return made


class EveryTensor(HostDevice):
    """Host memory with blocks for tensors of any size."""

    min_block = 0


@pytest.mark.parametrize("sample", samples(), ids=str)
def test_every_op_gives_the_shape_dtype_and_layout_of_numpy(sample):
    with flnb.use_memory_manager(Native(EveryTensor())):
        expected = sample.function(*map(flnb.asarray, sample.inputs))
        contiguous = expected._is_contiguous()
    for min_block in (0, 1 << 30):  # with a buffer to write, and without
        with flnb.use_backend("meta"), flnb.use_memory_manager(on_addresses(min_block)):
            if str(sample) in ASKING:
                with pytest.raises(TypeError, match="no values"):
                    sample.function(*map(flnb.asarray, sample.inputs))
                continue
            got = sample.function(*map(flnb.asarray, sample.inputs))
            assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
            assert got._is_contiguous() == contiguous or min_block


def test_the_conformance_kit_compares_shapes_where_there_are_no_values():
    report = check_backend("meta", dtypes=("float32",))
    assert [row.op for row in report.results if not row.passed] == ["nonzero"]


def test_views_lie_in_the_block_of_what_they_are_views_of():
    with flnb.use_backend("meta") as backend, flnb.use_memory_manager(on_addresses()) as manager:
        x = flnb.zeros((4, 6), np.float32)
        views = [x.reshape((2, 12)), x.T, x[1:, ::2], flnb.broadcast_to(x, (3, 4, 6)), flnb.flip(x), x.T[0]]
        blocks = {flnb.memory.block_of(view.data_of(backend)) for view in views}
        assert [block.requested for block in blocks] == [96]
        del blocks
        assert manager.stats()["live"] == 1
        assert [view._is_contiguous() for view in views] == [True, False, False, False, False, False]
        copied = x.T.reshape((24,))
        assert manager.stats()["live"] == 2
        del x, copied
        assert manager.stats()["live"] == 1  # the views keep it
        del views
        assert manager.stats()["live"] == 0


def trained(name, backend, device):
    """The trace of two steps of a recipe with Adam."""
    flnb.manual_seed(0)
    recipe = flnb.models.get(name)
    with flnb.use_backend(backend), flnb.use_memory_manager(Caching(device)), flnb.record(grad_interval=None) as run:
        model = recipe.build("small")
        batch = [flnb.asarray(array) for array in recipe.batch("small", size=2)]
        optimizer = optim.Adam(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            recipe.loss(model, *batch).backward()
            optimizer.step()
    return flnb.memory.trace(run)


def asked(trace):
    """What each op allocated, and what was freed between one of these allocations and the next.

    Left out is scratch memory inside a method of the backend, which is told of without an op: NumPy's convolutions have
    it. Of frees that nothing is allocated between, the order is not compared: it depends on whether a walk holds
    buffers (as over NumPy's arrays) or tensors.
    """
    rows = [row for row in range(len(trace.nbytes)) if trace.op[row]]
    number = {row + 1: i for i, row in enumerate(rows)}
    freed = [[]]
    for call in trace.calls.tolist():
        if abs(call) in number:
            freed.append([]) if call > 0 else freed[-1].append(number[-call])
    about = (trace.nbytes, trace.category, trace.op, trace.scope, trace.shapes)
    return [tuple(column[row] for column in about) for row in rows], [sorted(gap) for gap in freed]


@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet18", "bert"])
def test_training_asks_for_the_same_memory_as_on_numpy(name):
    real, dry = trained(name, "numpy", EveryTensor()), trained(name, "meta", SimulatedDevice())
    allocated, freed = asked(real)
    assert asked(dry) == (allocated, freed)
    assert all(dry.op[row] for row in range(len(dry.nbytes)))
    if name in ("mlp", "bert"):  # no convolution, so nothing but ops
        assert dry.peak_live == real.peak_live


def test_second_derivatives_run_without_values():
    with flnb.use_backend("meta"), flnb.use_memory_manager(on_addresses()):
        layer, x = Linear(3, 2), flnb.Variable(flnb.ones((5, 3)))
        (first,) = flnb.grad(lambda x: flnb.relu(layer(x)).sum(), argnums=(0,))(x)
        assert first.shape == (5, 3)
        twice = flnb.grad(lambda x: (flnb.grad(lambda x: (flnb.relu(layer(x)) ** 3).sum())(x) ** 2).sum())(x)
        assert (twice.shape, twice.dtype) == ((5, 3), np.float32)


ASKS = {
    "float": lambda x: float(x.sum()),
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(flnb.any(x)),
    "numpy": lambda x: x.numpy(),
    "tolist": lambda x: x.tolist(),
    "mask": lambda x: x[x > 0],
    "nonzero": lambda x: flnb.nonzero(x),
    "in": lambda x: 1.0 in x,
    "clip": lambda x: optim.clip_grad_norm([with_gradient(x)], 1.0),
}


def with_gradient(x):
    variable = flnb.Variable(x)
    (variable * 2.0).sum().backward()
    return variable


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_asking_for_a_value_says_that_there_is_none(ask):
    message = (
        r"backend 'meta' stores shapes and dtypes but no values, and the values of \w+\[[\d,]*\] were read: by "
        r"float\(\).*Leave this out of a dry run, or compute with values: flnb.use_backend\('numpy'\)"
    )
    with flnb.use_backend("meta"), flnb.use_memory_manager(on_addresses()), pytest.raises(TypeError, match=message):
        ask(flnb.ones((2, 3)))


def test_wrong_shapes_dtypes_and_indices_are_refused_as_on_numpy():
    with flnb.use_backend("meta"), flnb.use_memory_manager(on_addresses()):
        with pytest.raises(ValueError, match=re.escape("float32[2,3] and float32[4]")):
            flnb.ones((2, 3)) + flnb.ones((4,))
        with pytest.raises(IndexError, match="index 2 is out of range for axis 0"):
            flnb.ones((2, 3))[2]
        with pytest.raises(IndexError, match="expected integer or bool indices, got float32"):
            flnb.ones((2, 3))[flnb.ones((2,))]


def test_a_tensor_shows_its_shape_alone():
    with flnb.use_backend("meta"), flnb.use_memory_manager(on_addresses()):
        x, layer = flnb.ones((2, 3)), Linear(3, 2)
        y = layer(x)
        y.sum().backward()
        assert repr(x) == "Tensor(float32[2,3], meta)"
        assert repr(y) == "Variable(float32[2,2], meta, from linear)"
        assert "meta" in tensor_html(x)
        assert "float32[2,3]" in module_html(layer)
    assert repr(x) == "Tensor(float32[2,3], in a 'meta' buffer)"


def test_values_are_dropped_on_the_way_in_and_not_invented_on_the_way_out():
    x = flnb.asarray([1.0, 2.0])
    dry = x.to("meta")
    assert (dry.shape, dry.dtype) == ((2,), np.float32)
    with flnb.use_backend("meta"):
        assert Dropout(0.5)(dry).shape == (2,)
        with pytest.raises(TypeError, match="no values"):
            dry.to("numpy")


def test_a_recording_asks_for_no_gradient_norms():
    with flnb.use_backend("meta"), flnb.use_memory_manager(on_addresses()), flnb.record(grad_interval=0.0) as run:
        with_gradient(flnb.ones((2, 3)))
    assert run.ops["multiply"].count == 2
    assert not len(run.table("grad_stat")["t"])
