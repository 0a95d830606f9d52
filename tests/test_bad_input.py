"""What a user is told who gives something wrong: one place to read the texts, beside what stays as it was.

Each part is tested further where it lives: tests/nn/test_wrong_shapes.py, tests/autograd/test_anomaly.py,
tests/optim/test_scaling.py, tests/data, tests/nn/test_saving.py and tests/nn/test_checkpoint.py.
"""

import importlib.util
import inspect
import itertools
import re
import signal
import subprocess
import sys
import traceback

import numpy as np
import pytest

import flnb
import flnb.data as data
import flnb.nn as nn
import flnb.optim as optim
import flnb.vision

NEEDS_SAFETENSORS = pytest.mark.skipif(
    importlib.util.find_spec("safetensors") is None, reason="checkpoints need the extra lab"
)


def told(error):
    """What is printed under the stack: the text and its notes."""
    return "".join(traceback.format_exception_only(error))


# Wrong channels, wrong lengths ----------------------------------------------------------------------------------------


def small_net():
    body = nn.Sequential(conv=nn.Conv2d(3, 4, 3), norm=nn.BatchNorm(4), relu=nn.ReLU())
    return nn.Sequential(body=body, flat=nn.Flatten(), out=nn.Linear(144, 10))


def language_model():
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    return nn.Sequential(words=nn.Embedding(10, 8), positions=nn.PositionEmbedding(6, 8), layer=layer)


SHAPES = {
    "channels": (small_net, (2, 1, 8, 8), "float32", "x has 1 channels, the weight expects 3", "body.conv (Conv2d)"),
    "axes": (small_net, (3, 8, 8), "float32", "got float32[3,8,8] and float32[4,3,3,3]", "body.conv (Conv2d)"),
    "size": (small_net, (2, 3, 9, 9), "float32", "x has 196 features (shape (2, 196))", "out (Linear)"),
    "length": (
        language_model, (2, 7), "int64", "expected x (N, T, 8) with T at most 6, got (2, 7, 8)",
        "positions (PositionEmbedding)",
    ),
    "features of steps": (
        lambda: nn.Sequential(memory=nn.LSTM(3, 4)), (7, 2, 5), "float32",
        "LSTM: expected x (T, N, 3) with T > 0, got (7, 2, 5)", "memory (LSTM)",
    ),
    "no step": (
        lambda: nn.Sequential(memory=nn.GRU(3, 4)), (0, 2, 3), "float32",
        "GRU: expected x (T, N, 3) with T > 0, got (0, 2, 3)", "memory (GRU)",
    ),
    "words": (
        language_model, (2, 6, 1), "int64", "expected x (N, T, 8) with T at most 6, got (2, 6, 1, 8)",
        "positions (PositionEmbedding)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_wrong_channels_and_lengths_name_both_sides_and_the_module(name):
    make, shape, dtype, text, module = SHAPES[name]
    with pytest.raises(ValueError) as caught:
        make()(flnb.zeros(shape, dtype=dtype))
    assert text in str(caught.value)
    notes = caught.value.__notes__
    assert [note for note in notes if note.startswith("in module ")] == [f"in module sequential.{module}"]


def test_targets_of_another_length_or_class_are_told():
    logits = flnb.zeros((4, 3))
    with pytest.raises(ValueError, match=r"scores \(N, classes\) and targets \(N,\), got shapes \(4, 3\) and \(3,\)"):
        nn.CrossEntropyLoss()(logits, flnb.asarray([0, 1, 2]))
    with pytest.raises(IndexError, match="labels go from 0 to 3, but the scores have 3 classes"):
        nn.CrossEntropyLoss()(logits, flnb.asarray([0, 1, 2, 3]))


@pytest.mark.parametrize("label", [-1, 3])
def test_a_captured_loss_refuses_labels_of_no_class_at_later_calls(label):
    captured = flnb.jit(flnb.cross_entropy)
    logits = flnb.zeros((2, 3))
    assert captured(logits, flnb.asarray([0, 2])).item() == pytest.approx(np.log(3))
    with pytest.raises(IndexError, match=f"labels go from {min(label, 2)} to {max(label, 2)}, but the scores have 3"):
        captured(logits, flnb.asarray([label, 2]))


# A loss that is NaN ---------------------------------------------------------------------------------------------------


def poisoned():
    """A model, its optimizer, and a batch with a number that is none."""
    net = nn.Linear(2, 1)
    return net, optim.Adam(net.parameters()), flnb.asarray([[1.0, np.nan], [1.0, 2.0]])


def weights(net):
    return {name: item.numpy() for name, item in net.state_dict().items()}


def unchanged(net, before):
    for name, values in weights(net).items():
        np.testing.assert_array_equal(values, before[name], err_msg=name)


def test_a_plain_loop_stops_before_nan_reaches_the_parameters():
    net, optimizer, batch = poisoned()
    before = weights(net)
    with pytest.raises(FloatingPointError) as caught:
        for _ in range(3):
            optimizer.zero_grad()
            nn.MSELoss()(net(batch), flnb.zeros((2, 1))).backward()
            optimizer.step()
    assert str(caught.value) == (
        "flnb: backward: the loss is NaN, and so would every gradient be; nothing was changed. Compute it again inside "
        "`with flnb.detect_anomaly():`, which names the op and its line, and look at this batch and the learning rate; "
        "loss.backward(flnb.ones_like(loss)) runs backward anyway"
    )
    unchanged(net, before)
    assert net.weight.grad is None
    loss = nn.MSELoss()(net(batch), flnb.zeros((2, 1)))
    loss.backward(flnb.ones_like(loss))
    assert np.isnan(net.weight.grad.numpy()).any()


def test_anomaly_detection_then_names_the_op_the_line_and_the_inputs():
    net, _, batch = poisoned()
    with flnb.detect_anomaly(), pytest.raises(ArithmeticError) as caught:
        net(batch)  # here
    for part in ("gave 1 NaN of 2 elements", "the first at (0, 0)", "net(batch)  # here", "1 not finite"):
        assert part in told(caught.value)


def test_a_scaler_skips_the_step_and_gives_up_where_scaling_does_not_help():
    net, optimizer, batch = poisoned()
    before = weights(net)
    scaler = optim.LossScaler(optimizer, scale=4.0, minimum=1.0)

    def step(batch):
        optimizer.zero_grad()
        scaler.scaled(nn.MSELoss()(net(batch), flnb.zeros((2, 1)))).backward()
        return scaler.step()

    assert [step(batch), step(batch)] == [False, False]
    with pytest.raises(FloatingPointError, match=r"not finite even at a scale of 1; .*flnb\.detect_anomaly\(\)"):
        step(batch)
    unchanged(net, before)
    assert step(flnb.ones((2, 2)))


def test_clipping_says_which_gradient_is_not_finite():
    net, _, batch = poisoned()
    loss = nn.MSELoss()(net(batch), flnb.zeros((2, 1)))
    loss.backward(flnb.ones_like(loss))
    with pytest.raises(FloatingPointError, match=r"is nan, first that of gradient 0, of shape \(1, 2\); look for"):
        optim.clip_grad_norm(net.parameters(), 1.0, error_if_nonfinite=True)


# Datasets -------------------------------------------------------------------------------------------------------------

EMPTY = {
    "TensorDataset": lambda: data.TensorDataset(np.zeros((0, 3))),
    "BlobDataset": data.BlobDataset,
    "ShuffleDataset": lambda: data.ShuffleDataset(data.BlobDataset()),
    "SpanDataset": lambda: data.SpanDataset(data.TensorDataset(np.zeros((3, 3))), 3),
    "ResampleDataset": lambda: data.ResampleDataset(data.TensorDataset(np.zeros((3, 3))), []),
    "ConcatDataset": lambda: data.ConcatDataset(data.BlobDataset(), data.BlobDataset()),
    "PrefetchDataset": lambda: data.PrefetchDataset(data.BlobDataset()),
}


@pytest.mark.parametrize("kind", EMPTY)
def test_an_empty_dataset_makes_no_batches(kind):
    with pytest.raises(ValueError, match=f"BatchDataset got an empty {kind}: there is nothing to batch"):
        data.BatchDataset(EMPTY[kind](), 4)


def test_too_few_samples_for_one_whole_batch_are_no_silent_empty_epoch():
    few = data.TensorDataset(np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r'last="skip" makes no batch of 4 from 3 samples; take smaller batches, or'):
        data.BatchDataset(few, 4, last="skip")
    assert len(data.BatchDataset(few, 3, last="skip")) == 1


@pytest.mark.parametrize("processes", [False, True], ids=["threads", "processes"])
def test_what_a_worker_raises_comes_with_its_stack_and_its_item(worked, processes):
    prefetched = data.PrefetchDataset(worked.Worked(6, 2, worked.fail), processes=processes)
    with pytest.raises(KeyError, match="no such record") as caught:
        list(prefetched)
    assert "flnb: while a worker of PrefetchDataset loaded item 2 of 6" in told(caught.value)
    assert "in fail" in "".join(traceback.format_exception(caught.value))
    prefetched.close()


@pytest.mark.parametrize("way", ["die", "be_killed"])
def test_a_worker_process_that_ends_or_is_killed_is_an_error_and_not_a_wait(worked, way):
    dataset = worked.Worked(6, 2, getattr(worked, way))
    prefetched = data.PrefetchDataset(dataset, processes=True)
    with pytest.raises(RuntimeError) as caught:
        list(prefetched)
    for part in ("a worker process of PrefetchDataset died: it was killed (out of memory", "starts new workers"):
        assert part in str(caught.value)
    dataset.at = -1
    assert [item[0] for item in prefetched] == list(range(6))
    prefetched.close()


# Checkpoints ----------------------------------------------------------------------------------------------------------


def run(width=4, kind=optim.AdamW):
    net = nn.Sequential(conv=nn.Conv2d(1, width, 3), norm=nn.BatchNorm(width))
    return {"model": net, "optimizer": kind(net.parameters(), lr=0.1)}


@NEEDS_SAFETENSORS
def test_a_checkpoint_of_another_model_lists_everything_that_does_not_fit(tmp_path):
    nn.save_checkpoint(tmp_path / "last", **run())
    other = nn.Sequential(conv=nn.Conv2d(1, 6, 3), out=nn.Linear(2, 2))
    before = weights(other)
    with pytest.raises(ValueError) as caught:
        nn.load_checkpoint(tmp_path / "last", model=other, optimizer=optim.SGD(other.parameters(), lr=0.1))
    assert str(caught.value).splitlines() == [
        f"flnb: this state does not fit the parts given; read from {tmp_path / 'last'}; nothing was loaded",
        "  model: mis-shaped: conv.bias: got (4,) float32, expected (6,) float32",
        "  model: mis-shaped: conv.weight: got (4, 1, 3, 3) float32, expected (6, 1, 3, 3) float32",
        "  model: missing: out.bias",
        "  model: missing: out.weight",
        "  model: unexpected: norm.bias",
        "  model: unexpected: norm.running_mean",
        "  model: unexpected: norm.running_var",
        "  model: unexpected: norm.weight",
        "  optimizer: kind: got AdamW, expected SGD",
        "  optimizer: missing: momentum",
        "  optimizer: missing: nesterov",
        "  optimizer: unexpected: beta1",
        "  optimizer: unexpected: beta2",
        "  optimizer: unexpected: eps",
        "build it with the sizes and settings it was saved with, or remove the entries that do not belong to it",
    ]
    unchanged(other, before)


@NEEDS_SAFETENSORS
def test_a_checkpoint_cut_short_anywhere_is_told_and_changes_nothing(tmp_path):
    path, parts = tmp_path / "last", run()
    nn.save_checkpoint(path, **parts)
    whole, before = path.read_bytes(), weights(parts["model"])
    for size in {0, 1, 7, 8, 9, len(whole) // 2, len(whole) - 1, *range(0, len(whole), 97)}:
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=rf"last is not a whole safetensors file \({size:,} bytes: .*nothing was"):
            nn.load_checkpoint(path, **parts)
    unchanged(parts["model"], before)


SAVING = """
import os, resource, signal, sys
from pathlib import Path
import flnb, flnb.nn as nn

def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def half(self, content):
    with self.open("wb") as file:
        file.write(content[: len(content) // 2])
    killed()

path, how = sys.argv[1:]
if how == "killed while writing":
    Path.write_bytes = half
elif how == "killed before renaming":
    os.replace = killed
else:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # as on a disk that is full
nn.save_checkpoint(path, model=nn.Linear(40, 40))
"""


@NEEDS_SAFETENSORS
@pytest.mark.parametrize("how", ["killed while writing", "killed before renaming", "no room"])
def test_a_save_that_is_cut_off_leaves_the_old_checkpoint(tmp_path, how):
    path, net = tmp_path / "last", nn.Linear(40, 40)
    nn.save_checkpoint(path, model=net, epoch=7)
    before, old = weights(net), path.read_bytes()
    ended = subprocess.run(
        [sys.executable, "-c", SAVING, str(path), how], capture_output=True, text=True, timeout=60, check=False
    )
    if how == "no room":
        assert "File too large" in ended.stderr
        assert [item.name for item in tmp_path.iterdir()] == ["last"]
    else:
        assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert path.read_bytes() == old
    again = nn.Linear(40, 40)
    assert nn.load_checkpoint(path, model=again) == {"epoch": 7}
    unchanged(again, before)


MISPLACED = [flnb.asarray(np.full((3, 4), 0.1234567)), [flnb.asarray([0.1234567])] * 2, np.full(3, 0.1234567)]
NAMESPACES = [flnb.ops, flnb.linalg, flnb.fft, flnb.random, flnb.vision, flnb.nn.init]


@pytest.mark.parametrize("module", NAMESPACES, ids=lambda module: module.__name__)
def test_errors_name_shapes_and_not_elements(module):
    telling = {}
    for name in module.__all__:
        function = getattr(module, name)
        if isinstance(function, type) or not callable(function):
            continue
        given = inspect.signature(function).parameters.values()
        places = [p for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        needed = sum(p.default is p.empty for p in places)
        for at, wrong, other in itertools.product(range(len(places)), MISPLACED, (2, (3, 4), MISPLACED[0])):
            arguments = [MISPLACED[0], *[other] * len(places)][: max(needed, at + 1)]
            arguments[at] = wrong
            try:
                function(*arguments)
            except Exception as error:
                if re.search(r"0\.1235|array\(\[", str(error)):
                    telling[name, places[at].name] = str(error)
    assert not telling


def test_a_seed_that_is_none_leaves_the_generator_as_it_was():
    for seed in (flnb.ones(2), 1.5, -1):
        with pytest.raises(TypeError, match=r"manual_seed: seed must be an int >= 0, got "):
            flnb.manual_seed(seed)
    assert flnb.rand(2).shape == (2,)


def test_a_weight_in_place_of_a_shape_is_told():
    x, weight, bias = flnb.ones((2, 3)), flnb.ones(3), flnb.zeros(3)
    with pytest.raises(
        TypeError,
        match=r"layer_norm: shape must be .* got Tensor float32\[3\]; call layer_norm\(x, shape, weight, bias\)",
    ):
        flnb.layer_norm(x, weight, bias)
    with pytest.raises(TypeError, match=r"group_norm: groups must be one int, got Tensor float32\[3\]"):
        flnb.group_norm(x, weight, bias)
    with pytest.raises(ValueError, match=r"device must be 'cpu' \(or None\), got \[Tensor float32\[3\], 1\]"):
        flnb.asarray(1.0, device=[weight, 1])
