"""Loss scaling for gradients in float16, in which small gradients would become 0 and large ones infinite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb_telemetry import bus

from flnb import ops
from flnb.autograd import Variable
from flnb.dispatch.autocast import without_casts
from flnb.dispatch.brief import brief
from flnb.dispatch.effects import effects
from flnb.dispatch.state import use
from flnb.nn.mismatches import mismatches, refuse
from flnb.optim.clipping import everywhere, gradients_of, with_gradient
from flnb.optim.optimizer import SINGLE, updating

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flnb.optim.optimizer import Optimizer
    from flnb.optim.together import Together
    from flnb.tensor import Tensor


class LossScaler:
    """Multiply the loss and divide the gradients by ``scale``, and skip steps whose gradients are not finite.

    After a skipped step the scale is multiplied by ``backoff``; after ``every`` steps of which none was skipped it is
    multiplied by ``growth``, as in torch's GradScaler. Micikevicius et al., 2018, "Mixed precision training", section
    3.2.

    >>> import flnb, flnb.nn as nn, flnb.optim as optim
    >>> weight = nn.Parameter(flnb.asarray([3.0]))
    >>> scaler = optim.LossScaler(optim.SGD([weight], lr=0.1), scale=8.0)
    >>> scaler.scaled(flnb.sum(weight * weight)).backward()
    >>> weight.grad.tolist()  # 8 * 2 * 3
    [48.0]
    >>> scaler.step(), weight.grad.tolist()
    (True, [6.0])

    A whole loop with `flnb.autocast`, in which gradients are clipped after they are unscaled:

    >>> generator = flnb.manual_seed(0)
    >>> net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
    >>> scaler = optim.LossScaler(optim.Adam(net.parameters(), lr=0.02))
    >>> x = flnb.asarray([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    >>> y = flnb.asarray([[0.0], [1.0], [1.0], [0.0]])
    >>> for step in range(150):
    ...     scaler.optimizer.zero_grad()
    ...     with flnb.autocast("O1"):
    ...         loss = flnb.mse_loss(net(x), y)
    ...     scaler.scaled(loss).backward()
    ...     if scaler.unscale():
    ...         norm = optim.clip_grad_norm(net.parameters(), 1.0)
    ...     taken = scaler.step()
    >>> loss.item() < 0.01, scaler.state_dict()
    (True, {'scale': 65536.0, 'good': 150})

    The first steps are usually skipped, until the scale is small enough; NumPy warns of the overflow in their backward
    pass. Gradients in half precision become float32 when they are unscaled, because the optimizer updates float32
    copies of parameters in half precision.

    Raises:
        FloatingPointError: in `step`, if the scale would fall below ``minimum``, because then the loss itself is not
            finite.
    """

    def __init__(
        self, optimizer: Optimizer | Together, scale: float = 2.0**16, growth: float = 2.0, backoff: float = 0.5,
        every: int = 2000, minimum: float = 2.0**-14,
    ) -> None:  # fmt: skip
        if not (scale > 0.0 and growth >= 1.0 and 0.0 < backoff < 1.0 and every >= 1):
            raise ValueError(
                "flnb: LossScaler: expected scale > 0, growth >= 1, 0 < backoff < 1 and every >= 1, got "
                f"scale={brief(scale)}, growth={brief(growth)}, backoff={brief(backoff)}, every={brief(every)}"
            )
        self.optimizer, self.scale, self.good = optimizer, scale, 0
        self.growth, self.backoff, self.every, self.minimum = growth, backoff, every, minimum
        self._finite: bool | None = None  # whether the gradients are finite; None before they are unscaled

    def scaled(self, loss: Variable) -> Variable:
        """Return the loss times the scale, for ``backward()``; if the result is NaN, `step` will update nothing."""
        if (captured := effects.get()) is not None:
            captured.watch(vars(self), ["scale"])
        with use(interpreters=without_casts()):
            return _Scaled((ops.astype(loss, SINGLE) if loss.dtype.itemsize == 2 else loss) * self.scale)

    def unscale(self) -> bool:
        """Divide the gradients by the scale, in place, and return whether all of them are finite.

        Call this before gradients are inspected or clipped; otherwise `step` does it. A second call before `step` only
        returns the result of the first. If a gradient is not finite, all gradients are left as they are.
        """
        if self._finite is None:
            with bus.phase("optimizer"), updating():
                items = with_gradient(self.optimizer.parameters)
                gradients = gradients_of(items)
                wrong = [float(not bool(ops.all(ops.isfinite(gradient)))) for gradient in gradients]
                self._finite = not any(everywhere(items, wrong, 1.0))
                if self._finite and any(gradient.dtype.itemsize == 2 for gradient in gradients):
                    gradients = self._widened()
                for gradient in gradients if self._finite else ():
                    ops.multiply(gradient, 1.0 / self.scale, out=gradient)
        return self._finite

    def _widened(self) -> list[Tensor]:
        """Cast gradients in half precision to float32, in which small numbers do not become 0; return all gradients."""
        for item in with_gradient(self.optimizer.parameters):
            if item.grad is not None and item.grad.dtype.itemsize == 2:
                item.grad = ops.astype(item.grad, SINGLE)
        return gradients_of(self.optimizer.parameters)

    def step(self) -> bool:
        """Run ``optimizer.step()`` if all gradients are finite, then adapt the scale; return whether the step was run.

        Raises:
            FloatingPointError: the gradients are not finite, and the scale cannot be lowered any more.
        """
        finite = self.unscale()
        self._finite = None
        if finite:
            self.optimizer.step()
            self.good += 1
            if self.good == self.every:
                self.scale, self.good = self.scale * self.growth, 0
            return True
        self.good = 0
        if self.scale * self.backoff < self.minimum:
            raise FloatingPointError(
                f"flnb: LossScaler: the gradients are not finite even at a scale of {self.scale:g}; the loss itself is "
                "NaN or infinite: look for its origin with flnb.detect_anomaly(), or lower the learning rate"
            )
        self.scale *= self.backoff
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return a dict for a checkpoint: the scale, and as "good" the number of steps since the scale last changed."""
        return {"scale": self.scale, "good": self.good}

    def mismatches(self, state: Mapping[str, Any]) -> list[str]:
        """Return the reasons why `load_state_dict(state)` would fail, one line each; none if it would succeed."""
        return mismatches(self.state_dict(), state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved `state_dict`: the scale, and the number of steps since it last changed.

        Raises:
            ValueError: a name is missing or unexpected; nothing is changed.
        """
        refuse(self.mismatches(state), "LossScaler")
        self.scale, self.good = state["scale"], state["good"]


class _Scaled(Variable):
    """A loss whose ``backward`` runs even if the loss is NaN; other Variables raise an error for a loss of NaN."""

    __slots__ = ()

    def __init__(self, loss: Tensor) -> None:
        super().__init__(loss, requires_grad=False)
        self._node = loss._node

    def backward(self, grad: Any = None, retain_graph: bool = False, create_graph: bool = False) -> None:
        super().backward(ops.ones_like(self.data) if grad is None else grad, retain_graph, create_graph)
