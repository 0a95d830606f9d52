"""Names and dtypes of other libraries: what is asked for and not there is told in flnb's spelling."""

import ast
import inspect
import re

import numpy as np
import pytest

import flnb
import flnb.nn as nn
from flnb.dispatch import spelling
from flnb.dispatch.spelling import SPELT

X = flnb.ones((2, 3))


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda: nn.BatchNorm2d, r"'flnb.nn' has no attribute 'BatchNorm2d'; in flnb: flnb.nn.BatchNorm\("),
        (lambda: nn.BatchNrom, r"no attribute 'BatchNrom'; did you mean 'BatchNorm'\?"),
        (lambda: nn.Unheard, r"'flnb.nn' has no attribute 'Unheard'$"),
        (lambda: nn.init.xavier_uniform_, r"in flnb: flnb.nn.init.glorot_uniform\(shape\)"),
        (lambda: nn.functional, r"in flnb: the functions of flnb itself, as flnb.softmax"),
        (lambda: flnb.tensor([1.0]), r"'flnb' has no attribute 'tensor'; in flnb: flnb.asarray\(values\)"),
        (lambda: flnb.cat([X, X]), r"in flnb: flnb.concat\(tensors, axis=0\)"),
        (lambda: flnb.matmull, r"no attribute 'matmull'; did you mean 'matmul'\?"),
        (lambda: flnb.__wrapped__, r"'flnb' has no attribute '__wrapped__'$"),
        (lambda: X.view(3, 2), r"'Tensor' object has no attribute 'view'; in flnb: x.reshape\(shape\)"),
        (lambda: flnb.Variable(X).view(3, 2), r"'Variable' object has no attribute 'view'; in flnb: x.reshape"),
        (lambda: X.unsqueeze(0), r"in flnb: flnb.expand_dims\(x, axis=0\)"),
        (lambda: X.backward(), r"in flnb: methods of a Variable: start with"),
        (lambda: flnb.data.DataLoader, r"module 'flnb.data' has no attribute 'DataLoader'; in flnb: flnb.data.Pref"),
        (lambda: flnb.distributed.get_rank(), r"module 'flnb.distributed' .* in flnb: flnb.distributed.rank\(\)"),
        (lambda: X.sin(), r"'Tensor' object has no attribute 'sin'; in flnb: flnb.sin$"),
    ],
)
def test_other_spellings_are_told(ask, text):
    with pytest.raises(AttributeError, match=text):
        ask()


@pytest.mark.parametrize("name", SPELT)
def test_what_is_told_is_there_and_what_is_asked_for_is_not(name):
    for said in re.findall(r"flnb(?:\.\w+)+", SPELT[name]):
        found = flnb
        for part in said.split(".")[1:]:
            found = getattr(found, part)
    for said in re.findall(r"\bx\.(\w+)", SPELT[name]):
        assert hasattr(X, said)
    assert name == "device" or not hasattr(X, name)
    assert name == "device" or name not in dir(X)
    assert not hasattr(nn, name) or name in {"save", "load"}


def code(hint):
    """The calls, attributes and operators on x and of flnb that a hint names, as they stand in it."""
    found, at = [], 0
    while start := re.compile(r"\b(?:flnb(?=\.\w)|x\b(?=[.\[]| [-+*/@]=? ?y))").search(hint, at):
        at = start.end()
        while more := re.compile(r"\.\w+|[(\[]| [-+*/@]=? y").match(hint, at):
            at = more.end()
            if more.group() in "([":
                at = next(i for i in range(at, len(hint) + 1) if balanced(hint[more.start() : i]))
        found.append(hint[start.start() : at])
    return found


def balanced(text):
    return all(text.count(a) == text.count(b) for a, b in ("()", "[]"))


def given(**changes):
    """What the names in hints stand for."""
    x, y = flnb.asarray([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]]), flnb.asarray([[2.0, 4.0, 5.0], [8.0, 10.0, 3.0]])
    values = {
        "flnb": flnb, "x": x, "y": y, "tensors": [x, y], "values": [1.0], "axes": (1, 0), "shape": (2, 3), "n": 1,
        "indices": flnb.asarray([[0]]), "mask": flnb.asarray([True, False, True]), "value": 7.0, "min": -1, "max": 2,
        "backend": "numpy", "module": nn.Linear(2, 3), "p": 0.5, "training": True, "N": 2, "C": 3, "channels": 3,
        "kernel_size": 2, "size": (4, 6), "top": 1, "bottom": 0, "left": 2, "right": 1, "threshold": 1.0, "mean": 0.0,
        "log_probabilities": flnb.log_softmax(x), "targets": flnb.asarray([0, 2]), "low": 2.0, "high": 5.0, "std": 2.0,
        "rows": flnb.asarray([0.5]), "columns": flnb.asarray([1.0]), "parameters": [flnb.Variable([1.0])], "most": 1.0,
        "function": flnb.exp, "inputs": [[1.0]], "name": "run",
        "dtype": flnb.float64, "dataset": flnb.data.TensorDataset(x),
    }  # fmt: skip
    return values | changes


TALL = flnb.ones((3, 2))
CHANGED = {
    **{name: {"y": TALL} for name in ("mm", "bmm", "einsum")},
    **{name: {"mask": X > 0.0} for name in ("masked_select", "masked_fill")},
    "mv": {"y": flnb.ones(3)},
    "dot": {"x": flnb.ones(3), "y": flnb.ones(3)},
    "index_select": {"indices": flnb.asarray([0])},
    "AdaptiveAvgPool3d": {"x": flnb.ones((2, 3, 4, 4, 4))},
}
"""Where the values of `given` do not fit."""


@pytest.mark.parametrize("name", [name for name in SPELT if code(SPELT[name])])
def test_hints_run(name, tmp_path):
    for piece in code(SPELT[name]):
        names = given(path=tmp_path / "saved", **CHANGED.get(name, {}))
        exec(piece, names)  # in the order of the hint: what it saves it loads


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("add_", lambda x, y: x + y),
        ("sub_", lambda x, y: x - y),
        ("mul_", lambda x, y: x * y),
        ("div_", lambda x, y: x / y),
        ("vstack", lambda x, y: np.vstack([x, y])),
        ("hstack", lambda x, y: np.hstack([x, y])),
        ("concatenate", lambda x, y: np.concatenate([x, y])),
        ("cat", lambda x, y: np.concatenate([x, y])),
        ("inner", np.inner),
        ("transpose", lambda x, y: x.T),
        ("swapaxes", lambda x, y: np.swapaxes(x, 0, 1)),
        ("t", lambda x, y: x.T),
        ("clamp", lambda x, y: np.clip(x, -1, 2)),
        ("clamp_min", lambda x, y: np.maximum(x, -1)),
        ("clamp_max", lambda x, y: np.minimum(x, 2)),
        ("zero_", lambda x, y: 0 * x),
        ("fill_", lambda x, y: 0 * x + 7),
        ("clone", lambda x, y: x),
        ("Threshold", lambda x, y: np.where(x > 1, x, 7)),
        ("ReflectionPad2d", lambda x, y: np.pad(x, ((1, 0), (2, 1)), "reflect")),
        ("ZeroPad2d", lambda x, y: np.pad(x, ((1, 0), (2, 1)), constant_values=7)),
        ("interpolate", lambda x, y: x.repeat(2, 0).repeat(2, 1)),
    ],
)
def test_hints_give_what_the_name_promised(name, theirs):
    expected = theirs(given()["x"].numpy(), given()["y"].numpy())
    for piece in code(SPELT[name])[: 1 if name in ("vstack", "hstack") else None]:
        names = given()
        if re.search(r" .= y$", piece):
            exec(piece, names)
            got = names["x"]
        else:
            made = eval(piece, names)
            got = (
                made(names["x"]) if isinstance(made, nn.Module) else made(names["tensors"]) if callable(made) else made
            )
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)


def test_vectors_are_stacked_as_numpy_does():
    vectors = [flnb.asarray([1.0, 2.0]), flnb.asarray([3.0, 4.0])]
    arrays = [v.numpy() for v in vectors]
    for name, theirs in (("vstack", np.vstack), ("hstack", np.hstack)):
        made = eval(code(SPELT[name])[1], given(tensors=vectors))
        np.testing.assert_array_equal(made.numpy(), theirs(arrays))
        with pytest.raises(
            TypeError, match=rf"np\.{name} does not compute on flnb Tensors: use flnb\.concat\(tensors, ax"
        ):
            theirs(vectors)
    with pytest.raises(
        TypeError, match=r"np\.transpose does not compute on flnb Tensors: use flnb\.permute_dims\(x, axes"
    ):
        np.transpose(X)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_whole_channels_are_dropped_as_told(n):
    assert "drops single elements" in SPELT[f"Dropout{n}d"]
    kept = eval(code(SPELT[f"Dropout{n}d"])[1], given(N=5, C=40))
    x = kept * flnb.ones((5, 40, *(3,) * n))
    assert set(x.numpy().reshape(200, -1).mean(axis=1).tolist()) == {0.0, 2.0}


def test_every_name_has_one_hint():
    """A key that stands in two tables would have the later's hint, unseen."""
    tree = ast.parse(inspect.getsource(spelling))
    [table] = [n.value for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "SPELT"]
    assert not spelling.RENAMED.keys() & spelling.REARRANGED.keys()
    parts = []
    for key, value in zip(table.keys, table.values, strict=True):
        made = eval(ast.unparse(value), vars(spelling)) if key is None else [ast.literal_eval(key)]
        parts.extend(made)
    assert sorted(parts) == sorted(SPELT)


def test_a_tensor_is_detached_and_data():
    for name in ("detach", "data"):
        with pytest.raises(AttributeError, match=rf"in flnb: x itself: a Tensor is .*; a Variable v has v\.{name}"):
            getattr(X, name)
    v = flnb.Variable([1.0])
    assert v.detach().tolist() == v.data.tolist() == [1.0]
    for x in (X, v):
        with pytest.raises(AttributeError, match=r"in flnb: flnb\.copy\(x\)"):
            x.clone()


def test_what_tensors_have_is_listed_and_what_they_have_not_is_not():
    assert {"reshape", "sum", "shape", "T"} <= {*dir(X)}
    assert {"backward", "grad"} <= {*dir(flnb.Variable(X))}
    assert not {"sin", "concat", "view"} & {*dir(X)}


@pytest.mark.parametrize(
    "ask",
    [
        lambda dtype: flnb.ones(3, dtype=dtype),
        lambda dtype: flnb.arange(3, dtype=dtype),
        lambda dtype: flnb.asarray([1.0], dtype=dtype),
        lambda dtype: flnb.asarray(X, dtype=dtype),
        lambda dtype: flnb.rand(3, dtype=dtype),
        lambda dtype: X.astype(dtype),
        lambda dtype: nn.Linear(2, 3).astype(dtype),
        flnb.set_default_dtype,
        flnb.finfo,
    ],
)
def test_a_dtype_that_is_none_is_told_the_known_ones(ask):
    with pytest.raises(
        TypeError, match=r"'float31' is not a dtype; did you mean 'float32'\? known are bool, int8, .*float64"
    ):
        ask("float31")
    with pytest.raises(TypeError, match=r"1\.5 is not a dtype; known are bool"):
        ask(1.5)


def test_dtypes_are_found_by_whatever_numpy_takes():
    for given in ("float16", np.float16, np.dtype("float16"), flnb.float16):
        assert flnb.ones(1, dtype=given).dtype == np.float16


def test_a_misspelt_part_is_guessed():
    with pytest.raises(ValueError, match=r"unknown memory manager 'cachng'; known: .*; did you mean 'caching'\?"):
        flnb.use_memory_manager("cachng").__enter__()
