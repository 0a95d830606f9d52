"""Modules, layers, losses, initial values, and saving: `import flnb.nn as nn`."""

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
from flnb.nn.adaptive import AdaptiveSoftmax, AdaptiveSoftmaxLoss
from flnb.nn.checkpoint import load_checkpoint, save_checkpoint
from flnb.nn.containers import Container, ModuleDict, ModuleList, Residual, Sequential
from flnb.nn.convolution import AvgPool1d, AvgPool2d, AvgPool3d, Conv1d, Conv2d, Conv3d, MaxPool1d, MaxPool2d, MaxPool3d
from flnb.nn.layers import Dropout, Embedding, Linear, PositionEmbedding, SinusoidalPositionEmbedding
from flnb.nn.losses import BCELoss, BCEWithLogitsLoss, CrossEntropyLoss, L1Loss, MSELoss
from flnb.nn.module import Module, Parameter
from flnb.nn.norm import BatchNorm, GroupNorm, LayerNorm, Normalize, WeightNorm
from flnb.nn.recurrent import GRU, LSTM, RNN
from flnb.nn.saving import load, save
from flnb.nn.shaping import Flatten, Identity, Padding, PrecisionCast, Reorder, Transform, View
from flnb.nn.transformer import MultiheadAttention, TransformerEncoderLayer

__all__ = [
    "AdaptiveSoftmax", "AdaptiveSoftmaxLoss", "AvgPool1d", "AvgPool2d", "AvgPool3d", "BCELoss", "BCEWithLogitsLoss",
    "BatchNorm", "Container", "Conv1d", "Conv2d", "Conv3d", "CrossEntropyLoss", "Dropout", "ELU", "Embedding",
    "Flatten", "GELU", "GLU", "GRU", "GroupNorm", "HardTanh", "Identity", "L1Loss", "LSTM", "LayerNorm",
    "LeakyReLU", "Linear", "Log", "LogSoftmax", "MSELoss", "MaxPool1d", "MaxPool2d", "MaxPool3d", "Module",
    "ModuleDict", "ModuleList", "MultiheadAttention", "Normalize", "PReLU", "Padding", "Parameter",
    "PositionEmbedding", "PrecisionCast", "RNN", "ReLU", "ReLU6", "Reorder", "Residual", "Sequential", "Sigmoid",
    "SinusoidalPositionEmbedding", "Softmax", "Swish", "Tanh", "ThresholdReLU", "Transform",
    "TransformerEncoderLayer", "View", "WeightNorm", "init", "load", "load_checkpoint", "save",
    "save_checkpoint",
]  # fmt: skip
