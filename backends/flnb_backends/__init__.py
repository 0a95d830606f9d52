"""Implementations of flnb's interfaces: tensor backends, memory managers, communicators. Public as `flnb.backends`."""

from flnb import interface  # noqa: F401  # first: flnb makes the session, which imports from here
from flnb_backends.tensor.cpu import CpuBackend
from flnb_backends.tensor.deferred import DeferredBackend
from flnb_backends.tensor.meta import MetaBackend
from flnb_backends.tensor.numpy import NumpyBackend

__all__ = ["CpuBackend", "DeferredBackend", "MetaBackend", "NumpyBackend"]
