"""Module: parameters, buffers and submodules are ordinary attributes, found by walking them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import bus
from flnb_telemetry.safe_text import safe_text

from flnb import ops
from flnb.autograd import Variable
from flnb.autograd.hooks import Handle
from flnb.dispatch.autocast import without_casts
from flnb.dispatch.dtypes import is_float
from flnb.dispatch.state import category, use
from flnb.nn.hooks import ModuleHooks, run_forward, scope_hooks
from flnb.nn.mismatches import mismatches, refuse
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from flnb.interface import TensorBackend

__all__ = ["Module", "Parameter"]


class Parameter(Variable):
    """A leaf Variable that a module trains. It owns a copy of `data`, in memory counted as "parameter".

    >>> import flnb, flnb.nn as nn
    >>> weight = nn.Parameter(flnb.zeros((2, 3)))
    >>> weight.shape, weight.requires_grad
    ((2, 3), True)
    """

    __slots__ = ()
    _is_parameter = True

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        if isinstance(data, Variable):
            data = data.data
        with category("parameter"):
            super().__init__(ops.asarray(data, copy=True), requires_grad=requires_grad)


class Module:
    """A part of a network: state in attributes, computation in `forward`.

    Parameters, modules, and lists, tuples and dicts of them are found in the attributes; a plain Tensor is a buffer
    (saved, not trained) unless its name begins with an underscore. Calling a module enters its telemetry scope, so
    that every op is known by its path: "net.block1.conv". No `super().__init__()` is needed.

    >>> import flnb, flnb.nn as nn
    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         self.weight = nn.Parameter(flnb.ones((3, 2)))
    ...     def forward(self, x):
    ...         return x @ self.weight
    >>> net = Net()
    >>> net(flnb.ones((1, 3))).shape, [name for name, _ in net.named_parameters()]
    ((1, 2), ['weight'])
    """

    training: bool = True
    _hooks: ModuleHooks | None = None
    _name: str = ""  # under the parent; "" for a root, whose scope is its class's name

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._name = cls.__name__.lower()

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if isinstance(value, (Module, Parameter, list, tuple, dict)):
            for path, member in _members(name, value):
                _call_it(member, self._path(path))
                if isinstance(member, Module):
                    self._lengthen(path, member)

    def _lengthen(self, path: str, part: Module) -> None:
        """Prefix this module's name to the parameter paths of a submodule that was built before this module."""
        inside = list(part._named_members())
        if all(member is not self for _, member in inside):
            for name, member in inside:
                if isinstance(member, Parameter):
                    _call_it(member, f"{path}.{name}")

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Compute the result: override it, and call the module itself, which enters its scope and runs its hooks."""
        raise NotImplementedError(
            f"flnb: {type(self).__name__} has no forward(); define `def forward(self, x): ...` and call the module"
        )

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        here = bus.threads.here
        outer = here.path
        try:
            try:
                bus.enter(self._name)
                if self._hooks is not None:
                    return self._hooks.call(self, inputs, options)
                if scope_hooks:
                    return run_forward(self, inputs, options)
                return self.forward(*inputs, **options)
            except Exception as error:
                _tell_where(error, self)
                raise
            finally:
                bus.leave(outer)
        finally:  # once more, because Ctrl-C may have come before the line above
            here.path = outer

    def _hooked(self) -> ModuleHooks:
        if self._hooks is None:
            self.__dict__["_hooks"] = ModuleHooks()
        hooks: ModuleHooks = self.__dict__["_hooks"]
        return hooks

    def register_forward_pre_hook(self, hook: Callable[[Module, tuple[Any, ...]], Any]) -> Handle:
        """Call ``hook(module, inputs)`` before each `forward`; its result, unless None, replaces the inputs.

        Returns:
            A handle whose ``remove()`` removes the hook.
        """
        return Handle(self._hooked().before, hook)

    def register_forward_hook(self, hook: Callable[[Module, tuple[Any, ...], Any], Any]) -> Handle:
        """Call ``hook(module, inputs, output)`` after each `forward`; its result, unless None, replaces the output.

        >>> import flnb, flnb.nn as nn
        >>> class Double(nn.Module):
        ...     def forward(self, x):
        ...         return x * 2.0
        >>> double = Double()
        >>> with double.register_forward_hook(lambda module, inputs, output: output + 1.0):
        ...     double(flnb.ones(2)).tolist()
        [3.0, 3.0]
        """
        return Handle(self._hooked().after, hook)

    def register_full_backward_hook(self, hook: Callable[[Module, tuple[Any, ...], tuple[Any, ...]], Any]) -> Handle:
        """Call ``hook(module, grad_input, grad_output)`` whenever gradients have passed back through a call.

        Both are tuples with one gradient per tensor of the call's positional inputs and of its output, None for a
        tensor without; the hook's result, unless None, replaces ``grad_input``. If no input needs a gradient, the hook
        is called as soon as those of the output are known.
        """
        return Handle(self._hooked().backward, hook)

    def _named_members(self) -> Iterator[tuple[str, Tensor | Module]]:
        """This module, and every module, parameter and buffer below, once, with its dotted path."""
        seen: set[int] = set()
        stack: list[tuple[str, Tensor | Module]] = [("", self)]
        while stack:
            path, member = stack.pop()
            if id(member) in seen:
                continue
            seen.add(id(member))
            yield path, member
            if isinstance(member, Module):
                own = sorted(member._own(), key=lambda item: isinstance(item[1], Module))  # a module's tensors first
                for name, child in own:
                    _call_it(child, member._path(name))  # also those appended to a list after it was assigned
                stack.extend((f"{path}.{name}" if path else name, child) for name, child in reversed(own))
            else:
                _call_it(member, path)

    def _path(self, name: str) -> str:
        """The name of a member: its name here, since the scope of this module is entered around its own."""
        return name

    def _renamed(self, name: str) -> None:
        """The parent's name for this module; "blocks.0" for one in a list."""
        self.__dict__["_name"] = name

    def _own(self) -> Iterator[tuple[str, Tensor | Module]]:
        for name, value in vars(self).items():
            yield from _members(name, value)

    def _named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, member) for name, member in self._named_members() if isinstance(member, Tensor))

    def named_modules(self) -> Iterator[tuple[str, Module]]:
        """Every module once, itself first (as ""), parents before children, in the order of their attributes."""
        return ((name, member) for name, member in self._named_members() if isinstance(member, Module))

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Every Parameter once, with its dotted path; a shared one under the first."""
        return ((name, item) for name, item in self._named_tensors() if isinstance(item, Parameter))

    def parameters(self) -> list[Parameter]:
        """Every Parameter of this module and all below, once."""
        return [item for _, item in self.named_parameters()]

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Every buffer (a Tensor attribute that is not trained) once, with its dotted path."""
        return ((name, item) for name, item in self._named_tensors() if not isinstance(item, Parameter))

    def train(self, mode: bool = True) -> Module:
        """Put this module and all below into training mode (dropout drops, batch norm uses the batch)."""
        for _, module in self.named_modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        """Put this module and all below into evaluation mode, see `train`."""
        return self.train(False)

    def astype(self, dtype: Any, keep: type[Module] | tuple[type[Module], ...] = ()) -> Module:
        """Cast the floating-point parameters and buffers, here and below, in place; returns the module.

        Modules of the types in `keep`, with all below them, stay as they are: half precision does not suit the
        statistics of batch norm. Gradients are discarded. Make the optimizer afterwards; for parameters in half
        precision it has master weights in float32.

        >>> import flnb, flnb.nn as nn
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm(3)).astype(flnb.float16, keep=nn.BatchNorm)
        >>> [(name, item.dtype.name) for name, item in net.named_parameters()][1:3]
        [('0.bias', 'float16'), ('1.weight', 'float32')]
        """
        kept = [module for _, module in self.named_modules() if isinstance(module, keep)]
        spared = {id(item) for module in kept for _, item in module._named_tensors()}
        with category("parameter"), use(grad=False, interpreters=without_casts()):
            for _, item in self._named_tensors():
                if id(item) not in spared and is_float(item.dtype) and item.dtype.kind != "c":
                    _become(item, ops.astype(_plain(item), dtype))
        return self

    def half(self, keep: type[Module] | tuple[type[Module], ...] = ()) -> Module:
        """Cast to float16, see `astype`."""
        return self.astype(np.float16, keep)

    def zero_grad(self) -> None:
        """Set the gradients of all parameters to None."""
        for parameter in self.parameters():
            parameter.grad = None

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of all parameters and buffers by dotted path: later training does not change them."""
        return {name: ops.asarray(_plain(item), copy=True) for name, item in self._named_tensors()}

    def mismatches(self, state: Mapping[str, Any]) -> list[str]:
        """Reasons why `state` cannot be loaded, a line each: names that are missing, unexpected or mis-shaped."""
        return mismatches(dict(self._named_tensors()), state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Write `state` (arrays or tensors by dotted path) into this module, in place.

        Raises:
            ValueError: lists every missing, unexpected and mis-shaped name; then nothing has been written.
        """
        refuse(self.mismatches(state), type(self).__name__)
        for name, item in self._named_tensors():
            ops.assign(_plain(item), _plain(ops.asarray(state[name], dtype=item.dtype)))

    def to(self, backend: str | type[TensorBackend] | TensorBackend) -> Module:
        """Move parameters and buffers to another backend (by name, class or instance), in place; returns the module.

        Gradients are discarded; make the optimizer afterwards, or load its state again. Nothing is done if the backend
        works on the same buffers.

        >>> import flnb.nn as nn
        >>> nn.Linear(2, 3).to("numpy")
        Linear(in_features=2, out_features=3)  # 9 parameters
        """
        with category("parameter"):
            for _, item in self._named_tensors():
                old = _plain(item)
                new = old.to(backend)
                if new is not old:
                    _become(item, new)
        return self

    def extra_repr(self) -> str:
        """The text between the parentheses of the repr: the numbers and texts among the attributes."""
        return ", ".join(
            f"{name}={value!r:.40}"
            for name, value in vars(self).items()
            if (value is None or isinstance(value, (int, float, str, tuple))) and not any(_members(name, value))
            if name != "training" and not name.startswith("_")
        )

    def _summary(self) -> str:
        count = sum(item.size for item in self.parameters())
        return f"{count:,} parameter{'' if count == 1 else 's'}" if count else ""

    def __repr__(self) -> str:
        head = f"{type(self).__name__}({self.extra_repr()})"
        if summary := self._summary():
            head += f"  # {summary}"
        children = ((name, child) for name, child in self._own() if isinstance(child, Module))
        lines = [f"{safe_text(name)}: {child!r}".replace("\n", "\n  ") for name, child in children]
        return "\n  ".join([head, *lines])


def _tell_where(error: Exception, module: Module) -> None:
    """Add to an error which module it came from: the innermost one, by its path."""
    if not any(note.startswith("in module ") for note in getattr(error, "__notes__", ())):
        error.add_note(f"in module {safe_text(bus.threads.here.path)} ({type(module).__name__})")


def _members(name: str, value: object) -> Iterator[tuple[str, Tensor | Module]]:
    if isinstance(value, (Module, Parameter)):
        yield name, value
    elif isinstance(value, Tensor):
        if not isinstance(value, Variable) and not name.startswith("_"):
            yield name, value
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _members(f"{name}.{index}", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _members(f"{name}.{key}", item)


def _call_it(member: Tensor | Module, path: str) -> None:
    """Name a module as its scope will be named, and a parameter by its longest known path."""
    if isinstance(member, Module):
        member._renamed(path)
    elif isinstance(member, Parameter) and path.endswith(member.name):
        member.name = path


def _become(item: Tensor, new: Tensor) -> None:
    """Put values of another dtype or backend into a parameter or buffer; its gradient is discarded."""
    item._data, item._spec, item._root = new._data, new._spec, new
    if isinstance(item, Variable):
        item.zero_grad()


def _plain(tensor: Tensor) -> Tensor:
    return tensor.data if isinstance(tensor, Variable) else tensor
