"""Optimizers that write in place and allocate nothing after their first step: `import flnb.optim as optim`."""

from flnb.optim.algorithms import NAG, SGD, Adadelta, Adagrad, Adam, AdamW, AMSgrad, Novograd, RMSProp
from flnb.optim.optimizer import Optimizer

__all__ = ["NAG", "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "AMSgrad", "Novograd", "Optimizer", "RMSProp"]
