"""Capabilities of the namespace, by the names of the array API standard 2024.12 ("Inspection")."""

from __future__ import annotations

from typing import Any

import numpy as np

from flnb.dispatch.dtypes import DTYPES, complex_dtype, default_dtype
from flnb.dispatch.state import current
from flnb.ops.dtypes import dtypes_of_kind
from flnb.tensor import check_device

__all__ = ["VERSIONS", "Info"]

VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")
"""The versions of the standard whose names and rules hold here; the last is `flnb.__array_api_version__`."""


class Info:
    """Capabilities, devices and dtypes of the active backend. Get one from ``flnb.__array_namespace_info__()``."""

    def capabilities(self) -> dict[str, Any]:
        """Whether masks index, whether shapes may depend on values, and how many dimensions there may be."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """The device of tensors made without one."""
        return "cpu"

    def devices(self) -> list[str]:
        """The devices that creation functions take."""
        return ["cpu"]

    def default_dtypes(self, *, device: str | None = None) -> dict[str, np.dtype[Any]]:
        """The dtypes of tensors made from Python numbers, and of indices."""
        check_device(device)
        integer = np.dtype(np.int64)
        return {
            "real floating": default_dtype(),
            "complex floating": complex_dtype(),
            "integral": integer,
            "indexing": integer,
        }

    def dtypes(self, *, device: str | None = None, kind: Any = None) -> dict[str, np.dtype[Any]]:
        """The standard's dtypes by name: all, or those of a kind or of several (`flnb.isdtype`).

        >>> import flnb
        >>> list(flnb.__array_namespace_info__().dtypes(kind="real floating"))
        ['float32', 'float64']
        """
        check_device(device)
        kinds = ("bool", "numeric") if kind is None else kind if isinstance(kind, tuple) else (kind,)
        wanted = {name for k in kinds for name in dtypes_of_kind(k)} - {"float16"}  # which the standard does not know
        return {name: dtype for name, dtype in DTYPES.items() if name in wanted and current().backend.supports(dtype)}
