"""Containers: names in state dicts and scopes, changes in place, and what they refuse."""

import numpy as np
import pytest
from flnb_telemetry import intern

import flnb
import flnb.nn as nn


class Blocks(nn.Module):
    def __init__(self) -> None:
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.ReLU())])
        self.heads = nn.ModuleDict({"out": nn.Linear(2, 1)})

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.heads["out"](x)


def test_names_of_parameters_are_paths():
    net = Blocks()
    assert [name for name, _ in net.named_parameters()] == [
        "blocks.0.0.weight", "blocks.0.0.bias", "heads.out.weight", "heads.out.bias",
    ]  # fmt: skip


@pytest.mark.parametrize("walked", [False, True])
def test_scopes_bear_the_name_of_the_list_that_nobody_calls(walked):
    net = Blocks()
    net.blocks.append(nn.Linear(2, 2))
    if walked:
        net.parameters()
    with flnb.record() as run:
        net(flnb.ones((1, 2)))
    scopes = {intern.contexts.items[number].scope for number in run.table("op")["context"]}
    assert {"blocks.blocks.0.0", "blocks.blocks.1", "blocks.heads.out"} <= scopes


def test_a_list_is_changed_by_index():
    layers = nn.ModuleList([nn.ReLU(), nn.Tanh()])
    layers.extend([nn.Sigmoid()])
    layers[0], layers[-1] = nn.ELU(), nn.Identity()
    assert [type(layer).__name__ for layer in layers] == ["ELU", "Tanh", "Identity"]
    assert [type(layer).__name__ for layer in layers[1:]] == ["Tanh", "Identity"]
    with pytest.raises(IndexError):
        layers[3]


def test_a_dict_is_changed_by_name():
    heads = nn.ModuleDict({"a": nn.ReLU()})
    heads["b"], heads["a"] = nn.Tanh(), nn.ELU()
    assert {name: type(module).__name__ for name, module in heads.items()} == {"a": "ELU", "b": "Tanh"}
    assert ("b" in heads, "c" in heads, len(heads), list(heads)) == (True, False, 2, ["a", "b"])
    with pytest.raises(KeyError, match="no module 'c'; there are a, b"):
        heads["c"]


def test_what_is_no_module_or_has_a_methods_name_is_refused():
    with pytest.raises(TypeError, match="ModuleList takes modules, got function as '1'"):
        nn.ModuleList([nn.ReLU(), flnb.relu])
    with pytest.raises(ValueError, match="'values' is a method of ModuleDict; give that module another name"):
        nn.ModuleDict({"values": nn.ReLU()})


def test_lists_are_not_called():
    with pytest.raises(NotImplementedError, match="ModuleList has no forward"):
        nn.ModuleList([nn.ReLU()])(flnb.ones(1))


def test_a_shortcut_takes_the_place_of_the_input():
    x = flnb.asarray([[1.0, -2.0]])
    assert nn.Residual(nn.ReLU(), nn.Transform(lambda x: x * 10.0))(x).tolist() == [[11.0, -20.0]]


def test_a_weight_norm_begins_with_the_weight_and_leaves_none_behind():
    layer = nn.Linear(3, 2)
    x = flnb.ones((1, 3))
    before = layer(x).detach().numpy()
    normed = nn.WeightNorm(layer)
    np.testing.assert_allclose(normed(x).detach().numpy(), before, rtol=1e-5)
    assert layer.weight is None
    with pytest.raises(ValueError, match="x has 4 features"):
        normed(flnb.ones((1, 4)))
    assert layer.weight is None
