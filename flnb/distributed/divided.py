"""Parameters divided among ranks: the whole parameter, this rank's part (shard), and conversion between the two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from flnb.autograd import Variable
from flnb.autograd.packing import PackingTape, unpacked_tape
from flnb.dispatch.communication import run, start
from flnb.dispatch.crossing import detached, mark_written
from flnb.dispatch.groups import current
from flnb.dispatch.plan import spec_of
from flnb.dispatch.state import category
from flnb.nn.module import Parameter
from flnb.ops.creation import empty
from flnb.ops.elementwise import copy
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.dispatch.communication import Pending
    from flnb.distributed.sharded import Sharded
    from flnb.interface.tape import Node
    from flnb.nn.module import Module

SLOT: Any = Tensor.__dict__["_data"]
"""The slot (a descriptor) in which a tensor stores its buffer."""


class Shard(Parameter):
    """This rank's part of a parameter, as a 1-d Variable; empty on the last ranks if the parameter is small."""

    __slots__ = ()

    def __init__(self, data: Any) -> None:
        Variable.__init__(self, data)

    def _everywhere(self, items: Sequence[Any], norms: Sequence[float], p: float) -> list[float]:
        """Return one p-norm for the shards of each rank, then the norms of the gradients that are not divided.

        Called by `flnb.optim.clipping.everywhere`, on every rank.

        Args:
            items: the parameters and shards of this rank.
            norms: the norm of the gradient of each item.
            p: the order of the norm.
        """
        pairs = list(zip(items, norms, strict=True))
        mine = [norm for item, norm in pairs if isinstance(item, Shard)]
        everyone = np.empty(current().size)
        run("all_gather", np.array([np.linalg.norm(mine, ord=p)]), everyone)
        return [*everyone.tolist(), *(norm for item, norm in pairs if not isinstance(item, Shard))]


class Divided(Parameter):
    """A parameter that is whole on every rank, but whose gradient and optimizer state are divided among the ranks."""

    __slots__ = ()

    @property
    def _shard(self) -> Shard:
        """Return this rank's shard, which has the gradient."""
        return divisions[id(self)].shard

    def __repr__(self) -> str:
        return super().__repr__().replace(type(self).__name__, "Parameter", 1)

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        twin = Parameter(self.data, self.requires_grad)
        twin.name = self.name
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, (_, *rest) = super().__reduce__()
        return rebuild, (Parameter, *rest)


class Away(Divided):
    """A parameter divided among ranks; all its values are gathered only while they are needed."""

    __slots__ = ()

    def _can_be_read(self) -> bool:
        found = divisions.get(id(self))
        return found is not None and found.here and super()._can_be_read()

    def _facts(self) -> str:
        return f"{super()._facts()}, divided among ranks"

    @property
    def _data(self) -> Any:
        """Return the whole parameter's buffer, gathered from all ranks if necessary."""
        found = divisions.get(id(self))
        if found is None:
            raise RuntimeError(
                f"the parameter {self.name!r} {self.shape} was divided by a Sharded model that no longer exists"
            )
        return found.whole()

    @_data.setter
    def _data(self, value: Any) -> None:
        raise RuntimeError(
            f"the values of the parameter {self.name!r} {self.shape} are divided among ranks and cannot be replaced; "
            f"convert the module before Sharded(stage=3), or write into it: with model.gathered(): ..."
        )


class Division:
    """Connects one parameter with this rank's shard of it.

    Args:
        parameter: the whole parameter.
        rank: this rank's number.
        size: the number of ranks.
        own_memory: whether to copy the shard and free the memory of the whole parameter; else the shard is a view.

    Attributes:
        parameter: the whole parameter.
        shard: the elements of the flattened parameter from index ``low`` up to but not including ``high``.
        width: the number of elements of a shard; the last shards may have fewer.
    """

    def __init__(self, parameter: Parameter, rank: int, size: int, own_memory: bool) -> None:
        self.parameter, self.size, self.number = parameter, size, parameter._node[2]
        self.width = -(-parameter.size // size)
        self.low = min(rank * self.width, parameter.size)
        self.high = min(self.low + self.width, parameter.size)
        self.unit: Unit | None = None
        self._flat: Any = None
        self._array: Any = None
        self._close_gaps()
        with category("parameter"):
            part = self.slice(parameter.data)
            self.shard = Shard(copy(part) if own_memory else part)
        self.shard.name = parameter.name
        divisions[id(parameter)] = self
        self._buffer = None if own_memory else parameter._data
        if own_memory:  # the whole is released at once: all wholes need not be here together with all parts
            parameter.__class__ = Away
            SLOT.__delete__(parameter)
            if hasattr(parameter, "_root"):
                del parameter._root  # it has the same memory

    def _close_gaps(self) -> None:
        """Copy a parameter that is not contiguous to contiguous memory, so that a shard can be a view."""
        if not self.parameter._is_contiguous():
            with category("parameter"):
                self.parameter._adopt(copy(self.parameter.data))

    def slice(self, whole: Tensor) -> Tensor:
        """Return this rank's part of a tensor of the parameter's shape, as a 1-d tensor.

        The part is a view if ``whole`` is contiguous.
        """
        return whole.reshape(-1)[self.low : self.high]

    @property
    def here(self) -> bool:
        """Return whether the whole parameter is gathered at present."""
        return self._array is not None

    def follow(self) -> None:
        """Make the shard a view of the parameter again after the parameter's memory was replaced."""
        if self._buffer is not None and self.parameter._data is not self._buffer:
            self._close_gaps()
            self._buffer = self.parameter._data
            self.shard._adopt(self.slice(self.parameter.data))

    def whole(self) -> Any:
        """Return the whole parameter's buffer, gathering all parameters of its `Unit` if necessary."""
        assert self.unit is not None
        if self._array is None:
            self.unit.gather()
        return self._array

    def start(self) -> Pending:
        """Start gathering the whole parameter from all ranks; returns the pending call."""
        with category("parameter"):
            self._flat = empty((self.size * self.width,), self.parameter.dtype)
        mine = self.shard._data
        if mine.size < self.width:
            mine = np.concatenate([mine, np.zeros(self.width - mine.size, mine.dtype)])
        return start("all_gather", np.ascontiguousarray(mine), self._flat._data)

    def arrive(self) -> None:
        """Store the gathered values as the parameter's buffer, once the call of `start` has ended."""
        self._array = self._flat._data[: self.parameter.size].reshape(self.parameter.shape)
        owners[id(self._flat._data)] = self

    def release(self, store: bool = False) -> None:
        """Free the whole parameter's memory; if ``store``, first copy this rank's part of it to the shard."""
        if self._flat is None:
            return
        if store and self.here:
            np.copyto(self.shard._data, self._flat._data[self.low : self.high])
            mark_written(self.shard)
        owners.pop(id(self._flat._data), None)
        self._flat = self._array = None

    def view(self, offset: int, strides: tuple[int, ...], spec: Any) -> Tensor:
        """Rebuild a view of the whole parameter from an offset and strides in bytes, as stored by `PartsTape`."""
        self.whole()
        return detached(np.ndarray(spec.shape, spec.dtype, self._flat._data, offset, strides), spec)


class Unit:
    """The parameters of one module, which are gathered together before each call of the module.

    Args:
        module: the module.
        model: the `Sharded`, whose attribute ``reading`` says whether parameters may be gathered now, and ``staying``
            whether they stay gathered after the module's call.

    Attributes:
        left: in a backward pass, the numbers of the leaves whose gradients have not been computed yet.
    """

    def __init__(self, divisions: Sequence[Division], module: Module, model: Sharded) -> None:
        self.divisions, self._module, self._model = list(divisions), module, model
        self.left: set[int] = set()
        for division in divisions:
            division.unit = self
        self._handles = [module.register_forward_pre_hook(self.before), module.register_forward_hook(self.after)]

    def __deepcopy__(self, memo: dict[int, Any]) -> Unit:
        return self  # a copied module has this one's hooks, which do nothing there

    def before(self, module: Module, inputs: Any) -> None:
        """Gather the parameters before the module runs (a forward hook)."""
        if module is self._module:
            self.gather()

    def after(self, module: Module, inputs: Any, output: Any) -> None:
        """Release the parameters after the module has run (a forward hook)."""
        if module is self._module and not self._model.staying:
            self.release()

    def close(self) -> None:
        """Remove the hooks from the module."""
        for handle in self._handles:
            handle.remove()

    def gather(self) -> None:
        """Gather all parameters that are not gathered yet."""
        away = [division for division in self.divisions if not division.here]
        if away and not self._model.reading:
            name, shape = away[0].parameter.name, away[0].parameter.shape
            raise RuntimeError(
                f"the values of the parameter {name!r} {shape} are divided among ranks; use them on all ranks "
                f"inside: with model.gathered(): ..."
            )
        pending = [division.start() for division in away]
        for work, division in zip(pending, away, strict=True):
            work.wait()
            division.arrive()

    def release(self, store: bool = False) -> None:
        """Free the memory of the whole parameters; if ``store``, first copy their values to the shards."""
        for division in self.divisions:
            division.release(store)


divisions: WeakValueDictionary[int, Division] = WeakValueDictionary()
"""The divisions by the id of the whole parameter, to which the division refers, so that the id is not reused."""
owners: WeakValueDictionary[int, Division] = WeakValueDictionary()
"""The divisions whose whole parameter is in memory now, by the id of its buffer."""


class PartsTape(PackingTape):
    """A tape that saves references to parameters, not views of gathered values, so that the values can be freed."""

    name = "parts"

    def __init__(self) -> None:
        super().__init__(lambda packed: packed[0].view(*packed[1:]), unpacked_tape())

    def packed(self, x: Tensor, node: Node) -> Any:
        if isinstance(x, Divided):  # gathered when its buffer is asked for
            return x
        array = x._data
        while isinstance(array.base, np.ndarray):
            array = array.base
        division = owners.get(id(array))
        if division is None:
            return x
        offset = x._data.__array_interface__["data"][0] - array.__array_interface__["data"][0]
        spec = spec_of(x.shape, x.dtype, x._spec.kind)
        return division, offset, x._data.strides, spec
