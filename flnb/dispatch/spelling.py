"""Suggestions for unknown names: flnb's names for functions of torch and NumPy, and corrections of misspellings."""

from __future__ import annotations

import warnings
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

from flnb.dispatch.brief import brief

if TYPE_CHECKING:
    from collections.abc import Sequence

KEYWORDS = {"dim": ("axis", "axes"), "dims": ("axis", "axes"), "keepdim": ("keepdims",), "unbiased": ("correction",)}
"""A dict from keyword arguments of torch to flnb's keywords with the same meaning."""

RENAMED = {
    "absolute": "abs", "invert": "bitwise_invert", "left_shift": "bitwise_left_shift",
    "right_shift": "bitwise_right_shift", "power": "pow", "true_divide": "divide", "rint": "round",
    "conjugate": "conj", "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arcsinh": "asinh", "arccosh": "acosh",
    "arctanh": "atanh", "arctan2": "atan2", "amax": "max", "amin": "min", "concatenate": "concat",
    "cumsum": "cumulative_sum", "cumprod": "cumulative_prod", "ravel": "flatten", "around": "round",
    "unique": "unique_values",
}  # fmt: skip
"""A dict from NumPy's name of a function to the name in flnb (which is that of the array API) if they differ."""

REARRANGED = {
    "transpose": "flnb.permute_dims(x, axes), or x.mT, which swaps the last two",
    "vstack": "flnb.concat(tensors, axis=0), of vectors flnb.stack(tensors)",
    "hstack": "flnb.concat(tensors, axis=1), of vectors flnb.concat(tensors)",
}
"""A dict from a function of NumPy to the text of a call of flnb with the same effect but other arguments."""

RANKS = (1, 2, 3)

SPELT = {
    **{theirs: f"flnb.{ours}" for theirs, ours in RENAMED.items()},
    **REARRANGED,
    "tensor": "flnb.asarray(values), or flnb.Variable(values) to differentiate by it",
    **dict.fromkeys(("array", "as_tensor", "from_numpy"), "flnb.asarray(values)"),
    "cat": "flnb.concat(tensors, axis=0)",
    **dict.fromkeys(("split", "chunk"), "slices, as x[:n] and x[n:], or flnb.unstack(x, axis=0) into single ones"),
    **dict.fromkeys(("view", "view_as"), "x.reshape(shape)"),
    "permute": "flnb.permute_dims(x, axes)",
    "swapaxes": "flnb.permute_dims(x, axes), or x.mT, which swaps the last two",
    "t": "x.T",
    "unsqueeze": "flnb.expand_dims(x, axis=0)",
    **dict.fromkeys(("expand", "expand_as"), "flnb.broadcast_to(x, shape)"),
    "gather": "flnb.take_along_axis(x, indices, axis=-1)",
    "index_select": "flnb.take(x, indices, axis=0)",
    "masked_fill": "flnb.where(mask, value, x)",
    "masked_select": "x[mask]",
    **dict.fromkeys(("mm", "bmm", "mv", "dot"), "x @ y"),
    "inner": "flnb.tensordot(x, y, axes=((-1,), (-1,)))",
    "einsum": "flnb.tensordot, flnb.vecdot and x @ y",
    "clamp": "flnb.clip(x, min, max)",
    "clamp_min": "flnb.clip(x, min)",
    "clamp_max": "flnb.clip(x, None, max)",
    "silu": "flnb.swish(x)",
    "numel": "x.size",
    "dim": "x.ndim",
    "contiguous": "x itself: ops take strided tensors",
    "clone": "flnb.copy(x)",
    "detach": "x itself: a Tensor is on no tape; a Variable v has v.detach()",
    "data": "x itself: a Tensor is the data; a Variable v has v.data",
    **{
        theirs: f"x.astype(flnb.{ours})"
        for theirs, ours in {
            "float": "float32", "half": "float16", "double": "float64", "long": "int64", "int": "int32",
        }.items()
    },
    **dict.fromkeys(("cuda", "cpu", "device"), "x.to(backend), flnb.use_backend(backend)"),
    "requires_grad_": "flnb.Variable(x)",
    **{
        f"{theirs}_": f"x {symbol}= y, or flnb.{ours}(x, y, out=x)"
        for theirs, symbol, ours in (
            ("add", "+", "add"), ("sub", "-", "subtract"), ("mul", "*", "multiply"), ("div", "/", "divide"),
        )
    },
    **dict.fromkeys(("copy_", "fill_"), "flnb.assign(x, value)"),
    "zero_": "flnb.assign(x, 0)",
    **dict.fromkeys(("backward", "grad", "zero_grad"), "methods of a Variable: start with x = flnb.Variable(values)"),
    "inference_mode": "flnb.no_grad()",
    "set_grad_enabled": "flnb.no_grad() and flnb.enable_grad()",
    **dict.fromkeys(("save", "load"), "flnb.nn.save(module, path), flnb.nn.load(module, path)"),
    "randint": "flnb.floor(flnb.random.uniform(shape, low, high)).astype(flnb.int64)",
    "randperm": "flnb.random.permutation(n)",
    "normal": "flnb.random.normal(shape, mean, std)",
    "compile": "flnb.jit(function)",
    **dict.fromkeys(("profile", "profiler"), "flnb.record(name), a context manager whose run has ops, memory and tape"),
    **dict.fromkeys(("memory_summary", "memory_allocated"), "flnb.memory.stats()"),
    "type": "x.dtype, x.astype(dtype)",
    "bfloat16": 'ml_dtypes.bfloat16 as dtype, with the extra "bfloat16"',
    "Tape": "flnb.interface.Tape",
    "MemoryManager": "flnb.memory.MemoryManager",
    **dict.fromkeys(("TensorBackend", "NumpyBackend"), "flnb.backends.NumpyBackend"),
    **dict.fromkeys(("gradcheck", "verify_grad"), "verify_grad(function, inputs) of flnb's testing"),
    "seed": "flnb.manual_seed(n)",
    "DataLoader": "flnb.data.PrefetchDataset(flnb.data.BatchDataset(dataset, n), workers=2)",
    "DistributedDataParallel": "flnb.distributed.DataParallel(module)",
    "init_process_group": "flnb.distributed.init()",
    "get_rank": "flnb.distributed.rank()",
    "get_world_size": "flnb.distributed.size()",
    "functional": "the functions of flnb itself, as flnb.softmax(x)",
    **{f"BatchNorm{n}d": "flnb.nn.BatchNorm(channels), of any rank" for n in RANKS},
    **{f"InstanceNorm{n}d": "flnb.nn.GroupNorm(channels, channels)" for n in RANKS},
    **{
        f"Dropout{n}d": "nothing that drops whole channels: flnb.nn.Dropout(p) drops single elements; of channels, "
        "multiply x by flnb.dropout(flnb.ones((N, C" + ", 1" * n + ")), p, training)"
        for n in RANKS
    },
    **{
        f"AdaptiveAvgPool{n}d": f"flnb.mean(x, axis={tuple(range(-n, 0))}, keepdims=True) for size 1, or "
        f"flnb.nn.AvgPool{n}d(kernel_size)"
        for n in RANKS
    },
    **dict.fromkeys(("ZeroPad2d", "ConstantPad2d"), "flnb.nn.Padding(((top, bottom), (left, right)), value)"),
    "ReflectionPad2d": 'flnb.nn.Padding(((top, bottom), (left, right)), mode="reflect")',
    **dict.fromkeys(
        ("Upsample", "interpolate"),
        'flnb.vision.resize(x, size, method="nearest"), which is "nearest-exact" of torch; without method it is linear',
    ),
    "grid_sample": "flnb.vision.sample(x, rows, columns), by positions in pixels",
    "SiLU": "flnb.nn.Swish()",
    "Hardtanh": "flnb.nn.HardTanh()",
    "Threshold": "flnb.nn.ThresholdReLU(threshold, value)",
    "NLLLoss": "flnb.nll_loss(log_probabilities, targets)",
    **{f"{name}Cell": f"flnb.nn.{name}, on a sequence of one step" for name in ("RNN", "LSTM", "GRU")},
    "TransformerEncoder": "flnb.nn.Sequential of flnb.nn.TransformerEncoderLayer",
    "Unflatten": "flnb.nn.View(shape), of all axes, the batch included, as (-1, 2, 3)",
    "utils": "flnb.optim.clip_grad_norm(parameters, most)",
    **{f"xavier_{name}_": f"flnb.nn.init.glorot_{name}(shape)" for name in ("uniform", "normal")},
    **{f"kaiming_{name}_": f"flnb.nn.init.kaiming_{name}(shape)" for name in ("uniform", "normal")},
}  # fmt: skip
"""A dict from names of torch and NumPy to the text to write with flnb instead."""

SIMILAR = 0.75
"""The smallest similarity (by `difflib`, 0 to 1) at which a name counts as a misspelling of another name."""


def unknown(where: str, name: str, known: Sequence[str] = ()) -> AttributeError:
    """Return the error for a name that a module or class (``where``) lacks, with a suggestion of flnb's name.

    Without a suggestion, a similar name among those in ``known`` is suggested.

    >>> unknown("module 'flnb'", "cat")
    AttributeError("module 'flnb' has no attribute 'cat'; in flnb: flnb.concat(tensors, axis=0)")
    """
    meant = SPELT.get(name)
    if meant is None and not name.startswith("_"):
        from difflib import get_close_matches  # 5 ms

        near = get_close_matches(name, known, 1, SIMILAR)
        hint = f"; did you mean {near[0]!r}?" if near else ""
    else:
        hint = f"; in flnb: {meant}" if meant else ""
    return AttributeError(f"{where} has no attribute {brief(name)}{hint}")


class Elsewhere:
    """A descriptor for a method name of torch or NumPy: access raises an error with flnb's way to do the same."""

    def __init__(self, name: str, meant: str) -> None:
        self.name, self.meant = name, meant

    def __get__(self, tensor: Any, owner: type) -> NoReturn:
        raise AttributeError(f"{owner.__name__!r} object has no attribute {self.name!r}; in flnb: {self.meant}")


def misspelt(cls: type, operators: Sequence[Any]) -> dict[str, str]:
    """Return methods of a user's backend whose names resemble a primitive's, each with the primitive's name.

    >>> import flnb
    >>> class Mine(flnb.backends.NumpyBackend):
    ...     def _helper(self): ...
    >>> Mine.mutliply = lambda self, a, b, out=None: a
    >>> misspelt(Mine, flnb.dispatch.state.operators)
    {'mutliply': 'multiply'}
    """
    from flnb.interface import TensorBackend

    ours = [c for c in cls.__mro__ if c.__module__.startswith(("flnb_backends.", "flnb.interface."))]
    known = {op.name for op in operators}
    known |= {name for c in ours for name in vars(c)} | set(dir(TensorBackend))
    odd = [
        name
        for c in cls.__mro__
        if c not in ours
        for name, value in vars(c).items()
        if callable(value) and not name.startswith("_") and name not in known
    ]
    if not odd:
        return {}
    from difflib import get_close_matches  # 5 ms

    close = {name: get_close_matches(name, [k for k in known if not k.startswith("_")], 1, SIMILAR) for name in odd}
    return {name: found[0] for name, found in close.items() if found}


_seen: weakref.WeakSet[type] = weakref.WeakSet()


def warn_of_misspelt(cls: type, operators: Sequence[Any]) -> None:
    """Warn once per class of a backend about methods that are probably misspelt names of ops, and so never called."""
    if cls in _seen or cls.__module__.startswith("flnb_backends."):
        return
    _seen.add(cls)
    for name, meant in misspelt(cls, operators).items():
        warnings.warn(
            f"backend {cls.__name__}: the method {name!r} is not a primitive and is never called; did you mean "
            f"{meant!r}? If it is meant to be a helper, begin its name with an underscore",
            UserWarning,
            stacklevel=2,
        )
