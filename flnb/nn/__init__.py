"""Modules, layers, losses, initial values, and saving: `import flnb.nn as nn`."""

from flnb.nn import init
from flnb.nn.layers import (
    AvgPool2d,
    BatchNorm,
    Conv2d,
    Dropout,
    Flatten,
    Identity,
    Linear,
    LogSoftmax,
    MaxPool2d,
    ReLU,
    Sequential,
    Sigmoid,
    Tanh,
)
from flnb.nn.losses import CrossEntropyLoss, MSELoss, NLLLoss
from flnb.nn.module import Hook, Module, Parameter
from flnb.nn.saving import load, save

__all__ = [
    "AvgPool2d",
    "BatchNorm",
    "Conv2d",
    "CrossEntropyLoss",
    "Dropout",
    "Flatten",
    "Hook",
    "Identity",
    "Linear",
    "LogSoftmax",
    "MSELoss",
    "MaxPool2d",
    "Module",
    "NLLLoss",
    "Parameter",
    "ReLU",
    "Sequential",
    "Sigmoid",
    "Tanh",
    "init",
    "load",
    "save",
]
