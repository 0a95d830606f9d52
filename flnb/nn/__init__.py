"""Modules, layers, the loss, and saving: `import flnb.nn as nn`."""

from flnb.nn.layers import BatchNorm, Conv2d, Dropout, Flatten, Linear, LogSoftmax, MaxPool2d, ReLU, Sequential
from flnb.nn.losses import CrossEntropyLoss
from flnb.nn.module import Module, Parameter
from flnb.nn.saving import load, save

__all__ = [
    "BatchNorm", "Conv2d", "CrossEntropyLoss", "Dropout", "Flatten", "Linear", "LogSoftmax", "MaxPool2d", "Module",
    "Parameter", "ReLU", "Sequential", "load", "save",
]  # fmt: skip
