"""flnb: a machine-learning framework to look into, live, from a notebook.

A program touches the machine through small interfaces: a tensor backend computes, a memory manager allocates. Every
crossing emits one event, and everything that is shown is computed from those events. Replace either in a cell
(`use_backend`, `use_memory_manager`) and watch what changed (`record`, `dashboard`).
"""

# ruff: noqa: F403, F405 (`__all__` says what is public)

from __future__ import annotations

import builtins as _builtins
import math as _math
import sys as _sys
from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING, Any

from flnb_telemetry.bus import describers as _describers
from flnb_telemetry.bus import log as _log_metrics
from flnb_telemetry.bus import phase, scope, step
from flnb_telemetry.extras import late as _late
from flnb_telemetry.extras import tool as _tool

from flnb import autograd, dispatch, fft, interface, linalg, ops, random
from flnb.autograd import *
from flnb.collector import tune_gc
from flnb.dispatch import state as _state
from flnb.dispatch.autocast import autocast
from flnb.dispatch.crossing import sync
from flnb.dispatch.dtypes import DTYPES as _DTYPES
from flnb.dispatch.dtypes import default_dtype, set_default_dtype
from flnb.dispatch.parts import (
    active_facts as _active_facts,
)
from flnb.dispatch.parts import (
    set_backend,
    set_memory_device,
    set_memory_manager,
    set_tape,
    use_backend,
    use_memory_device,
    use_memory_manager,
    use_tape,
)
from flnb.dispatch.recording import record
from flnb.dispatch.source_lines import creation_stacks
from flnb.dispatch.spelling import unknown as _unknown
from flnb.dispatch.state import category
from flnb.interface import OutOfMemoryError
from flnb.ops import *
from flnb.ops.documentation import readable as _readable
from flnb.ops.inspection import VERSIONS as _VERSIONS
from flnb.ops.inspection import Info as _Info
from flnb.random import manual_seed, rand, randn
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from flnb_telemetry import load_run

    from flnb import (
        backends,
        data,
        explore,
        magics,
        memory,
        meters,
        models,
        nn,
        optim,
        plot,
        sparse,
        speech,
        telemetry,
        testing,
        vision,
        widgets,
    )
    from flnb.autograd.anomaly import breakpoint_if, detect_anomaly
    from flnb.explore import bisect, compare_backends
    from flnb.magics import load_ipython_extension as load_ipython_extension
    from flnb.tensor import ArrayLike
    from flnb.widgets.dashboard import dashboard
    from flnb.widgets.finished import view

__version__ = "0.1.0"

bool = bool_ = _DTYPES["bool"]
int8, int16, int32, int64 = (_DTYPES[f"int{bits}"] for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (_DTYPES[f"uint{bits}"] for bits in (8, 16, 32, 64))
float16, float32, float64 = (_DTYPES[f"float{bits}"] for bits in (16, 32, 64))
complex64, complex128 = _DTYPES["complex64"], _DTYPES["complex128"]
e, pi, inf, nan, newaxis = _math.e, _math.pi, _math.inf, _math.nan, None
__array_api_version__ = _VERSIONS[-1]

_LAZY = {
    "bisect": "flnb.explore",
    "breakpoint_if": "flnb.autograd.anomaly",
    "compare_backends": "flnb.explore",
    "dashboard": "flnb.widgets.dashboard",
    "detect_anomaly": "flnb.autograd.anomaly",
    "load_ipython_extension": "flnb.magics",
    "load_run": "flnb_telemetry",
    "view": "flnb.widgets.finished",
}
_MODULES = (
    "backends", "data", "explore", "magics", "memory", "meters", "models", "nn", "optim", "plot", "sparse", "speech",
    "telemetry", "testing", "vision", "widgets",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import rarely used names when they are asked for, so that `import flnb` stays quick."""
    if name in _LAZY:
        value = _tool(_LAZY[name], name)
    elif name in _MODULES:
        value = _tool(f"flnb.{name}")
    else:
        raise _unknown("module 'flnb'", name, __dir__())
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_MODULES})


def log(x: ArrayLike | None = None, /, out: Tensor | None = None, **metrics: float) -> Any:  # type: ignore[no-redef]
    """Natural logarithm of a tensor, ``log(x)``; or, with keywords, metrics for the recording, ``log(loss=loss)``.

    The metrics are numbers, or tensors of one element.

    >>> import flnb
    >>> flnb.log([1.0, 10.0])
    Tensor([0.    , 2.3026], float32[2], numpy)
    >>> with flnb.record() as run, flnb.step():
    ...     flnb.log(loss=0.5)
    >>> list(run.metrics)
    ['loss']
    """
    if not metrics:
        return ops.log(x, out=out)
    if x is not None or out is not None:
        raise TypeError("log: give a tensor for its logarithm, or only keywords to record: log(loss=loss)")
    return _log_metrics(**metrics)


def _namespace(tensor: Tensor, /, *, api_version: str | None = None) -> Any:
    """The namespace of the array API's functions on Tensors: `flnb` itself."""
    if api_version not in (None, *_VERSIONS):
        raise ValueError(f"api_version {api_version!r} is unknown; known: {', '.join(_VERSIONS)}")
    return _sys.modules["flnb"]


Tensor.__array_namespace__ = _namespace


def __array_namespace_info__() -> _Info:
    """The array API's inspection functions: capabilities, devices, dtypes and defaults."""
    return _Info()


_state.start("numpy", "caching")


def _register_tools() -> None:
    """Tell core where the tools are that it asks something of: each is imported when it is first called."""
    from flnb_backends.memory.planned import Planned

    from flnb.dispatch import recording

    recording.tools["inputs"] = _late("flnb.explore.capture", "keep_inputs")
    OutOfMemoryError.reporter = staticmethod(_late("flnb.memory_lab.postmortem", "postmortem"))
    Planned.planner = staticmethod(_late("flnb.memory_lab.planning", "plan"))


_register_tools()
globals().pop("tensor")  # the module: who looks for torch's function is told by `__getattr__`


_describers.append(_active_facts)


def _show_in_notebook() -> None:
    """Register the notebook displays of tensors, modules and managers (`flnb.show`) if IPython runs this."""
    ipython = _sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None and _find_spec("flnb.show") is not None:
        _tool("flnb.show").register(shell)


_show_in_notebook()

__all__ = [
    "OutOfMemoryError", "Tensor", "Variable", "autocast", "autograd", "backends", "bisect", "bool", "bool_",
    "breakpoint_if", "category", "checkpoint", "compare_backends", "complex128", "complex64", "creation_stack",
    "creation_stacks", "custom_op", "dashboard", "data", "default_dtype", "detect_anomaly", "dispatch", "e",
    "enable_grad", "explore", "float16", "float32", "float64", "grad", "hessian", "hvp", "inf", "int16", "int32",
    "int64", "int8", "interface", "is_grad_enabled", "jacobian", "jvp", "load_run", "log", "magics", "manual_seed",
    "memory", "meters", "nan", "newaxis", "nn", "no_grad", "ops", "optim", "phase", "pi", "plot", "random", "record",
    "saved_tensors_hooks", "scope", "set_backend", "set_default_dtype", "set_memory_device",
    "set_memory_manager", "set_tape", "step",
    "stop_gradient", "sync", "telemetry", "testing", "tune_gc", "uint16", "uint32", "uint64", "uint8", "use_backend",
    "use_memory_device", "use_memory_manager", "use_tape", "value_and_grad", "view", "vjp", "vmap", "why", "widgets",
]  # fmt: skip
__all__ += ["fft", "linalg", "models", "rand", "randn", "sparse", "speech", "vision"]
__all__ += [name for name in ops.__all__ if name != "log"]
__all__ = [name for name in __all__ if not hasattr(_builtins, name)]  # a star import leaves Python's sum, bool, ... be
for _name in __all__:
    _readable(globals().get(_name))
