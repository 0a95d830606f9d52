"""The operators of each framework, from the framework's registry, and how many of them add, convolve or sum.

The paper (appendix A.2.1) counts the entries of PyTorch's and TensorFlow's operator schemas. It then counts the
operators that add, convolve or sum, "even if those operators perform other functions". Here the registries are read in
the running process, and operators are recognized by their names. The JSON file has every name that was counted.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["MATCH", "REGISTRIES", "matching", "operators"]

MATCH = {
    "add": r"(?<!p)add(?!_batch_dim)",  # not in pad; not an axis that is added
    "conv": r"conv(?!ert)",
    "sum": r"sum",
}
"""For each kind of operator, a regular expression for the names of such operators."""


def flnb() -> dict[str, list[str]]:
    """Return the names of flnb's ops; "primitives" are the ops that a backend must implement, others are composites."""
    import flnb
    from flnb.dispatch.table import OPS
    from flnb.ops.composite import Composite

    assert flnb.add  # the package fills the table
    required = sorted(name for name, op in OPS.items() if not isinstance(op, Composite))
    return {"operators": sorted(OPS), "primitives": required}


def torch() -> dict[str, list[str]]:
    """Return the names of torch's operators in the namespace ``aten``, and their schemas, one for each overload."""
    import torch

    schemas = [name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names() if name[:4] == "aten"]
    return {"operators": sorted({name.partition(".")[0] for name in schemas}), "schemas": sorted(schemas)}


def jax() -> dict[str, list[str]]:
    """Return the names of JAX's public primitives, those in ``jax.extend.core.primitives``."""
    from jax.extend.core import primitives

    return {"operators": sorted({value.name for name, value in vars(primitives).items() if name.endswith("_p")})}


def numpy() -> dict[str, list[str]]:
    """Return the names of NumPy's public functions, because NumPy has no registry of operators."""
    import numpy

    found: set[str] = set()
    for space in (numpy, numpy.linalg, numpy.fft):
        values = {name: getattr(space, name) for name in space.__all__}
        found |= {name for name, value in values.items() if callable(value) and not isinstance(value, type)}
    return {"operators": sorted(found)}


REGISTRIES: dict[str, Callable[[], dict[str, list[str]]]] = {"flnb": flnb, "torch": torch, "jax": jax, "numpy": numpy}


def matching(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the names that contain "add", "conv" or "sum" as a word or abbreviation.

    >>> matching(["addmm", "pad", "conv2d", "convert", "cumsum"])
    {'add': ['addmm'], 'conv': ['conv2d'], 'sum': ['cumsum']}
    """
    names = list(names)
    return {kind: [name for name in names if re.search(pattern, name)] for kind, pattern in MATCH.items()}


def operators(framework: str) -> dict[str, Any] | None:
    """Return the numbers and the names of a framework's operators; None if the framework is not installed."""
    if not find_spec(framework):
        return None
    found = REGISTRIES[framework]()
    matched = matching(found["operators"])
    counts = {kind: len(names) for kind, names in (found | matched).items()}
    return {"how": (REGISTRIES[framework].__doc__ or "").strip(), "counts": counts, "names": matched}
