"""Module, the base of layers and models, whose parameters, buffers and submodules are ordinary attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import bus
from flnb_telemetry.safe_text import safe_text

from flnb import ops
from flnb.autograd.hooks import Handle
from flnb.autograd.variable import Variable, plain
from flnb.dispatch.autocast import without_casts
from flnb.dispatch.dtypes import is_float
from flnb.dispatch.effects import effects
from flnb.dispatch.source_lines import common_location
from flnb.dispatch.state import category, use
from flnb.nn.hooks import ModuleHooks, run_forward, scope_hooks
from flnb.nn.mismatches import mismatches, refuse
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from flnb.interface import TensorBackend

__all__ = ["Module", "Parameter"]


class Parameter(Variable):
    """A Variable that a module trains: it requires gradients, and its values are a copy of ``data``.

    Telemetry counts its memory in the category "parameter".

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
    """Base of layers and models: parameters, buffers and submodules are attributes, `forward` computes.

    Parameters and modules are found in the attributes, also in lists, tuples and dicts; a Tensor that is not a Variable
    is a buffer (saved but not trained) unless its name begins with an underscore. While a module is called, the ops
    that it runs are recorded under its path, such as "net.block1.conv". A subclass need not call
    ``super().__init__()``.

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
    _is_flnbs: bool = True  # False for a subclass that a user defines
    _name: str = ""  # the name of this module in its parent; the class's name in lower case without a parent

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._name = cls.__name__.lower()
        cls._is_flnbs = cls.__module__.startswith("flnb.")

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if isinstance(value, (Module, Parameter, list, tuple, dict)):
            for path, member in _members(name, value):
                _rename(member, self._path(path))
                if isinstance(member, Module):
                    self._lengthen(path, member)

    def _lengthen(self, path: str, part: Module) -> None:
        """Prefix ``path``, the name of a submodule, to the names of the parameters in the submodule."""
        inside = list(part._named_members())
        if all(member is not self for _, member in inside):
            for name, member in inside:
                if isinstance(member, Parameter):
                    _rename(member, f"{path}.{name}")

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Compute the module's result; subclasses define it.

        Call the module itself rather than this method: a call of the module also runs the hooks and records the name.
        """
        raise NotImplementedError(
            f"flnb: {type(self).__name__} has no forward(); define `def forward(self, x): ...` and call the module"
        )

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        here, lane, common = bus.threads.here, None, None
        outer = here.path
        try:
            try:
                bus.enter(here, self._name)
                if bus.lanes is not None and bus.lanes is here.lanes:
                    lane, common = here.lane, here.lane.location
                    lane.location = common_location(self.forward, common) if self._is_flnbs else None
                if (captured := effects.get()) is not None:
                    captured.watch_module(self)
                if self._hooks is not None:
                    return self._hooks.call(self, inputs, options)
                if scope_hooks:
                    return run_forward(self, inputs, options)
                return self.forward(*inputs, **options)
            except Exception as error:
                _note_module(error, self)
                raise
            finally:
                if lane is not None:
                    lane.location = common
                bus.leave(here, outer)
        finally:  # once more, because Ctrl-C may have come before the line above
            here.path = outer
            if lane is not None:
                lane.location = common

    def _hooked(self) -> ModuleHooks:
        """Return the hooks of this module, created at the first registration."""
        if self._hooks is None:
            self.__dict__["_hooks"] = ModuleHooks()
        return self.__dict__["_hooks"]

    def register_forward_pre_hook(self, hook: Callable[[Module, tuple[Any, ...]], Any]) -> Handle:
        """Call ``hook(module, inputs)`` before each `forward`; its result, unless None, replaces the inputs.

        Args:
            hook: a function of the module and the tuple of positional inputs; it returns None, one input, or a tuple.

        Returns:
            A handle whose ``remove()`` removes the hook; it is also a context manager.

        >>> import flnb, flnb.nn as nn
        >>> relu = nn.ReLU()
        >>> with relu.register_forward_pre_hook(lambda module, inputs: inputs[0] - 1.0):
        ...     relu(flnb.asarray([1.0, 3.0])).tolist()
        [0.0, 2.0]
        """
        return Handle(self._hooked().before, hook)

    def register_forward_hook(self, hook: Callable[[Module, tuple[Any, ...], Any], Any]) -> Handle:
        """Call ``hook(module, inputs, output)`` after each `forward`; its result, unless None, replaces the output.

        Returns:
            A handle whose ``remove()`` removes the hook; it is also a context manager.

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
        """Call ``hook(module, grad_input, grad_output)`` in backward, for each call of the module.

        ``grad_input`` is a tuple of gradients, one for each tensor among the positional inputs. ``grad_output`` is a
        tuple of gradients, one for each tensor in the output. Both contain None for tensors that need no gradient.
        The hook's result, unless None, replaces ``grad_input``. The hook is called when the gradients of the inputs
        have been computed; if no input needs a gradient, it is called when those of the output have been computed.

        Returns:
            A handle whose ``remove()`` removes the hook; it is also a context manager.

        >>> import flnb, flnb.nn as nn
        >>> def show(module, grad_input, grad_output):
        ...     print(grad_output[0].tolist(), grad_input[0].tolist())
        >>> layer, x = nn.ReLU(), flnb.Variable([1.0, -2.0])
        >>> with layer.register_full_backward_hook(show):
        ...     flnb.sum(layer(x)).backward()
        [1.0, 1.0] [1.0, 0.0]
        """
        return Handle(self._hooked().backward, hook)

    def _named_members(self) -> Iterator[tuple[str, Tensor | Module]]:
        """Yield this module ("") and all modules, parameters and buffers in it, once each, with their dotted paths."""
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
                    _rename(child, member._path(name))  # also those appended to a list after it was assigned
                stack.extend((f"{path}.{name}" if path else name, child) for name, child in reversed(own))
            else:
                _rename(member, path)

    def _path(self, name: str) -> str:
        """Return the name that recordings show for the member ``name``, relative to this module or to its parent.

        The default is ``name``. `ModuleList`, which is never called itself, puts its own name in front: "blocks.0".
        """
        return name

    def _renamed(self, name: str) -> None:
        """Set the name of this module in its parent, such as "blocks.0" for a module in a list."""
        self.__dict__["_name"] = name

    def _own(self) -> Iterator[tuple[str, Tensor | Module]]:
        """Yield the direct members of this module with their names."""
        for name, value in vars(self).items():
            yield from _members(name, value)

    def _named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all parameters and buffers, once each, with their dotted paths."""
        return ((name, member) for name, member in self._named_members() if isinstance(member, Tensor))

    def named_modules(self) -> Iterator[tuple[str, Module]]:
        """Yield this module (as "") and all modules in it, once each, with their dotted paths; parents come first."""
        return ((name, member) for name, member in self._named_members() if isinstance(member, Module))

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield every Parameter once, with its dotted path; a shared parameter has the path found first."""
        return ((name, item) for name, item in self._named_tensors() if isinstance(item, Parameter))

    def parameters(self) -> list[Parameter]:
        """Return every Parameter of this module and of all modules in it, once each."""
        return [item for _, item in self.named_parameters()]

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every buffer (a Tensor that is saved but not trained) once, with its dotted path."""
        return ((name, item) for name, item in self._named_tensors() if not isinstance(item, Parameter))

    def train(self, mode: bool = True) -> Module:
        """Set training mode (with ``mode=False`` evaluation mode) in this module and all submodules; return the module.

        In training mode, dropout drops elements and batch norm uses the batch's statistics. In evaluation mode, dropout
        does nothing and batch norm uses the running statistics.
        """
        for _, module in self.named_modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        """Set evaluation mode in this module and all submodules, and return the module; see `train`."""
        return self.train(False)

    def astype(self, dtype: Any, keep: type[Module] | tuple[type[Module], ...] = ()) -> Module:
        """Cast the floating-point parameters and buffers to another dtype, in place; returns the module.

        Gradients are discarded. Make the optimizer after this call; for parameters in half precision, it stores copies
        in float32 (master weights).

        Args:
            dtype: the new dtype.
            keep: types of modules that are not cast, nor are the modules inside them. An example is `BatchNorm`, whose
                statistics need more than half precision.

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
                    _become(item, ops.astype(plain(item), dtype))
        return self

    def half(self, keep: type[Module] | tuple[type[Module], ...] = ()) -> Module:
        """Cast the floating-point parameters and buffers to float16, in place; see `astype`."""
        return self.astype(np.float16, keep)

    def zero_grad(self) -> None:
        """Set the gradients of all parameters to None."""
        for parameter in self.parameters():
            parameter.zero_grad()

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of all parameters and buffers, by dotted path."""
        return {name: ops.asarray(plain(item), copy=True) for name, item in self._named_tensors()}

    def mismatches(self, state: Mapping[str, Any]) -> list[str]:
        """Return the reasons why `load_state_dict(state)` would fail, one line each; none if it would succeed."""
        return mismatches(dict(self._named_tensors()), state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy arrays or tensors, given by dotted path, into the parameters and buffers.

        Raises:
            ValueError: lists every missing, unexpected and mis-shaped name; then nothing has been written.

        >>> import flnb, flnb.nn as nn
        >>> one, other = nn.Linear(2, 3), nn.Linear(2, 3)
        >>> other.load_state_dict(one.state_dict())
        >>> bool((one.weight.data == other.weight.data).all())
        True
        """
        refuse(self.mismatches(state), type(self).__name__)
        for name, item in self._named_tensors():
            ops.assign(plain(item), plain(ops.asarray(state[name], dtype=item.dtype)))

    def to(self, backend: str | type[TensorBackend] | TensorBackend) -> Module:
        """Move parameters and buffers to another backend (a name, class or instance), in place; returns the module.

        Gradients are discarded. Make the optimizer after this call, or load its state again. Nothing changes if the new
        backend works on the same kind of buffer.

        >>> import flnb.nn as nn
        >>> nn.Linear(2, 3).to("numpy")
        Linear(in_features=2, out_features=3)  # 9 parameters
        """
        with category("parameter"):
            for _, item in self._named_tensors():
                old = plain(item)
                new = old.to(backend)
                if new is not old:
                    _become(item, new)
        return self

    def extra_repr(self) -> str:
        """Return the text between the parentheses of the repr: attributes whose values are numbers, texts or tuples."""
        return ", ".join(
            f"{name}={value!r:.40}"
            for name, value in vars(self).items()
            if (value is None or isinstance(value, (int, float, str, tuple))) and not any(_members(name, value))
            if name != "training" and not name.startswith("_")
        )

    def _summary(self) -> str:
        """Return the number of parameters as text; empty if there are none."""
        count = sum(item.size for item in self.parameters())
        return f"{count:,} parameter{'' if count == 1 else 's'}" if count else ""

    def __repr__(self) -> str:
        head = f"{type(self).__name__}({self.extra_repr()})"
        if summary := self._summary():
            head += f"  # {summary}"
        children = ((name, child) for name, child in self._own() if isinstance(child, Module))
        lines = [f"{safe_text(name)}: {child!r}".replace("\n", "\n  ") for name, child in children]
        return "\n  ".join([head, *lines])


def _note_module(error: Exception, module: Module) -> None:
    """Add a note to an error with the module that raised it, unless an inner module has done so."""
    if not any(note.startswith("in module ") for note in getattr(error, "__notes__", ())):
        error.add_note(f"in module {safe_text(bus.threads.here.path)} ({type(module).__name__})")


def _members(name: str, value: object) -> Iterator[tuple[str, Tensor | Module]]:
    """Yield the modules, parameters and buffers in the value of an attribute, also in lists, tuples and dicts."""
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


def _rename(member: Tensor | Module, path: str) -> None:
    """Set the name of a module to ``path``; a parameter is renamed only if ``path`` is longer than its present name."""
    if isinstance(member, Module):
        member._renamed(path)
    elif isinstance(member, Parameter) and path.endswith(member.name):
        member.name = path


def _become(item: Tensor, new: Tensor) -> None:
    """Replace the values of a parameter or buffer by those of ``new`` (any dtype or backend); discard its gradient."""
    item._adopt(new)
    if isinstance(item, Variable):
        item.zero_grad()
