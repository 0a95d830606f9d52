"""Reverse-mode differentiation: Variables, the tape, and functions that return derivatives."""

from __future__ import annotations

from typing import Any

from flnb_telemetry import schema

from flnb.autograd.checkpoint import checkpoint
from flnb.autograd.custom import CustomOp, GradientRuleError, custom_op
from flnb.autograd.explain import creation_stack
from flnb.autograd.packing import saved_tensors_hooks
from flnb.autograd.transforms import grad, hessian, hvp, jacobian, jvp, stop_gradient, value_and_grad, vjp
from flnb.autograd.variable import Variable
from flnb.autograd.vmap import vmap
from flnb.autograd.why import why
from flnb.dispatch import source_lines, state

__all__ = [
    "CustomOp", "GradientRuleError", "Variable", "checkpoint", "creation_stack", "custom_op", "enable_grad", "grad",
    "hessian", "hvp", "is_grad_enabled", "jacobian", "jvp", "no_grad", "saved_tensors_hooks", "stop_gradient",
    "value_and_grad", "vjp", "vmap", "why",
]  # fmt: skip


def no_grad() -> Any:
    """Context manager and decorator that records no gradients: ``with flnb.no_grad(): ...``.

    >>> import flnb
    >>> w = flnb.Variable([1.0])
    >>> with flnb.no_grad():
    ...     y = w * 2.0
    >>> y.requires_grad
    False
    """
    source_lines.note_cut(schema.NO_GRAD, 0)
    return state.recording(False)


def enable_grad() -> Any:
    """Context manager and decorator that records ops for gradients, even inside `no_grad`.

    >>> import flnb
    >>> with flnb.no_grad(), flnb.enable_grad():
    ...     y = flnb.Variable([1.0]) * 2.0
    >>> y.requires_grad
    True
    """
    return state.recording(True)


def is_grad_enabled() -> bool:
    """Return whether ops on Variables that require grad are currently recorded.

    >>> import flnb
    >>> flnb.is_grad_enabled()
    True
    """
    return state.current().grad
