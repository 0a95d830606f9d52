"""Optimizers that write in place and allocate nothing after their first step: `import flnb.optim as optim`."""

from flnb.ops.documentation import readable
from flnb.optim.algorithms import NAG, SGD, Adadelta, Adagrad, Adam, AdamW, AMSgrad, Novograd, RMSProp
from flnb.optim.clipping import clip_grad_norm, clip_grad_value
from flnb.optim.optimizer import Optimizer
from flnb.optim.scaling import LossScaler
from flnb.optim.schedules import Chain, Cosine, Exponential, LinearWarmUp, Schedule, StepDecay
from flnb.optim.together import Together

__all__ = [
    "NAG", "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "AMSgrad", "Chain", "Cosine", "Exponential", "LinearWarmUp",
    "LossScaler", "Novograd", "Optimizer", "RMSProp", "Schedule", "StepDecay", "Together", "clip_grad_norm",
    "clip_grad_value",
]  # fmt: skip

for _name in __all__:
    readable(globals()[_name])
