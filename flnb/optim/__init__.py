"""Optimizers that write in place and allocate nothing after their first step: `import flnb.optim as optim`."""

from flnb.optim.algorithms import SGD, Adam
from flnb.optim.optimizer import Optimizer

__all__ = ["SGD", "Adam", "Optimizer"]
