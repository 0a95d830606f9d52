"""Modules, layers, losses, initial values, and saving: `import flnb.nn as nn`."""

from typing import NoReturn

from flnb.dispatch.spelling import unknown
from flnb.nn import init
from flnb.nn.activations import (
    ELU,
    GELU,
    GLU,
    HardTanh,
    LeakyReLU,
    Log,
    LogSoftmax,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    Softmax,
    Swish,
    Tanh,
    ThresholdReLU,
)
from flnb.nn.adaptive import AdaptiveEmbedding, AdaptiveSoftmax, AdaptiveSoftmaxLoss
from flnb.nn.augment import RawWavSpecAugment, SpecAugment
from flnb.nn.blocks import Conformer, TDSBlock
from flnb.nn.checkpoint import load_checkpoint, save_checkpoint
from flnb.nn.containers import Container, LayerDrop, ModuleDict, ModuleList, Residual, Sequential
from flnb.nn.convolution import (
    AsymmetricConv1d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    Conv1d,
    Conv2d,
    Conv3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
)
from flnb.nn.layers import Dropout, Embedding, Linear, PositionEmbedding, SinusoidalPositionEmbedding
from flnb.nn.losses import BCELoss, BCEWithLogitsLoss, CrossEntropyLoss, L1Loss, MSELoss
from flnb.nn.module import Module, Parameter
from flnb.nn.norm import BatchNorm, GroupNorm, LayerNorm, Normalize, WeightNorm
from flnb.nn.recurrent import GRU, LSTM, RNN
from flnb.nn.saving import load, save
from flnb.nn.shaping import Flatten, Identity, Padding, PrecisionCast, Reorder, Transform, View
from flnb.nn.transformer import MultiheadAttention, Transformer, TransformerDecoderLayer, TransformerEncoderLayer
from flnb.ops.documentation import readable

__all__ = [
    "AdaptiveEmbedding", "AdaptiveSoftmax", "AdaptiveSoftmaxLoss", "AsymmetricConv1d", "AvgPool1d", "AvgPool2d",
    "AvgPool3d", "BCELoss", "BCEWithLogitsLoss", "BatchNorm", "Conformer", "Container", "Conv1d", "Conv2d",
    "Conv3d", "CrossEntropyLoss", "Dropout", "ELU", "Embedding", "Flatten", "GELU", "GLU", "GRU", "GroupNorm",
    "HardTanh", "Identity", "L1Loss", "LSTM", "LayerDrop", "LayerNorm", "LeakyReLU", "Linear", "Log", "LogSoftmax",
    "MSELoss", "MaxPool1d", "MaxPool2d", "MaxPool3d", "Module", "ModuleDict", "ModuleList", "MultiheadAttention",
    "Normalize", "PReLU", "Padding", "Parameter", "PositionEmbedding", "PrecisionCast", "RNN", "RawWavSpecAugment",
    "ReLU", "ReLU6", "Reorder", "Residual", "Sequential", "Sigmoid", "SinusoidalPositionEmbedding", "Softmax",
    "SpecAugment", "Swish", "TDSBlock", "Tanh", "ThresholdReLU", "Transform", "Transformer",
    "TransformerDecoderLayer", "TransformerEncoderLayer", "View", "WeightNorm", "init", "load", "load_checkpoint",
    "save", "save_checkpoint",
]  # fmt: skip


def __getattr__(name: str) -> NoReturn:
    raise unknown("module 'flnb.nn'", name, __all__)


for _name in __all__:
    readable(globals()[_name])
