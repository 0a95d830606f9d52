"""Module: finding state in attributes, names, modes, state dicts, hooks, scopes and how it shows itself."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest
from flnb_telemetry import bus, intern

import flnb
import flnb.nn as nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm(width)

    def forward(self, x):
        return flnb.relu(self.norm(self.linear(x))) + x


class Net(nn.Module):
    def __init__(self, width: int = 4) -> None:
        self.blocks = [Block(width), Block(width)]
        self.heads = {"left": nn.Linear(width, 2, bias=False)}
        self.scale = nn.Parameter(flnb.ones((2,)))
        self.count = flnb.zeros((1,))
        self._scratch = flnb.zeros((9,))
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.drop(self.heads["left"](x)) * self.scale


PARAMETERS = [
    "scale",
    "blocks.0.linear.weight",
    "blocks.0.linear.bias",
    "blocks.0.norm.weight",
    "blocks.0.norm.bias",
    "blocks.1.linear.weight",
    "blocks.1.linear.bias",
    "blocks.1.norm.weight",
    "blocks.1.norm.bias",
    "heads.left.weight",
]
BUFFERS = ["count"] + [f"blocks.{i}.norm.running_{what}" for i in (0, 1) for what in ("mean", "var")]


def test_parameters_buffers_and_modules_are_found_in_attributes_and_containers():
    net = Net()
    assert [name for name, _ in net.named_parameters()] == PARAMETERS
    assert [name for name, _ in net.named_buffers()] == BUFFERS
    assert all(isinstance(parameter, nn.Parameter) for parameter in net.parameters())
    modules = [name for name, _ in net.named_modules()]
    assert modules[:4] == ["", "blocks.0", "blocks.0.linear", "blocks.0.norm"]
    assert modules[-2:] == ["heads.left", "drop"]


def test_a_shared_module_and_a_cycle_are_listed_once():
    net = Net()
    net.again = net.blocks[0]
    net.blocks[1].parent = net
    assert [name for name, _ in net.named_parameters()] == PARAMETERS


def test_parameter_owns_its_data_and_counts_as_parameter_memory():
    source = np.ones((64, 64), np.float32)
    parameter = nn.Parameter(flnb.asarray(source))
    source[:] = 7
    assert (parameter.detach().numpy() == 1).all()
    other = nn.Parameter(parameter)
    flnb.assign(parameter.data, flnb.zeros((64, 64)))
    assert (other.detach().numpy() == 1).all()
    assert not nn.Parameter(flnb.ones((2,)), requires_grad=False).requires_grad


def test_train_eval_and_zero_grad_reach_everything():
    net = Net()
    assert net.eval() is net
    assert not any(module.training for _, module in net.named_modules())
    net.train()
    flnb.sum(net(flnb.ones((3, 4)))).backward()
    assert net.scale.grad is not None
    net.zero_grad()
    assert all(parameter.grad is None for parameter in net.parameters())


def test_state_dict_is_a_copy_and_loads_back():
    net, other = Net(), Net()
    x = flnb.asarray(np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32))
    net(x)  # moves the running statistics
    state = net.state_dict()
    assert set(state) == set(PARAMETERS + BUFFERS)
    expected = net.eval()(x).detach().numpy()
    flnb.assign(net.scale.data, flnb.zeros((2,)))
    assert (state["scale"].numpy() == 1).all()
    weight = other.scale
    other.load_state_dict(state)
    assert other.scale is weight
    np.testing.assert_array_equal(other.eval()(x).detach().numpy(), expected)


def test_names_in_a_state_that_does_not_fit_are_safe_to_display():
    with pytest.raises(ValueError) as error:
        Net().load_state_dict({"\x1b[2J\u202ehead" + "x" * 20_000: np.zeros(1)})
    text = str(error.value)
    assert r"unexpected: \x1b[2J\u202eheadxx" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert len(text) < 2000


def test_load_state_dict_lists_everything_that_does_not_fit_and_writes_nothing():
    net = Net()
    before = {name: tensor.numpy().copy() for name, tensor in net.state_dict().items()}
    state = {name: np.full(array.shape, 5, array.dtype) for name, array in before.items()}
    del state["scale"], state["blocks.1.norm.bias"]
    state["head.weight"] = np.zeros(3, np.float32)
    state["count"] = np.zeros((2,), np.float32)
    state["heads.left.weight"] = np.zeros((2, 4), np.complex64)
    with pytest.raises(ValueError) as error:
        net.load_state_dict(state)
    text = str(error.value)
    assert "does not fit Net; nothing was loaded" in text
    for line in (
        "missing: scale",
        "missing: blocks.1.norm.bias",
        "unexpected: head.weight",
        "mis-shaped: count: got (2,) float32, expected (1,) float32",
        "mis-shaped: heads.left.weight: got (2, 4) complex64, expected (2, 4) float32",
    ):
        assert line in text
    for name, tensor in net.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), before[name])


def test_load_state_dict_casts_within_a_kind():
    layer = nn.Linear(2, 1)
    layer.load_state_dict({"weight": np.full((1, 2), 2.0, np.float64), "bias": np.zeros(1, np.float16)})
    assert layer.weight.dtype == np.float32
    assert layer(flnb.ones((1, 2))).item() == 4.0


def scopes_of(run):
    return {intern.contexts.items[number].scope for number in run.table("op")["context"]}


def test_calls_enter_scopes_named_by_attribute_path():
    net = Net()
    with flnb.record() as run:
        net(flnb.ones((3, 4)))
    found = scopes_of(run)
    assert {"net", "net.blocks.0", "net.blocks.0.linear", "net.blocks.1.norm", "net.heads.left", "net.drop"} <= found


def test_a_scope_is_left_when_forward_raises_and_follows_a_list_that_grew_later():
    class Grown(nn.Module):
        def __init__(self):
            self.layers = []
            self.layers.append(nn.Linear(2, 2))

        def forward(self, x):
            return self.layers[0](x)

    net = Grown()
    net.parameters()
    with flnb.record() as run:
        net(flnb.ones((1, 2)))
    assert "grown.layers.0" in scopes_of(run)
    with pytest.raises(ValueError):
        net(flnb.ones((1, 3)))
    assert bus.threads.here.path == ""


def test_parameters_on_a_tape_are_called_by_their_path_at_once():
    net = Net().eval()
    with flnb.record(grad_interval=0.0) as run:
        flnb.sum(net(flnb.ones((3, 4)))).backward()
    assert {leaf.name for leaf in run.tape.leaves} == set(PARAMETERS)
    net.blocks[1].parent = net  # what leads back names nothing
    assert net.scale.name == "scale"
    assert run.tape.why("blocks.1.norm.bias").reached


def test_missing_forward_is_explained():
    class Empty(nn.Module):
        pass

    with pytest.raises(NotImplementedError, match=r"Empty has no forward\(\); define `def forward\(self, x\)"):
        Empty()(1)


def test_pickle_and_deepcopy_keep_values_and_independence():
    net = Net().eval()
    x = flnb.ones((2, 4))
    expected = net(x).detach().numpy()
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        np.testing.assert_array_equal(twin(x).detach().numpy(), expected)
        assert [name for name, _ in twin.named_parameters()] == PARAMETERS
        flnb.assign(twin.scale.data, flnb.zeros((2,)))
    np.testing.assert_array_equal(net(x).detach().numpy(), expected)


def test_a_dropped_model_is_freed_without_the_cyclic_collector():
    net = Net()
    flnb.sum(net(flnb.ones((2, 4)))).backward()
    watched = [weakref.ref(net), weakref.ref(net.blocks[0])]
    gc.disable()
    try:
        del net
        assert [reference() for reference in watched] == [None, None]
    finally:
        gc.enable()


def test_repr_is_an_indented_tree():
    conv = nn.Conv2d(1, 4, 1, padding=1, bias=False)
    net = nn.Sequential(conv=conv, rest=nn.Sequential(nn.ReLU(), nn.Dropout(0.1)))
    assert repr(net) == (
        "Sequential()  # 4 parameters\n"
        "  conv: Conv2d(in_channels=1, out_channels=4, kernel_size=1, stride=1, padding=1, dilation=1, "
        "groups=1, bias=None)  # 4 parameters\n"
        "  rest: Sequential()\n"
        "    0: ReLU()\n"
        "    1: Dropout(p=0.1)"
    )


def test_repr_of_ones_own_module_shows_its_numbers_and_texts_only():
    class Own(nn.Module):
        def __init__(self):
            self.size, self.mode, self.heads = (3, 4), "fast", (nn.ReLU(), nn.ReLU())
            self._cache = 3

    assert repr(Own().eval()) == "Own(size=(3, 4), mode='fast')\n  heads.0: ReLU()\n  heads.1: ReLU()"


def test_a_module_moves_to_a_backend_of_other_buffers_and_back():
    class Boxed:
        """What an array is kept in elsewhere."""

        def __init__(self, values):
            self.values = values

    class Elsewhere(flnb.backends.NumpyBackend):
        name, buffer = "elsewhere", "boxed"

        def from_numpy(self, array, out=None):
            return Boxed(np.array(array))

        def to_numpy(self, buffer):
            return buffer.values

    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm(3))
    flnb.sum(net(flnb.ones((2, 2)))).backward()
    before = {name: item.numpy().copy() for name, item in net.state_dict().items()}
    assert net.to("numpy") is net
    assert net[0].weight.grad is not None  # nothing had to move
    with flnb.use_backend(Elsewhere) as backend:
        net.to(backend)
        assert {type(item._data) for _, item in net._named_tensors()} == {Boxed}
        assert all(parameter.grad is None and parameter.requires_grad for parameter in net.parameters())
        net.to("numpy")
    for name, item in net.state_dict().items():
        np.testing.assert_array_equal(item.numpy(), before[name], err_msg=name)
    flnb.sum(net(flnb.ones((2, 2)))).backward()


def test_a_module_is_cast_in_place_but_for_what_is_kept():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm(3), nn.Sequential(nn.BatchNorm(3), nn.Linear(3, 1)))
    net.steps = flnb.asarray([7])
    weight = net[0].weight
    weight.grad = flnb.zeros((3, 2))
    assert net.half(keep=nn.BatchNorm) is net
    assert net[0].weight is weight
    assert weight.grad is None
    dtypes = {name: item.dtype.name for name, item in net._named_tensors()}
    half = {"0.weight", "0.bias", "2.1.weight", "2.1.bias"}
    assert {name for name, dtype in dtypes.items() if dtype == "float16"} == half
    assert {dtype for name, dtype in dtypes.items() if name not in {*half, "steps"}} == {"float32"}
    assert dtypes["steps"] == "int64"
    assert net(flnb.ones((4, 2), dtype="float16")).requires_grad
    assert {item.dtype.name for item in net.astype("float64").parameters()} == {"float64"}


def test_batch_norm_in_half_precision_takes_float32():
    norm = nn.BatchNorm(2).half()
    assert norm(flnb.ones((3, 2))).dtype == np.float32
    assert norm.running_mean.dtype == np.float16


def test_gradients_of_frozen_parameters_are_zeroed_without_an_error() -> None:
    net = nn.Linear(2, 1)
    optimizer = flnb.optim.SGD(net.parameters(), lr=1.0)
    net(flnb.ones((1, 2))).sum().backward()
    net.bias.requires_grad = False
    optimizer.zero_grad()
    net.zero_grad()
    assert net.weight.grad is None
