"""Sharded data parallel training (Rajbhandari et al., 2020, "ZeRO", stages 1 to 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb_telemetry.withblock import with_block

from flnb.autograd.arrivals import unlisten
from flnb.dispatch import crossing, state
from flnb.dispatch.communication import run
from flnb.dispatch.groups import current
from flnb.dispatch.plan import spec_of
from flnb.distributed.buckets import read_rows
from flnb.distributed.data_parallel import Exchanging
from flnb.distributed.divided import Divided, Division, PartsTape, Unit
from flnb.distributed.sharded_optimizer import ShardedOptimizer
from flnb.distributed.staging import reads_host
from flnb.nn.module import Parameter
from flnb.ops.creation import empty

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from flnb_telemetry.withblock import WithBlock

    from flnb.distributed.buckets import Bucket
    from flnb.interface.tape import Node
    from flnb.nn.module import Module
    from flnb.optim.optimizer import Optimizer
    from flnb.optim.together import Together
    from flnb.tensor import Tensor


class Sharded(Exchanging):
    """Data parallel training where each rank stores only a part of the optimizer state, gradients or parameters.

    Each parameter is divided into as many parts as there are ranks, and each rank updates its own part. Stage 1 divides
    the optimizer's state; stage 2 also the gradients (``.grad`` of the module's parameters stays None); stage 3 also
    the parameters, which are gathered while a module that has them is called, forward and backward. All stages give
    bit-identical results to ``DataParallel(deterministic=True)`` with the same ``bucket``.

    Train with the attribute ``optimizer``, which updates the parts. To clip gradients, pass the
    ``parameters()`` of this object to `flnb.optim.clip_grad_norm`. In stage 3 all ranks must call the same modules in
    the same order; `state_dict` gathers whole parameters by itself, other code must read them inside `gathered`.

    Args:
        module: the module to train.
        optimizer: an optimizer of the module's parameters, or a function (or class) that makes one from a list of
            parameters. It must treat all elements alike, as SGD and Adam do.
        stage: 1, 2 or 3.
        bucket: the number of bytes of gradients that are exchanged in one call; None exchanges each gradient alone.

    Attributes:
        optimizer: a wrapper of the optimizer, with the same methods, that updates this rank's parts.
        reading: whether whole parameters may be gathered now: during a pass, or inside `gathered`.
        staying: whether gathered parameters stay in memory until the end of `gathered`.

    Raises:
        ValueError: ``stage`` is not 1, 2 or 3, or the optimizer has other parameters than the module.
        TypeError: the optimizer does not treat all elements alike, or tensors are not in this machine's memory.
        CollectiveError: for the reasons of `flnb.distributed.all_reduce`.

    >>> import flnb, flnb.nn as nn
    >>> def train():
    ...     layer = nn.Linear(2, 1, bias=False)
    ...     layer.load_state_dict({"weight": flnb.zeros((1, 2))})
    ...     net = flnb.distributed.Sharded(layer, flnb.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9), stage=3)
    ...     net(flnb.ones((1, 2)) * (flnb.distributed.rank() + 1.0)).sum().backward()
    ...     net.optimizer.step()
    ...     return net.state_dict()["weight"].tolist(), net.optimizer.parts()[0].parameters[0].shape
    >>> [[round(x, 4) for x in weight[0]] + [part] for weight, part in flnb.distributed.run_threads(2, train)]
    [[-0.15, -0.15, (1,)], [-0.15, -0.15, (1,)]]
    """

    def __init__(
        self,
        module: Module,
        optimizer: Optimizer | Together | Callable[[list[Parameter]], Optimizer | Together],
        stage: int = 1,
        bucket: int | str | None = "25MiB",
    ) -> None:
        if stage not in (1, 2, 3):
            raise ValueError(f"Sharded: got stage={stage!r}, expected 1, 2 or 3")
        if not reads_host():
            raise TypeError(
                "Sharded: got a backend whose buffers are on a device, expected one whose buffers are in host memory; "
                "on a device, use DataParallel"
            )
        trained = [p for p in module.parameters() if p.requires_grad]
        whole = hasattr(optimizer, "parts") and not isinstance(optimizer, type)
        made: Any = optimizer if whole else optimizer(trained)  # type: ignore[operator]
        communicator = current()
        size = communicator.size
        self.stage = stage
        self._divided = 1 if size == 1 else stage
        self.takes = self._divided > 1
        super().__init__(module, bucket, size)
        own = self._divided == 3
        self._divisions = [Division(p, communicator.rank, size, own) for p in trained]
        self._by_number = {d.number: d for d in self._divisions}
        self.optimizer = ShardedOptimizer(made, self._divisions, self)
        self._units: list[Unit] = []
        self.reading = self.staying = False
        if own:
            self._make_units()
        elif self.takes:
            for division in self._divisions:
                division.parameter.__class__ = Divided

    def extra_repr(self) -> str:
        """Return the ZeRO stage, for the module's repr."""
        return f"stage={self.stage}"

    def uneven(self, update: Callable[[], object]) -> WithBlock[None]:
        """Allow ranks to have different numbers of batches, as `DataParallel.uneven`; not available in stage 3."""
        if self._units:
            raise NotImplementedError(
                "stage 3 collects parameters in each call of a module, which a rank without batches cannot join; "
                "use stage 2, or give all ranks equally many batches: flnb.distributed.shard(dataset, last='drop')"
            )
        return super().uneven(update)

    # Parameters that are away

    def _make_units(self) -> None:
        """Make a `Unit` for each submodule with parameters; it gathers the parameters for each call (stage 3)."""
        known = {id(division.parameter): division for division in self._divisions}
        for _, part in self.module.named_modules():
            mine = [known.pop(id(p), None) for _, p in part._own() if isinstance(p, Parameter)]
            found = [division for division in mine if division is not None]
            if found:
                self._units.append(Unit(found, part, self))

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Call the wrapped module."""
        if not self._units or self.staying:
            return super().forward(*inputs, **options)
        self.reading = True
        try:
            with state.use(tape=PartsTape()):
                return super().forward(*inputs, **options)
        finally:
            self._rest()

    def _adapt(self, changed: Parameter) -> None:
        name = next(name for name, parameter in self.module.named_parameters() if parameter is changed)
        raise RuntimeError(
            f"the parameter {name!r} {changed.shape} was converted, or set to require a gradient, after Sharded had "
            f"divided the module; do this before wrapping the module in Sharded"
        )

    def _rest(self) -> None:
        """Free all whole parameters until the next pass, unless inside of `gathered`."""
        self.reading = self.staying
        for unit in () if self.staying else self._units:
            unit.release()

    @with_block
    def gathered(self) -> Iterator[None]:
        """Gather the whole parameters on all ranks for a ``with`` block, to read them or write equal values everywhere.

        >>> import flnb, flnb.nn as nn
        >>> layer = nn.Linear(2, 1)
        >>> net = flnb.distributed.Sharded(layer, flnb.optim.Adam(layer.parameters()), stage=3)
        >>> with net.gathered():
        ...     layer.weight.shape, layer.weight.detach().numpy().shape
        ((1, 2), (1, 2))
        """
        before, self.reading, self.staying = self.staying, True, True
        try:
            for unit in self._units:
                unit.gather()
            yield
        finally:
            self.staying = before
            if not before:
                for unit in self._units:
                    unit.release(store=True)
                self.reading = False

    def state_dict(self) -> dict[str, Tensor]:
        """Return the module's full state on every rank; all ranks must call this."""
        with self.gathered():
            return self.module.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state into the module; all ranks must load the same state."""
        with self.gathered():
            self.module.load_state_dict(state)

    def zero_grad(self) -> None:
        """Set the gradients of all parameters and shards to None."""
        self.module.zero_grad()
        for division in self._divisions:
            division.shard.grad = None

    def close(self) -> None:
        """Stop exchanging gradients; in stage 3, first make the module's parameters whole again on every rank."""
        unlisten(self)
        if not self.takes:
            return
        with self.gathered():
            whole = [(d.parameter, crossing.detached(d.parameter._data, d.parameter._spec)) for d in self._divisions]
        for parameter, values in whole:
            parameter.__class__ = Parameter
            parameter._adopt(values)
        for unit in self._units:
            unit.close()
        self._units = []

    # What a backward pass tells

    def began(self, first: bool) -> None:
        """Prepare for a backward pass: reset the buckets, and allow parameters to be gathered."""
        self.reading = True
        for unit in self._units:
            unit.left = {d.number for d in unit.divisions}
        super().began(first)

    def arrived(self, leaf: Node, gradient: Any) -> bool:
        """Copy the gradient of a leaf to its bucket; once a module has all gradients, free its whole parameters.

        Returns the same as `DataParallel.arrived`.
        """
        taken = super().arrived(leaf, gradient)
        if self._units:
            unit = self._by_number[leaf[2]].unit
            assert unit is not None
            unit.left.discard(leaf[2])
            if not unit.left and not self.staying:
                unit.release()
        return taken

    def ended(self) -> None:
        """Exchange the remaining buckets, and set the averaged gradients of parameters or shards used on any rank."""
        super().ended()
        self._rest()

    def _deliver(self, bucket: Bucket, known: set[int]) -> None:
        """Set the gradients of the shards (stages 2 and 3) or of the whole parameters (stage 1) of a bucket.

        ``known`` has the numbers of the parameters that some rank has used in this pass.
        """
        if not self.takes:
            super()._deliver(bucket, known)
            return
        for number, (begin, _), parameter in zip(bucket.numbers, bucket.places, bucket.parameters, strict=True):
            division = self._by_number[number]
            shard = division.shard
            if parameter.requires_grad:
                parameter.grad = None
            if number in known:
                part = bucket.mine._data[begin : begin + shard.size]
                gradient = crossing.detached(part, spec_of(shard.shape, shard.dtype))
                gradient._root = bucket.mine
                if shard.grad is not None:  # of a pass before, which was exchanged, too
                    gradient = shard.grad + gradient
                shard.grad = gradient

    # What the optimizer asks for

    def before_update(self) -> None:
        """In stage 1, set each shard's gradient to its part of the parameter's gradient before the optimizer step."""
        if self.staying:
            raise RuntimeError("step: cannot run inside `with model.gathered()`; leave that block before the step")
        for division in () if self.takes else self._divisions:
            grad = division.parameter.grad
            division.shard.grad = None if grad is None else division.slice(grad)
        for division in () if self._units else self._divisions:
            division.follow()

    def after_update(self) -> None:
        """In stages 1 and 2, gather the updated parameters from all ranks after the optimizer step."""
        for unit in self._units:
            unit.release()  # a pass that failed may have left old values here
            for division in unit.divisions:
                crossing.mark_written(division.parameter)  # nodes that saved it would see new values
        if self._units or current().size == 1:
            return
        for bucket in self._buckets:
            mine, rows = bucket.part(), empty((bucket.parts, bucket.places[-1][1]), bucket.dtype)
            for number, (begin, _) in zip(bucket.numbers, bucket.places, strict=True):
                shard = self._by_number[number].shard
                mine._data[begin : begin + shard.size] = shard._data
            run("all_gather", mine._data, rows._data, bucket=bucket.index, holds=bucket.holds)
            for place, parameter in zip(bucket.places, bucket.parameters, strict=True):
                read_rows(rows._data[:, slice(*place)], parameter._data)
                crossing.mark_written(parameter)
