"""Modules given what does not fit: the error says what was expected and what was got."""

import re

import numpy as np
import pytest

import flnb
import flnb.nn as nn

CALLS = {
    "channels of Conv1d": (
        lambda: nn.Conv1d(4, 2, 3),
        [(2, 3, 9)],
        "conv1d: x has 3 channels, the weight expects 4 in each of 1 groups",
    ),
    "channels of Conv2d in groups": (
        lambda: nn.Conv2d(4, 2, 3, groups=2),
        [(2, 6, 9, 9)],
        "x has 6 channels, the weight expects 2 in each of 2 groups",
    ),
    "channels of Conv3d": (
        lambda: nn.Conv3d(4, 2, 1),
        [(2, 3, 3, 3, 3)],
        "conv3d: x has 3 channels, the weight expects 4",
    ),
    "rank of Conv2d": (lambda: nn.Conv2d(4, 2, 3), [(2, 4, 9)], "conv2d: expected x (N, C, H, W)"),
    "kernel of Conv1d": (lambda: nn.Conv1d(4, 2, 5), [(2, 4, 3)], "a kernel of (5,) does not fit an image of (3,)"),
    "kernel of AvgPool1d": (lambda: nn.AvgPool1d(9), [(2, 4, 3)], "a kernel of (9,) does not fit an image of (3,)"),
    "rank of AvgPool1d": (
        lambda: nn.AvgPool1d(2),
        [(2, 4, 3, 3)],
        "avg_pool1d: expected x (N, C, W), got float32[2,4,3,3]",
    ),
    "rank of padded MaxPool2d": (
        lambda: nn.MaxPool2d(2, padding=1),
        [(4, 3, 3)],
        "max_pool2d: expected x (N, C, H, W), got",
    ),
    "rank of MaxPool3d": (lambda: nn.MaxPool3d(2), [(2, 4, 3)], "max_pool3d: expected x (N, C, D, H, W)"),
    "features of Linear": (lambda: nn.Linear(4, 2), [(5, 3)], "x has 3 features (shape (5, 3)), the weight expects 4"),
    "slopes of PReLU": (
        lambda: nn.PReLU(3),
        [(2, 4)],
        "prelu: expected a weight (), (1,) or (C,) for x (N, C, ...), got (3,) and (2, 4)",
    ),
    "halves of GLU": (nn.GLU, [(2, 3)], "glu: expected an even number of elements along axis -1"),
    "features of LayerNorm": (
        lambda: nn.LayerNorm((3, 4)),
        [(5, 4, 3)],
        "layer_norm: expected x (..., 3, 4) and weight and bias (3, 4), got x (5, 4, 3)",
    ),
    "channels of GroupNorm": (lambda: nn.GroupNorm(2, 4), [(5, 6)], "GroupNorm: expected x (N, 4, ...), got (5, 6)"),
    "channels of BatchNorm": (lambda: nn.BatchNorm(4), [(5, 6)], "got x (5, 6) and weight (4,)"),
    "axes of Padding": (lambda: nn.Padding([(1, 1)] * 3), [(5, 6)], "expected 3 axes or more to pad, got shape (5, 6)"),
    "sum of Residual": (
        lambda: nn.Residual(nn.Linear(4, 1)),
        [(5, 4)],
        "Residual: Linear returned (5, 1) for (5, 4), but the result is added to (5, 4)",
    ),
    "length of PositionEmbedding": (
        lambda: nn.PositionEmbedding(6, 4),
        [(2, 7, 4)],
        "PositionEmbedding: expected x (N, T, 4) with T at most 6, got (2, 7, 4)",
    ),
    "length of SinusoidalPositionEmbedding": (
        lambda: nn.SinusoidalPositionEmbedding(6, 4),
        [(2, 7, 4)],
        "expected x (N, T, 4) with T at most 6, got (2, 7, 4)",
    ),
    **{
        f"features of {name}": (
            lambda name=name: getattr(nn, name)(3, 4),
            [(7, 5, 2)],
            f"{name}: expected x (T, N, 3) with T > 0, got (7, 5, 2)",
        )
        for name in ("RNN", "LSTM", "GRU")
    },
    "length of GRU": (lambda: nn.GRU(3, 4), [(0, 5, 3)], "GRU: expected x (T, N, 3) with T > 0, got (0, 5, 3)"),
    "state of GRU": (
        lambda: nn.GRU(3, 4),
        [(7, 5, 3), (1, 4, 4)],
        "expected 1 state(s) of shape (1, 5, 4), got (1, 4, 4)",
    ),
    "features of attention": (
        lambda: nn.MultiheadAttention(8, 2),
        [(3, 5, 6)],
        "expected inputs (N, T, 8) with equal N, got (3, 5, 6)",
    ),
    "batch of attention": (
        lambda: nn.MultiheadAttention(8, 2),
        [(3, 5, 8), (2, 5, 8)],
        "expected inputs (N, T, 8) with equal N, got (3, 5, 8), (2, 5, 8)",
    ),
    "length of attention": (
        lambda: nn.MultiheadAttention(8, 2),
        [(3, 5, 8), (3, 5, 8), (3, 4, 8)],
        "expected query (..., L, E), key (..., S, E) and value (..., S, F)",
    ),
    "axes of AsymmetricConv1d": (lambda: nn.AsymmetricConv1d(4, 2, 3), [(2, 4)], "expected x (N, 4, W), got (2, 4)"),
    "channels of AsymmetricConv1d": (
        lambda: nn.AsymmetricConv1d(4, 2, 3),
        [(2, 3, 9)],
        "conv1d: x has 3 channels, the weight expects 4",
    ),
    "length of attention by distance": (
        lambda: nn.MultiheadAttention(8, 2, context=4),
        [(3, 2, 8), (3, 5, 8)],
        "expected sequences of at most context=4, got 2 queries and 5 keys",
    ),
    "memory of TransformerDecoderLayer": (
        lambda: nn.TransformerDecoderLayer(8, 2),
        [(3, 5, 8), (3, 7, 6)],
        "expected inputs (N, T, 8) with equal N, got (3, 5, 8), (3, 7, 6)",
    ),
    "features of Conformer": (lambda: nn.Conformer(8, 2, 16), [(3, 5, 6)], "layer_norm: expected x (..., 8)"),
    "mask of Conformer": (
        lambda: nn.Conformer(8, 2, 16),
        [(3, 5, 8), (3, 4)],
        "Conformer: expected a mask (3, 5) for x (3, 5, 8), got (3, 4)",
    ),
    "width of TDSBlock": (
        lambda: nn.TDSBlock(2, 3, 4),
        [(3, 2, 9, 5)],
        "TDSBlock: expected x (N, 2, T, 4), got (3, 2, 9, 5)",
    ),
    "channels of SpecAugment": (
        lambda: nn.SpecAugment(frequency_width=9),
        [(3, 50, 8)],
        "SpecAugment: expected x (N, T, F) with F at least frequency_width=9, got (3, 50, 8)",
    ),
    "axes of RawWavSpecAugment": (nn.RawWavSpecAugment, [(50,)], "expected waves (N, ..., T) with T > 0, got (50,)"),
    "features of AdaptiveSoftmax": (
        lambda: nn.AdaptiveSoftmax(8, 20, [4]),
        [(3, 7)],
        "AdaptiveSoftmax: expected x (N, 8), got (3, 7)",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_called_with_wrong_shapes(name):
    make, shapes, message = CALLS[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        make()(*map(flnb.ones, shapes))


MADE = {
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3, groups=3), "Conv2d: expected groups that divide 4 and 6 channels, got 3"),
    "GroupNorm": (lambda: nn.GroupNorm(3, 4), "GroupNorm: expected groups that divide 4 channels, got 3"),
    "heads": (lambda: nn.MultiheadAttention(8, 3), "expected heads that divide 8 features, got 3"),
    "sinusoids": (lambda: nn.SinusoidalPositionEmbedding(6, 3), "expected an even number of features, got 3"),
    "cutoffs": (lambda: nn.AdaptiveSoftmax(8, 20, [4, 20]), "expected rising cutoffs between 1 and 19, got [4, 20]"),
    "activation": (lambda: nn.TransformerEncoderLayer(8, 2, activation="elu"), "must be 'relu' or 'gelu', got 'elu'"),
    "activation of a decoder": (
        lambda: nn.TransformerDecoderLayer(8, 2, activation="elu"),
        "TransformerDecoderLayer: activation must be 'relu' or 'gelu', got 'elu'",
    ),
    "future_part": (
        lambda: nn.AsymmetricConv1d(2, 2, 3, future_part=2.0),
        "future_part must be from 0 (past) to 1 (future), got 2.0",
    ),
    "future": (
        lambda: nn.TDSBlock(2, 3, 4, future=3),
        "TDSBlock: future must be from 0 to 2 (for kernel_size=3), got 3",
    ),
    "cutoffs of AdaptiveEmbedding": (
        lambda: nn.AdaptiveEmbedding(20, 8, []),
        "AdaptiveEmbedding: expected rising cutoffs between 1 and 19, got []",
    ),
    "LayerDrop": (lambda: nn.LayerDrop(nn.ReLU(), 1.0), "at least 0 and below 1; got 1.0"),
    "masks": (lambda: nn.SpecAugment(time_share=1.5), "SpecAugment: expected widths, numbers of masks and time_warp"),
    "value of masks": (lambda: nn.SpecAugment(value="zero"), "value must be a number or 'mean', got 'zero'"),
    "frequencies": (
        lambda: nn.RawWavSpecAugment(sample_rate=8000),
        "expected 0 <= low_hz < high_hz <= sample_rate / 2 and bands >= 1, got low_hz=0.0, high_hz=8000.0, sample_rate",
    ),
    "kernels": (
        lambda: nn.RawWavSpecAugment(max_kernel=9),
        "no band can be removed by filters of at most max_kernel=9 samples, the shortest filter has",
    ),
    "HardTanh": (lambda: nn.HardTanh(1.0, -1.0)(flnb.ones(2)), "hardtanh: expected low < high, got 1.0 and -1.0"),
    "nonlinearity": (
        lambda: nn.RNN(2, 3, nonlinearity="elu")(flnb.ones((1, 1, 2))),
        "nonlinearity must be 'tanh' or 'relu', got 'elu'",
    ),
    "bias alone": (lambda: flnb.layer_norm(flnb.ones(3), 3, bias=flnb.ones(3)), "got a bias without a weight"),
    "groups": (
        lambda: flnb.group_norm(flnb.ones((2, 4)), 3),
        "expected x (N, C, ...) with C divisible by 3 groups and weight",
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_made_wrong(name):
    make, message = MADE[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_indices_that_are_no_row_and_modules_without_a_weight():
    with pytest.raises(IndexError, match=r"index 10 is out of range for axis 0 of shape \(10, 3\)"):
        nn.Embedding(10, 3)(flnb.asarray([10]))
    with pytest.raises(
        TypeError, match="expected a module with a parameter 'weight', got ReLU, whose 'weight' is None"
    ):
        nn.WeightNorm(nn.ReLU())


def test_a_mask_says_where_to_attend():
    attention = nn.MultiheadAttention(8, 2)
    x = flnb.asarray(np.random.default_rng(0).normal(size=(3, 5, 8)).astype(np.float32))
    causal = np.tri(5, dtype=bool)
    close = lambda a, b: np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-5, atol=1e-6)  # noqa: E731
    close(attention(x, mask=flnb.asarray(causal)), attention(x, is_causal=True))
    padded = attention(x, mask=flnb.asarray(np.arange(5) < 3))  # no query sees the last two
    close(padded[:, :3], attention(x[:, :3]))
