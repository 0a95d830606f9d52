"""Every module with its inputs, what it computes by hand, and torch's."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import flnb
import flnb.nn as nn
from tests.nn.by_hand import (
    adaptive,
    attention,
    convolved,
    gelu,
    log_softmax,
    pooled,
    recurrent,
    sigmoid,
    sinusoids,
    standard,
    step_gru,
    step_lstm,
    step_rnn,
    transformer_layer,
    two_heads,
    weight_norm,
)


class Case(NamedTuple):
    """A module, its inputs (or their shapes), what it makes of them by hand, and torch's module."""

    make: Callable[[], nn.Module]
    inputs: tuple[Any, ...]
    hand: Callable[..., Any]
    """``hand(values, *inputs)``: the result in float64 from parameters and buffers by name."""
    torch: Callable[[Any], Any] | None = None
    rename: Callable[[str], str] = str
    """A name of ours as torch's."""


class TwoHeads(nn.Module):
    """A list and a dict of modules, called by their owner."""

    def __init__(self) -> None:
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 3)})

    def forward(self, x):
        for layer in self.layers:
            x = flnb.tanh(layer(x))
        return tuple(head(x) for head in self.heads.values())


class Method:
    """A module of torch's called in another way."""

    def __init__(self, module, call):
        self.module, self.call = module, call

    def __call__(self, *inputs):
        return self.call(self.module, *inputs)


def Attention(torch, module):
    return Method(module, lambda m, q, k=None: m(q, *([q] * 2 if k is None else [k] * 2), need_weights=False)[0])


MATRIX, SERIES, STACK = ((5, 6),), ((7, 3, 4),), ((3, 5, 8),)
POSITIVE = (np.random.default_rng(3).uniform(0.5, 2.0, (5, 6)).astype(np.float32),)
TARGETS = (6, 8), np.array([0, 19, 5, 3, 12, 9])
SIZES = {1: (9,), 2: (9, 8), 3: (5, 6, 7)}
WEIGHT_NORM = {"direction": "parametrizations.weight.original1", "magnitude": "parametrizations.weight.original0"}

CASES = {
    "Identity": Case(nn.Identity, MATRIX, lambda v, x: x, lambda t: t.nn.Identity()),
    "Transform": Case(lambda: nn.Transform(flnb.sin), MATRIX, lambda v, x: np.sin(x), lambda t: t.sin),
    "View": Case(
        lambda: nn.View((-1, 3, 2)), MATRIX, lambda v, x: x.reshape(5, 3, 2), lambda t: lambda x: x.view(-1, 3, 2)
    ),
    "Reorder": Case(
        lambda: nn.Reorder((2, 0, 1)), SERIES, lambda v, x: x.transpose(2, 0, 1),
        lambda t: lambda x: x.permute(2, 0, 1),
    ),
    "Flatten": Case(nn.Flatten, SERIES, lambda v, x: x.reshape(7, 12), lambda t: t.nn.Flatten()),
    "Padding": Case(
        lambda: nn.Padding([(1, 2), (0, 3)], 0.5), ((2, 3, 4),),
        lambda v, x: np.pad(x, ((0, 0), (1, 2), (0, 3)), constant_values=0.5),
        lambda t: t.nn.ConstantPad2d((0, 3, 1, 2), 0.5),
    ),
    "Padding reflect": Case(
        lambda: nn.Padding([(2, 1)], mode="reflect"), ((2, 3, 4),),
        lambda v, x: np.pad(x, ((0, 0), (0, 0), (2, 1)), "reflect"), lambda t: t.nn.ReflectionPad1d((2, 1)),
    ),
    "PrecisionCast": Case(lambda: nn.PrecisionCast("float64"), MATRIX, lambda v, x: x, lambda t: lambda x: x.double()),
    "ReLU": Case(nn.ReLU, MATRIX, lambda v, x: np.maximum(x, 0), lambda t: t.nn.ReLU()),
    "ReLU6": Case(
        nn.ReLU6, (np.linspace(-3.1, 9.1, 40, dtype=np.float32),), lambda v, x: np.clip(x, 0, 6), lambda t: t.nn.ReLU6()
    ),
    "Sigmoid": Case(nn.Sigmoid, MATRIX, lambda v, x: sigmoid(x), lambda t: t.nn.Sigmoid()),
    "Tanh": Case(nn.Tanh, MATRIX, lambda v, x: np.tanh(x), lambda t: t.nn.Tanh()),
    "Log": Case(nn.Log, POSITIVE, lambda v, x: np.log(x), lambda t: t.log),
    "HardTanh": Case(
        lambda: nn.HardTanh(-0.5, 0.8), MATRIX, lambda v, x: np.clip(x, -0.5, 0.8),
        lambda t: t.nn.Hardtanh(-0.5, 0.8),
    ),
    "LeakyReLU": Case(
        lambda: nn.LeakyReLU(0.2), MATRIX, lambda v, x: np.where(x > 0, x, 0.2 * x), lambda t: t.nn.LeakyReLU(0.2)
    ),
    "PReLU": Case(nn.PReLU, MATRIX, lambda v, x: np.where(x > 0, x, v["weight"] * x), lambda t: t.nn.PReLU()),
    "PReLU channels": Case(
        lambda: nn.PReLU(3), SERIES, lambda v, x: np.where(x > 0, x, v["weight"][:, None] * x),
        lambda t: t.nn.PReLU(3),
    ),
    "ELU": Case(
        lambda: nn.ELU(0.7), MATRIX, lambda v, x: np.where(x > 0, x, 0.7 * np.expm1(x)), lambda t: t.nn.ELU(0.7)
    ),
    "ThresholdReLU": Case(
        lambda: nn.ThresholdReLU(0.3, -1.0), MATRIX, lambda v, x: np.where(x > 0.3, x, -1.0),
        lambda t: t.nn.Threshold(0.3, -1.0),
    ),
    "GLU": Case(lambda: nn.GLU(1), MATRIX, lambda v, x: x[:, :3] * sigmoid(x[:, 3:]), lambda t: t.nn.GLU(1)),
    "Swish": Case(nn.Swish, MATRIX, lambda v, x: x * sigmoid(x), lambda t: t.nn.SiLU()),
    "GELU": Case(nn.GELU, MATRIX, lambda v, x: gelu(x), lambda t: t.nn.GELU()),
    "GELU by tanh": Case(
        lambda: nn.GELU("tanh"), MATRIX,
        lambda v, x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))), lambda t: t.nn.GELU("tanh"),
    ),
    "Softmax": Case(lambda: nn.Softmax(0), MATRIX, lambda v, x: np.exp(log_softmax(x, 0)), lambda t: t.nn.Softmax(0)),
    "LogSoftmax": Case(lambda: nn.LogSoftmax(0), MATRIX, lambda v, x: log_softmax(x, 0), lambda t: t.nn.LogSoftmax(0)),
    "Dropout": Case(lambda: nn.Dropout(0.5).eval(), MATRIX, lambda v, x: x, lambda t: t.nn.Dropout(0.5).eval()),
    "Linear": Case(
        lambda: nn.Linear(6, 4), MATRIX, lambda v, x: x @ v["weight"].T + v["bias"], lambda t: t.nn.Linear(6, 4)
    ),
    "Linear without bias": Case(
        lambda: nn.Linear(6, 4, bias=False), MATRIX, lambda v, x: x @ v["weight"].T,
        lambda t: t.nn.Linear(6, 4, bias=False),
    ),
    "Embedding": Case(
        lambda: nn.Embedding(5, 3), (np.array([[4, 0], [4, 2]]),), lambda v, i: v["weight"][i],
        lambda t: t.nn.Embedding(5, 3),
    ),
    "PositionEmbedding": Case(lambda: nn.PositionEmbedding(9, 8), STACK, lambda v, x: x + v["weight"][:5]),
    "SinusoidalPositionEmbedding": Case(
        lambda: nn.SinusoidalPositionEmbedding(9, 8), STACK, lambda v, x: x + sinusoids(5, 8)
    ),
    "BatchNorm": Case(
        lambda: nn.BatchNorm(6), MATRIX, lambda v, x: standard(x, 0) * v["weight"] + v["bias"],
        lambda t: t.nn.BatchNorm1d(6),
    ),
    "BatchNorm of images": Case(
        lambda: nn.BatchNorm(4, eps=1e-3), ((2, 4, 3, 5),),
        lambda v, x: standard(x, (0, 2, 3), 1e-3) * v["weight"][:, None, None] + v["bias"][:, None, None],
        lambda t: t.nn.BatchNorm2d(4, eps=1e-3),
    ),
    "BatchNorm evaluating": Case(
        lambda: nn.BatchNorm(6).eval(), MATRIX, lambda v, x: x / np.sqrt(1 + 1e-5) * v["weight"] + v["bias"],
        lambda t: t.nn.BatchNorm1d(6).eval(),
    ),
    "LayerNorm": Case(
        lambda: nn.LayerNorm((3, 4)), SERIES, lambda v, x: standard(x, (1, 2)) * v["weight"] + v["bias"],
        lambda t: t.nn.LayerNorm((3, 4)),
    ),
    "LayerNorm without bias": Case(
        lambda: nn.LayerNorm(4, bias=False), SERIES, lambda v, x: standard(x, 2) * v["weight"],
        lambda t: t.nn.LayerNorm(4, bias=False),
    ),
    "LayerNorm plain": Case(
        lambda: nn.LayerNorm(4, affine=False), SERIES, lambda v, x: standard(x, 2),
        lambda t: t.nn.LayerNorm(4, elementwise_affine=False),
    ),
    "GroupNorm": Case(
        lambda: nn.GroupNorm(2, 4), ((3, 4, 5),),
        lambda v, x: standard(x.reshape(3, 2, 10), 2).reshape(x.shape) * v["weight"][:, None] + v["bias"][:, None],
        lambda t: t.nn.GroupNorm(2, 4),
    ),
    "Normalize": Case(
        lambda: nn.Normalize(3.0, 0), MATRIX, lambda v, x: x / (np.abs(x) ** 3).sum(0) ** (1 / 3),
        lambda t: lambda x: t.nn.functional.normalize(x, 3.0, 0),
    ),
    "WeightNorm": Case(
        lambda: nn.WeightNorm(nn.Linear(6, 4)), MATRIX, weight_norm,
        lambda t: t.nn.utils.parametrizations.weight_norm(t.nn.Linear(6, 4)),
        lambda name: WEIGHT_NORM.get(name, name.removeprefix("module.")),
    ),
    "Sequential": Case(
        lambda: nn.Sequential(nn.Linear(6, 3), nn.Tanh()), MATRIX,
        lambda v, x: np.tanh(x @ v["0.weight"].T + v["0.bias"]),
        lambda t: t.nn.Sequential(t.nn.Linear(6, 3), t.nn.Tanh()),
    ),
    "Residual": Case(
        lambda: nn.Residual(nn.Linear(6, 6)), MATRIX, lambda v, x: x + x @ v["module.weight"].T + v["module.bias"],
    ),
    "ModuleList and ModuleDict": Case(TwoHeads, ((5, 4),), two_heads),
    "RNN": Case(lambda: nn.RNN(4, 5, 2), SERIES, recurrent(step_rnn, 1), lambda t: t.nn.RNN(4, 5, 2)),
    "LSTM": Case(lambda: nn.LSTM(4, 5, 2), SERIES, recurrent(step_lstm, 2), lambda t: t.nn.LSTM(4, 5, 2)),
    "GRU": Case(lambda: nn.GRU(4, 5, 2), SERIES, recurrent(step_gru, 1), lambda t: t.nn.GRU(4, 5, 2)),
    "LSTM bidirectional": Case(
        lambda: nn.LSTM(4, 5, 2, bidirectional=True), SERIES, recurrent(step_lstm, 2, ("", "_reverse")),
        lambda t: t.nn.LSTM(4, 5, 2, bidirectional=True),
    ),
    "RNN by relu": Case(
        lambda: nn.RNN(4, 5, 2, nonlinearity="relu"), SERIES,
        recurrent(lambda gates, h, u, b: (np.maximum(gates + h[0] @ u.T + b, 0),), 1),
        lambda t: t.nn.RNN(4, 5, 2, nonlinearity="relu"),
    ),
    "GRU bidirectional": Case(
        lambda: nn.GRU(4, 5, 2, bidirectional=True), SERIES, recurrent(step_gru, 1, ("", "_reverse")),
        lambda t: t.nn.GRU(4, 5, 2, bidirectional=True),
    ),
    "MultiheadAttention": Case(
        lambda: nn.MultiheadAttention(8, 2), STACK, attention,
        lambda t: Attention(t, t.nn.MultiheadAttention(8, 2, batch_first=True)),
    ),
    "MultiheadAttention to another": Case(
        lambda: nn.MultiheadAttention(8, 2), (*STACK, (3, 4, 8)), attention,
        lambda t: Attention(t, t.nn.MultiheadAttention(8, 2, batch_first=True)),
    ),
    "TransformerEncoderLayer": Case(
        lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0), STACK, transformer_layer,
        lambda t: t.nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True),
    ),
    "TransformerEncoderLayer norm first": Case(
        lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", norm_first=True), STACK,
        lambda v, x: transformer_layer(v, x, norm_first=True, activate=gelu),
        lambda t: t.nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True),
    ),
    "TransformerEncoderLayer without bias": Case(
        lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, bias=False), STACK, transformer_layer,
        lambda t: t.nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, bias=False),
    ),
    "AdaptiveSoftmax": Case(
        lambda: nn.AdaptiveSoftmax(8, 20, [4, 10], 2.0), ((6, 8),), adaptive,
        lambda t: Method(t.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [4, 10], 2.0), lambda m, x: m.log_prob(x)),
    ),
    "AdaptiveSoftmaxLoss": Case(
        lambda: nn.AdaptiveSoftmaxLoss(nn.AdaptiveSoftmax(8, 20, [4, 10], 2.0)), TARGETS,
        lambda v, x, i: adaptive(v, x, i, "softmax."),
        lambda t: Method(t.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [4, 10], 2.0), lambda m, x, i: m(x, i).loss),
        lambda name: name.removeprefix("softmax."),
    ),
}  # fmt: skip
for _n in (1, 2, 3):
    CASES[f"Conv{_n}d"] = Case(
        lambda n=_n: getattr(nn, f"Conv{n}d")(4, 6, 3, 2, 1, dilation=1, groups=2), ((2, 4, *SIZES[_n]),),
        lambda v, x: convolved(v, x, 2, 1, 1, 2),
        lambda t, n=_n: getattr(t.nn, f"Conv{n}d")(4, 6, 3, 2, 1, 1, 2),
    )  # fmt: skip
    CASES[f"MaxPool{_n}d"] = Case(
        lambda n=_n: getattr(nn, f"MaxPool{n}d")(3, 2, 1), ((2, 4, *SIZES[_n]),),
        lambda v, x: pooled(x, np.max, -np.inf), lambda t, n=_n: getattr(t.nn, f"MaxPool{n}d")(3, 2, 1),
    )  # fmt: skip
    CASES[f"AvgPool{_n}d"] = Case(
        lambda n=_n: getattr(nn, f"AvgPool{n}d")(3, 2, 1), ((2, 4, *SIZES[_n]),),
        lambda v, x: pooled(x, np.mean, 0.0), lambda t, n=_n: getattr(t.nn, f"AvgPool{n}d")(3, 2, 1),
    )  # fmt: skip
CASES["Conv1d dilated"] = Case(
    lambda: nn.Conv1d(4, 2, 3, dilation=2), ((2, 4, 9),), lambda v, x: convolved(v, x, dilation=2),
    lambda t: t.nn.Conv1d(4, 2, 3, dilation=2),
)  # fmt: skip
