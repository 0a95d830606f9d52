"""Transformers and blocks of speech models with their inputs, what they compute by hand, and torch's."""

import numpy as np

import flnb.nn as nn
from tests.nn.by_hand import (
    adaptive_embedding,
    attention,
    conformer,
    convolved,
    tds_block,
    transformer,
    transformer_layer,
)
from tests.nn.cases import MATRIX, STACK, Case, Method

PAIR = (*STACK, (3, 4, 8))
"""A sequence and the memory it attends to."""
IMAGE = ((3, 2, 7, 4),)


def asymmetric(past, future, stride=1, dilation=1):
    return lambda v, x: convolved(v, np.pad(x, ((0, 0), (0, 0), (past, future))), stride, 0, dilation)


def padded(t, conv, past, future):
    return Method(conv, lambda m, x: m(t.nn.functional.pad(x, (past, future))))


CASES = {
    "AsymmetricConv1d": Case(
        lambda: nn.AsymmetricConv1d(4, 6, 5), ((2, 4, 9),), asymmetric(2, 2),
        lambda t: t.nn.Conv1d(4, 6, 5, padding="same"),
    ),
    "AsymmetricConv1d even": Case(
        lambda: nn.AsymmetricConv1d(4, 6, 4), ((2, 4, 9),), asymmetric(1, 2),
        lambda t: padded(t, t.nn.Conv1d(4, 6, 4), 1, 2),
    ),
    "AsymmetricConv1d causal": Case(
        lambda: nn.AsymmetricConv1d(4, 6, 3, future_part=0.0, dilation=2), ((2, 4, 9),),
        asymmetric(4, 0, dilation=2), lambda t: padded(t, t.nn.Conv1d(4, 6, 3, dilation=2), 4, 0),
    ),
    "AsymmetricConv1d ahead": Case(
        lambda: nn.AsymmetricConv1d(4, 6, 5, 2, future_part=0.75), ((2, 4, 9),), asymmetric(1, 3, 2),
        lambda t: padded(t, t.nn.Conv1d(4, 6, 5, 2), 1, 3),
    ),
    "AdaptiveEmbedding": Case(
        lambda: nn.AdaptiveEmbedding(20, 8, [4, 10], 2.0), (np.array([[19, 0, 5], [3, 4, 10]]),), adaptive_embedding
    ),
    "LayerDrop": Case(
        lambda: nn.LayerDrop(nn.Linear(6, 6), 0.9).eval(), MATRIX,
        lambda v, x: x @ v["module.weight"].T + v["module.bias"],
    ),
    "MultiheadAttention by distance": Case(lambda: nn.MultiheadAttention(8, 2, context=5), PAIR, attention),
    "TransformerEncoderLayer by distance": Case(
        lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, context=6), STACK, transformer_layer
    ),
    "TransformerDecoderLayer": Case(
        lambda: nn.TransformerDecoderLayer(8, 2, 16, 0.0), PAIR, transformer_layer,
        lambda t: t.nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True),
    ),
    "TransformerDecoderLayer norm first": Case(
        lambda: nn.TransformerDecoderLayer(8, 2, 16, 0.0, norm_first=True), PAIR,
        lambda v, x, memory: transformer_layer(v, x, memory, norm_first=True),
        lambda t: t.nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True),
    ),
    "Transformer": Case(
        lambda: nn.Transformer(8, 2, 1, 2, 16, 0.0), PAIR, transformer,
        lambda t: t.nn.Transformer(8, 2, 1, 2, 16, 0.0, batch_first=True),
    ),
    "Conformer": Case(lambda: nn.Conformer(8, 2, 16, 3, 0.0), STACK, conformer),
    "Conformer by distance": Case(lambda: nn.Conformer(8, 2, 16, 3, 0.0, context=5), STACK, conformer),
    "TDSBlock": Case(lambda: nn.TDSBlock(2, 4, 4), IMAGE, tds_block(1, 2, (1, 2, 3))),
    "TDSBlock step by step": Case(
        lambda: nn.TDSBlock(2, 3, 4, hidden=5, future=0, norm_time=False), IMAGE, tds_block(2, 0, (1, 3))
    ),
    "SpecAugment": Case(lambda: nn.SpecAugment(3).eval(), STACK, lambda v, x: x),
    "RawWavSpecAugment": Case(lambda: nn.RawWavSpecAugment().eval(), STACK, lambda v, x: x),
}  # fmt: skip
