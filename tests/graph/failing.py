"""A backend with an op that fails when a test says so."""

from __future__ import annotations

from typing import Any

from flnb.backends import NumpyBackend


class Failing(NumpyBackend):
    """NumPy; `tanh` raises `error` while there is one."""

    error: BaseException | None = None

    def tanh(self, x: Any, out: Any = None) -> Any:
        if self.error is not None:
            raise self.error
        return super().tanh(x, out)
