"""flnb: a machine-learning framework whose every op and allocation can be watched, live, from a notebook.

Tensor backends compute and memory managers allocate, each behind a small interface. Every call of either emits one
event, and everything that is displayed is computed from those events. Replace a backend or a manager in a cell
(`use_backend`, `use_memory_manager`) and watch what changes (`record`, `dashboard`).
"""

# ruff: noqa: F403, F405 (`__all__` says what is public)

from __future__ import annotations

import builtins as _builtins
import math as _math
import sys as _sys
from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING, Any

from flnb_backends.memory.planned import Planned as _Planned
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
from flnb.dispatch.parts import active_facts as _active_facts

# isort: split
from flnb.dispatch.parts import set_backend, set_memory_device, set_memory_manager, set_tape

# isort: split
from flnb.dispatch.parts import use_backend, use_memory_device, use_memory_manager, use_tape

# isort: split
from flnb.dispatch.recording import record
from flnb.dispatch.recording import tools as _recording_tools
from flnb.dispatch.source_lines import creation_stacks
from flnb.dispatch.spelling import unknown as _unknown
from flnb.dispatch.state import category
from flnb.interface import OutOfMemoryError
from flnb.ops import *
from flnb.ops.documentation import readable as _readable
from flnb.ops.dtypes import VERSIONS as _VERSIONS
from flnb.ops.dtypes import Info as _Info
from flnb.random import manual_seed, rand, randn
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from flnb_telemetry import load_run, runs

    from flnb import backends, data, distributed, explore, graph, magics, memory, meters, models, nn

    # isort: split
    from flnb import optim, plot, sparse, speech, telemetry, testing, vision, widgets

    # isort: split
    from flnb.autograd.anomaly import breakpoint_if, detect_anomaly
    from flnb.explore import bisect, compare_backends, compare_runs
    from flnb.jitted import jit
    from flnb.magics import load_ipython_extension as load_ipython_extension
    from flnb.tensor import ArrayLike
    from flnb.widgets.dashboard import dashboard
    from flnb.widgets.finished import view
    from flnb.widgets.program import program

__version__ = "0.1.0"

bool = bool_ = _DTYPES["bool"]
int8, int16, int32, int64 = (_DTYPES[f"int{bits}"] for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (_DTYPES[f"uint{bits}"] for bits in (8, 16, 32, 64))
float16, float32, float64 = (_DTYPES[f"float{bits}"] for bits in (16, 32, 64))
complex64, complex128 = _DTYPES["complex64"], _DTYPES["complex128"]
e, pi, inf, nan, newaxis = _math.e, _math.pi, _math.inf, _math.nan, None
__array_api_version__ = _VERSIONS[-1]

_LAZY = {
    "bisect": "flnb.explore", "compare_backends": "flnb.explore", "compare_runs": "flnb.explore",
    "load_run": "flnb_telemetry", "runs": "flnb_telemetry",
    "jit": "flnb.jitted",
    "breakpoint_if": "flnb.autograd.anomaly", "detect_anomaly": "flnb.autograd.anomaly",
    "dashboard": "flnb.widgets.dashboard", "view": "flnb.widgets.finished", "program": "flnb.widgets.program",
    "load_ipython_extension": "flnb.magics",
}  # fmt: skip
"""Names that are imported when they are first used, and their modules."""
__all__ = [
    "OutOfMemoryError", "Tensor", "Variable", "autocast", "autograd", "backends", "bisect", "bool", "bool_",
    "breakpoint_if", "category", "checkpoint", "compare_backends", "compare_runs", "complex128", "complex64",
    "creation_stack", "creation_stacks", "custom_op", "dashboard", "data", "default_dtype", "detect_anomaly",
    "dispatch", "distributed", "e", "graph",
    "enable_grad", "explore", "float16", "float32", "float64", "grad", "hessian", "hvp", "inf", "int16", "int32",
    "int64", "int8", "interface", "is_grad_enabled", "jacobian", "jit", "jvp", "load_run", "log", "magics",
    "manual_seed", "memory", "meters", "nan", "newaxis", "nn", "no_grad", "ops", "optim", "phase", "pi", "plot",
    "program", "random", "record", "runs",
    "saved_tensors_hooks", "scope", "set_backend", "set_default_dtype", "set_memory_device", "set_memory_manager",
    "set_tape", "step", "stop_gradient", "sync", "telemetry", "testing", "tune_gc", "uint16", "uint32", "uint64",
    "uint8", "use_backend", "use_memory_device", "use_memory_manager", "use_tape", "value_and_grad", "view", "vjp",
    "vmap", "why", "widgets", "fft", "linalg", "models", "rand", "randn", "sparse", "speech", "vision",
]  # fmt: skip
__all__ += [name for name in ops.__all__ if name != "log"]
# A star import must not replace Python's sum, bool, ...
__all__ = [name for name in __all__ if not hasattr(_builtins, name)]


def __getattr__(name: str) -> Any:
    """Import public names at their first use, so that `import flnb` stays fast."""
    if name in _LAZY:
        value = _tool(_LAZY[name], name)
    elif name in __all__:
        value = _tool(f"flnb.{name}")
    else:
        raise _unknown("module 'flnb'", name, __dir__())
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *__all__})


def log(x: ArrayLike | None = None, /, out: Tensor | None = None, **metrics: float) -> Any:  # type: ignore[no-redef]
    """Return the natural logarithm of a tensor, ``log(x)``; or record metrics of a step, ``log(loss=loss)``.

    Each keyword in ``metrics`` names a metric; its value is a number or a tensor of one element. ``out`` is a tensor to
    which the logarithm is written.

    Returns:
        The logarithm, in floating point; None if metrics are recorded.

    Raises:
        TypeError: both a tensor and metrics are given.

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
        raise TypeError(
            "log: expected either a tensor, for its logarithm, or keywords alone, as in log(loss=loss), got both"
        )
    return _log_metrics(**metrics)


def _namespace(tensor: Tensor, /, *, api_version: str | None = None) -> Any:
    """Return the module with the array API's functions on Tensors, which is `flnb` itself."""
    if api_version not in (None, *_VERSIONS):
        raise ValueError(f"expected api_version None or one of {', '.join(_VERSIONS)}, got {api_version!r}")
    return _sys.modules["flnb"]


Tensor.__array_namespace__ = _namespace


def __array_namespace_info__() -> _Info:
    """Return an object with the array API's inspection functions: capabilities, devices, dtypes and defaults."""
    return _Info()


_state.start(("cpu", "numpy"), "caching")


# Functions of tools that the core calls; each tool is imported when its function is first called.
_recording_tools["inputs"] = _late("flnb.explore.capture", "keep_inputs")
OutOfMemoryError.reporter = staticmethod(_late("flnb.memory_lab.postmortem", "Postmortem"))
_Planned.planner = staticmethod(_late("flnb.memory_lab.planning", "plan"))

globals().pop("tensor")  # the module: `flnb.tensor`, torch's name, is answered by `__getattr__` with flnb's name


_describers.append(_active_facts)


def _show_in_notebook() -> None:
    """Register flnb's displays of tensors, modules and memory managers with IPython, if it is running."""
    ipython = _sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None and _find_spec("flnb.show") is not None:
        _tool("flnb.show").register(shell)


_show_in_notebook()

for _name in __all__:
    _readable(globals().get(_name))
