"""Modules, layers, losses, initial values, and saving: `import flnb.nn as nn`."""

from typing import NoReturn

from flnb.dispatch.spelling import unknown
from flnb.nn import init
from flnb.nn.activations import *
from flnb.nn.adaptive import *
from flnb.nn.augment import *
from flnb.nn.blocks import *
from flnb.nn.checkpoint import *
from flnb.nn.containers import *
from flnb.nn.convolution import *
from flnb.nn.layers import *
from flnb.nn.losses import *
from flnb.nn.module import *
from flnb.nn.norm import *
from flnb.nn.recurrent import *
from flnb.nn.saving import load, save
from flnb.nn.shaping import *
from flnb.nn.transformer import *
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
