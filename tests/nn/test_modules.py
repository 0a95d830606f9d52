"""Every module by hand in NumPy (float64), beside torch where it is installed, saved and loaded."""

import numpy as np
import pytest

import flnb
import flnb.nn as nn
from tests.nn import cases, cases_contrib

CASES = cases.CASES | cases_contrib.CASES


def inputs_of(case):
    rng = np.random.default_rng(1)
    return [i if isinstance(i, np.ndarray) else rng.normal(size=i).astype(np.float32) for i in case.inputs]


def made(case, seed=2):
    """The module with parameters drawn anew, so that none is 0 or 1."""
    module, rng = case.make(), np.random.default_rng(seed)
    for parameter in module.parameters():
        flnb.assign(parameter.data, flnb.asarray(rng.normal(0.0, 0.5, parameter.shape).astype(np.float32)))
    return module


def flat(outputs):
    """The tensors of nested tuples."""
    return [leaf for o in outputs for leaf in flat(o)] if isinstance(outputs, tuple) else [outputs]


def close(got, expected, note=""):
    """Equal to 1e-5 of the largest value."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max(initial=0.0), err_msg=note)


def values(tensor):
    return (tensor.detach() if isinstance(tensor, flnb.Variable) else tensor).numpy()


def test_every_module_has_a_case():
    apart = {"Module", "Container", "ModuleList", "ModuleDict"}
    modules = {n for n in nn.__all__ if isinstance(getattr(nn, n), type) and issubclass(getattr(nn, n), nn.Module)}
    losses = {n for n in modules if n.endswith("Loss")} - {"AdaptiveSoftmaxLoss"}  # tests/nn/test_losses.py
    assert modules - apart - losses == {name.split()[0] for name in CASES} - {"ModuleList"}


@pytest.mark.parametrize("name", CASES)
def test_by_hand(name):
    case = CASES[name]
    module, inputs = made(case), inputs_of(case)
    outputs = flat(module(*map(flnb.asarray, inputs)))
    state = {key: value.numpy().astype(np.float64) for key, value in module.state_dict().items()}
    exact = [i.astype(np.float64) if i.dtype == np.float32 else i for i in inputs]
    expected = flat(case.hand(state, *exact))
    assert [o.shape for o in outputs] == [np.shape(e) for e in expected]
    for got, wanted in zip(outputs, expected, strict=True):
        close(values(got), wanted)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.torch])
def test_values_and_gradients_are_torchs(name):
    torch = pytest.importorskip("torch", reason="torch is not installed: the comparison by hand runs above")
    case = CASES[name]
    module, inputs, theirs = made(case), inputs_of(case), case.torch(torch)
    inner = getattr(theirs, "module", theirs)
    if isinstance(inner, torch.nn.Module):
        state = {case.rename(key): torch.from_numpy(value.numpy().copy()) for key, value in module.state_dict().items()}
        keys = inner.load_state_dict(state, strict=False)
        assert keys.unexpected_keys == []
        assert [key for key in keys.missing_keys if not key.endswith("num_batches_tracked")] == []
    real = [i for i, x in enumerate(inputs) if x.dtype == np.float32]
    variables = [flnb.Variable(flnb.asarray(x)) if i in real else flnb.asarray(x) for i, x in enumerate(inputs)]
    tensors = [torch.from_numpy(x.copy()).requires_grad_(i in real) for i, x in enumerate(inputs)]
    ours, expected = flat(module(*variables)), flat(theirs(*tensors))
    rng, total, theirs_total = np.random.default_rng(4), 0.0, 0.0
    for y, t in zip(ours, expected, strict=True):
        close(values(y), t.numpy(force=True))
        weight = rng.normal(size=y.shape).astype(values(y).dtype)
        total = (y * flnb.asarray(weight)).sum() + total
        theirs_total = theirs_total + (t * torch.as_tensor(weight)).sum()
    total.backward()
    theirs_total.backward()
    for i in real:
        close(variables[i].grad.numpy(), tensors[i].grad.numpy(), f"gradient of input {i}")
    parameters = dict(inner.named_parameters()) if isinstance(inner, torch.nn.Module) else {}
    for key, parameter in module.named_parameters():
        close(parameter.grad.numpy(), parameters.pop(case.rename(key)).grad.numpy(), f"gradient of {key}")
    assert not parameters


@pytest.fixture
def in_float64():
    flnb.set_default_dtype("float64")
    yield
    flnb.set_default_dtype("float32")


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_differences(name, in_float64):
    """Of every input and parameter, along a direction: no other library is needed."""
    module, inputs = CASES[name].make(), inputs_of(CASES[name])
    rng, step = np.random.default_rng(8), 1e-6
    inputs = [flnb.Variable(x.astype(np.float64)) if x.dtype == np.float32 else flnb.asarray(x) for x in inputs]
    weights = [rng.normal(size=y.shape) for y in flat(module(*inputs))]

    def total():
        return sum((y * flnb.asarray(w)).sum() for y, w in zip(flat(module(*inputs)), weights, strict=True))

    total().backward()
    leaves = {str(i): x for i, x in enumerate(inputs) if isinstance(x, flnb.Variable)}
    for key, leaf in (leaves | dict(module.named_parameters())).items():
        assert leaf.dtype == np.float64, key
        start, direction = leaf.detach().numpy().copy(), rng.normal(size=leaf.shape)
        found = []
        for sign in (1, -1):
            flnb.assign(leaf.data, flnb.asarray(start + sign * step * direction))
            found.append(float(total().detach()))
        flnb.assign(leaf.data, flnb.asarray(start))
        expected = (found[0] - found[1]) / (2 * step)
        assert float((leaf.grad.numpy() * direction).sum()) == pytest.approx(expected, rel=1e-6, abs=1e-7), key


@pytest.mark.parametrize("name", CASES)
def test_saved_and_loaded(name, tmp_path):
    pytest.importorskip("safetensors", reason="nn.save needs the extra lab")
    case = CASES[name]
    first, second = made(case), made(case, seed=7)
    nn.save(first, tmp_path / "module")
    nn.load(second, tmp_path / "module")
    state = second.state_dict()
    assert list(state) == list(first.state_dict())
    for key, value in first.state_dict().items():
        np.testing.assert_array_equal(state[key].numpy(), value.numpy(), err_msg=key)
    inputs = [flnb.asarray(x) for x in inputs_of(case)]
    for a, b in zip(flat(first(*inputs)), flat(second(*inputs)), strict=True):
        np.testing.assert_array_equal(values(a), values(b))


@pytest.mark.parametrize(
    "make",
    [
        lambda p: nn.GRU(8, 4, layers=2, dropout=p),
        lambda p: nn.MultiheadAttention(8, 2, dropout=p),
        lambda p: nn.TransformerEncoderLayer(8, 2, 16, dropout=p),
        lambda p: nn.Conformer(8, 2, 16, 3, dropout=p),
        lambda p: nn.Sequential(nn.View((6, 5, 2, 4)), nn.TDSBlock(5, 3, 4, dropout=p)),
    ],
    ids=["GRU", "MultiheadAttention", "TransformerEncoderLayer", "Conformer", "TDSBlock"],
)
def test_dropout_inside_is_for_training_alone(make):
    dropping, plain = make(0.5), make(0.0)
    plain.load_state_dict(dropping.state_dict())
    x = flnb.asarray(np.random.default_rng(5).normal(size=(6, 5, 8)).astype(np.float32))

    def output(module):
        return values(flat(module(x))[0])

    assert (output(dropping) != output(dropping)).any()
    np.testing.assert_array_equal(output(dropping.eval()), output(plain))


def test_the_last_layer_of_a_recurrent_stack_is_not_dropped():
    one = nn.LSTM(8, 4, dropout=0.5)
    x = flnb.ones((3, 2, 8))
    np.testing.assert_array_equal(values(one(x)[0]), values(one(x)[0]))


def test_states_carry_on_where_a_sequence_was_cut():
    for module in (nn.RNN(4, 3, 2), nn.LSTM(4, 3, 2), nn.GRU(4, 3, 2)):
        x = flnb.asarray(np.random.default_rng(6).normal(size=(7, 2, 4)).astype(np.float32))
        first, state = module(x[:3])
        rest, _ = module(x[3:], state)
        close(np.concatenate([values(first), values(rest)]), values(module(x)[0]))
