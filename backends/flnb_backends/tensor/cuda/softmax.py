"""Softmax and cross entropy on a CUDA device by kernels; `flnb_backends.tensor.whole` describes the methods."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from flnb_backends.tensor.cuda.reductions import Reductions
from flnb_backends.tensor.cuda.rows import Rows, accumulator, kernel_types

if TYPE_CHECKING:
    from flnb_backends.tensor.cuda.base import Buffer, Out


class Softmax(Reductions):
    """Softmax, log_softmax, cross entropy and their gradients: methods of the cuda backend."""

    def softmax(self, x: Buffer, axis: int, out: Out = None) -> tuple[Buffer, ...]:
        return self._along("softmax", (x,), axis, out)

    def softmax_pull(self, g: Buffer, x: None, y: Buffer, axis: int, out: Out = None) -> tuple[Buffer, ...]:
        return self._along("softmax_pull", (g, y), axis, out)

    def log_softmax(self, x: Buffer, axis: int, out: Out = None) -> tuple[Buffer, ...]:
        return self._along("log_softmax", (x,), axis, out)

    def log_softmax_pull(self, g: Buffer, x: None, y: Buffer, axis: int, out: Out = None) -> tuple[Buffer, ...]:
        return self._along("log_softmax_pull", (g, y), axis, out)

    def _along(self, name: str, given: tuple[Buffer, ...], axis: int, out: Out) -> tuple[Buffer, ...]:
        x = given[-1]
        y, rows = self.target(out, 0, x.shape, x.dtype), Rows.along(x.shape, axis)
        self._launch_softmax(name, x, rows, *map(self.contiguous, given), y)
        return (y,)

    def _launch_softmax(self, name: str, x: Buffer, rows: Rows, *arguments: Any, **types: Any) -> None:
        types = {"I": x.dtype, "R": x.dtype, **types}
        self.launch_rows("softmax", name, kernel_types(x.dtype, **types), rows, *arguments)

    def cross_entropy(self, x: Buffer, targets: Buffer, reduction: str, out: Out = None) -> tuple[Buffer, ...]:
        n, classes = x.shape
        (log_p,) = self._along("log_softmax", (x,), 1, out[1:] if out else None)
        axes, shape = ((), (n,)) if reduction == "none" else ((0,), ())
        y = self.target(out, 0, shape, x.dtype)
        number = accumulator(x.dtype).type
        factor = number(-1 / n if reduction == "mean" and n else -1)
        none = number(0 if n or reduction != "mean" else math.nan)
        targets = self.contiguous(targets)

        def launch(rows: Rows, to: Buffer) -> None:
            arguments = log_p, targets, to, factor, none, classes
            self._launch_softmax("cross_entropy", x, rows, *arguments, I=targets.dtype, R=to.dtype)

        self.sum_of((n,), axes, y, launch)
        return y, log_p

    def cross_entropy_pull(
        self, g: Buffer, x: None, targets: Buffer, log_p: Buffer, y: None, reduction: str, out: Out = None
    ) -> tuple[Buffer | None, ...]:
        n = log_p.shape[0]
        of_x = self.target(out, 0, log_p.shape, log_p.dtype)
        factor = accumulator(g.dtype).type(1 / max(n, 1) if reduction == "mean" else 1)
        given = *map(self.contiguous, (g, targets, log_p)), of_x, factor, int(reduction == "none")
        self._launch_softmax("cross_entropy_pull", log_p, Rows.along(log_p.shape, 1), *given, I=targets.dtype)
        return of_x, None
