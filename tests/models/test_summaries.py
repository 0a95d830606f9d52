"""summary: shapes, parameters, FLOPs and kept bytes of each module, by hand; the model is left as it was."""

import re

import numpy as np
import pytest

import flnb
import flnb.nn as nn
from flnb.models import summary


class Net(nn.Module):
    """A convolution, a function without a module, a module that is called twice, one that is not, and two results."""

    def __init__(self):
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8, bias=False), nn.Tanh())])
        self.unused = nn.Linear(4, 4)
        self.heads = nn.Sequential(nn.Linear(8, 5, bias=False), nn.Dropout(0.5))

    def forward(self, x):
        y = flnb.relu(self.conv(x))
        y = flnb.mean(y, axis=(2, 3))
        for block in self.blocks:
            y = block(block(y))
        return self.heads(y), y


N, IMAGE = 16, 12


@pytest.fixture(scope="module")
def table():
    return summary(Net(), np.ones((N, 3, IMAGE, IMAGE), np.float32))


def test_rows_are_the_modules_with_what_they_gave(table):
    assert [(row.path, row.kind, row.output, row.parameters) for row in (*table, table.total)] == [
        ("conv", "Conv2d", ((N, 8, IMAGE, IMAGE),), 216),
        ("blocks", "ModuleList", (), 64),
        ("blocks.0", "Sequential", ((N, 8),), 64),
        ("blocks.0.0", "Linear", ((N, 8),), 64),
        ("blocks.0.1", "Tanh", ((N, 8),), 0),
        ("unused", "Linear", (), 20),
        ("heads", "Sequential", ((N, 5),), 40),
        ("heads.0", "Linear", ((N, 5),), 40),
        ("heads.1", "Dropout", ((N, 5),), 0),
        ("", "Net", ((N, 5), (N, 8)), 340),
    ]
    assert len(table) == 9
    assert table["conv"] is table.rows[0]
    with pytest.raises(KeyError, match=r"no module 'con' in this summary; it has conv, blocks, blocks\.0"):
        table["con"]


def test_flops_are_those_of_the_ops_inside(table):
    assert table["conv"].flops == 2 * N * 8 * IMAGE**2 * 27
    assert table["blocks.0.0"].flops == 2 * (2 * N * 8 * 8)  # called twice
    assert table["blocks.0"].flops == table["blocks.0.0"].flops + 2 * N * 8
    assert table["blocks"].flops == table["blocks.0"].flops
    assert table["heads.0"].flops == 2 * N * 8 * 5
    assert table["unused"].flops == 0
    parts = sum(table[name].flops for name in ("conv", "blocks", "heads"))
    assert table.total.flops > parts + N * 8 * IMAGE**2  # relu and mean are the model's own


def test_kept_is_what_backward_and_the_caller_hold(table):
    assert table["blocks.0.1"].kept == 2 * 4 * N * 8  # tanh's results, of both calls
    assert table["blocks.0.0"].kept == 0  # tanh does not need what it is given
    assert table["heads.0"].kept == 0
    assert table["heads.1"].kept >= 4 * N * 5
    assert table["conv"].kept == 0  # relu needs its own result alone
    model = Net()
    with flnb.no_grad():
        without = summary(model, np.ones((N, 3, IMAGE, IMAGE), np.float32))
    assert without.total.kept == 4 * N * (5 + 8)  # the results alone


def test_every_byte_and_operation_of_a_model_is_counted_once():
    recipe = flnb.models.get("resnet18")
    table = summary(recipe)
    parts = [row for row in table if "." not in row.path]
    assert table.total.parameters == recipe.parameters["small"] == sum(row.parameters for row in parts)
    assert sum(row.flops for row in parts) <= table.total.flops
    assert sum(row.kept for row in parts) <= table.total.kept
    convolutions = sum(row.flops for row in table if row.kind == "Conv2d")
    assert 0.9 * table.total.flops < convolutions < table.total.flops


def test_the_model_and_the_session_are_as_they_were():
    net = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm(6), nn.Dropout(0.5))
    x = flnb.randn(8, 6)
    before = {name: tensor.numpy().copy() for name, tensor in net.state_dict().items()}
    state = flnb.random.default_generator.state
    held = net(x)
    flnb.random.default_generator.state = state
    for name, buffer in net.named_buffers():
        flnb.assign(buffer, before[name])
    tables = [summary(net, x), summary(net, x)]
    assert tables[0] == tables[1]
    assert flnb.random.default_generator.state == state
    for name, tensor in net.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), before[name], err_msg=name)
    assert all(parameter.grad is None for parameter in net.parameters())
    assert all(module._hooks is None or not module._hooks.after for _, module in net.named_modules())
    np.testing.assert_array_equal(net(x).detach().numpy(), held.detach().numpy())


def test_a_part_of_a_model_inside_a_scope_and_a_recording():
    net = Net()
    with flnb.record() as run, flnb.scope("outside"):
        table = summary(net.blocks[0], flnb.ones((N, 8)))
    assert table["0"].flops == 2 * N * 8 * 8
    assert [row.key[0] for row in run.ops.by("scope") if row.key[0].endswith("blocks.0.0")] == ["outside.blocks.0.0"]


def test_errors_leave_no_hook_behind():
    net = Net()
    with pytest.raises(ValueError, match="summary: Net needs inputs: call summary"):
        summary(net)
    with pytest.raises(ValueError, match="x has 4 channels, the weight expects 3"):
        summary(net, flnb.ones((1, 4, 8, 8)))
    assert not net.conv._hooks.after
    with pytest.raises(ValueError, match="expected the scale 'paper' or 'small', got 'tiny'"):
        summary(flnb.models.get("lenet"), scale="tiny")


def test_a_recipe_takes_inputs_of_ones_own():
    table = summary(flnb.models.get("lenet"), np.zeros((2, 1, 8, 8), np.float32))
    assert table.total.output == ((2, 10),)


def test_it_is_shown_as_a_table_with_deeper_modules_indented(table):
    lines = repr(table).splitlines()
    assert lines[0].split() == ["module", "kind", "output", "parameters", "FLOPs", "kept"]
    assert lines[1].split() == ["conv", "Conv2d", "16×8×12×12", "216", "995", "k", "0", "B"]
    assert [re.match(" *", line).end() for line in lines[2:6]] == [0, 2, 4, 4]
    assert set(lines[-2]) == {"─"}
    assert lines[-1].split()[:4] == ["total", "Net", "16×5,", "16×8"]
    html = table._repr_html_()
    assert html.count("<tr") == html.count("</tr>") == len(table) + 2
    assert re.findall(r"padding-left:([\d.]+)em'>([\w]+)", html)[1:4] == [("0.0", "blocks"), ("1.2", "0"), ("2.4", "0")]
    share = 100 * table["conv"].flops / table.total.flops
    assert f"#4c8bf540 {share:.1f}%,transparent" in html


def test_depth_leaves_out_what_lies_deeper():
    table = summary(Net(), flnb.ones((2, 3, 8, 8)), depth=1)
    assert [row.path for row in table] == ["conv", "blocks", "unused", "heads"]


def test_the_function_is_not_hidden_by_a_module_of_its_name():
    from flnb.models import summaries

    assert flnb.models.summary is summaries.summary


def test_a_recipe_by_its_name():
    assert repr(summary("mlp")) == repr(summary(flnb.models.get("mlp")))
    with pytest.raises(ValueError, match="no model 'mpl'; did you mean 'mlp'"):
        summary("mpl")
