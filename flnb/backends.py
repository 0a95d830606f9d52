"""The public face of `flnb_backends`: tensor backends to use and to derive from."""

from flnb_backends import *  # noqa: F403
from flnb_backends import __all__ as __all__
