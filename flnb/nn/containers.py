"""Modules that contain other modules: called in order, by index or by name, with a residual, or skipped at random."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flnb import random
from flnb.nn.module import Module

__all__ = ["Container", "LayerDrop", "ModuleDict", "ModuleList", "Residual", "Sequential"]


class Container(Module):
    """Base of containers, which store modules by name in insertion order; ``container[i]`` is the i-th module.

    >>> import flnb.nn as nn
    >>> box = nn.Container()
    >>> box.add("first", nn.ReLU())
    >>> len(box), box[0]
    (1, ReLU())
    """

    def add(self, name: str, module: Module) -> None:
        """Append a module, or replace the module of that name.

        Raises:
            TypeError: ``module`` is not a module.
            ValueError: the container has a method or class attribute of that name.
        """
        kind = type(self).__name__
        if not isinstance(module, Module):
            raise TypeError(f"flnb: {kind} takes modules, got {type(module).__name__} as {name!r}")
        if hasattr(type(self), name):
            raise ValueError(f"flnb: {name!r} is a method of {kind}; give that module another name")
        setattr(self, name, module)

    def _held(self) -> dict[str, Module]:
        """Return the modules by name."""
        return {name: member for name, member in vars(self).items() if isinstance(member, Module)}

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._held().values()))

    def __len__(self) -> int:
        return len(self._held())

    def __getitem__(self, index: Any) -> Any:
        return list(self._held().values())[index]


class Sequential(Container):
    """Modules that are called one after another, each with the result of the one before.

    Modules passed by position are named "0", "1", ...; modules passed by keyword have the keyword's name.

    >>> import flnb, flnb.nn as nn
    >>> net = nn.Sequential(hidden=nn.Linear(4, 8), relu=nn.ReLU(), out=nn.Linear(8, 2))
    >>> net(flnb.ones((5, 4))).shape, len(net), net[0]
    ((5, 2), 3, Linear(in_features=4, out_features=8)  # 40 parameters)
    """

    def __init__(self, *modules: Module, **named: Module) -> None:
        for name, module in ({str(index): module for index, module in enumerate(modules)} | named).items():
            self.add(name, module)

    def forward(self, x: Any) -> Any:
        for module in self:
            x = module(x)
        return x


class _Uncalled(Container):
    """Base of containers without `forward`; in recordings, a module inside has a name such as "blocks.0"."""

    def _path(self, name: str) -> str:
        return f"{self._name}.{name}"

    def _renamed(self, name: str) -> None:
        super()._renamed(name)
        for key, module in self._held().items():
            module._renamed(self._path(key))


class ModuleList(_Uncalled):
    """A list of modules whose parameters are registered; the owner calls the modules in its `forward`.

    >>> import flnb.nn as nn
    >>> layers = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(3))
    >>> layers.append(nn.Linear(2, 1))
    >>> len(layers), [name for name, _ in layers.named_parameters()]
    (4, ['0.weight', '1.weight', '2.weight', '3.weight', '3.bias'])
    """

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        self.extend(modules)

    def append(self, module: Module) -> None:
        """Append a module."""
        self.add(str(len(self)), module)

    def extend(self, modules: Iterable[Module]) -> None:
        """Append several modules."""
        for module in modules:
            self.append(module)

    def __setitem__(self, index: int, module: Module) -> None:
        self.add(list(self._held())[index], module)


class ModuleDict(_Uncalled):
    """A dict of modules whose parameters are registered; the owner calls the modules in its `forward`.

    >>> import flnb.nn as nn
    >>> heads = nn.ModuleDict({"mean": nn.Linear(4, 1), "scale": nn.Linear(4, 1)})
    >>> list(heads), heads["mean"], "bias" in heads
    (['mean', 'scale'], Linear(in_features=4, out_features=1)  # 5 parameters, False)
    """

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        for name, module in (modules or {}).items():
            self.add(name, module)

    def keys(self) -> list[str]:
        """Return the names of the modules, in order."""
        return list(self._held())

    def values(self) -> list[Module]:
        """Return the modules, in order."""
        return list(self._held().values())

    def items(self) -> list[tuple[str, Module]]:
        """Return pairs of name and module, in order."""
        return list(self._held().items())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, name: object) -> bool:
        return name in self._held()

    def __getitem__(self, name: str) -> Module:
        if name not in self._held():
            raise KeyError(f"no module {name!r}; there are {', '.join(self.keys()) or 'none'}")
        return self._held()[name]

    def __setitem__(self, name: str, module: Module) -> None:
        self.add(name, module)


class Residual(Module):
    """Add a module's result to its input: x + module(x), or shortcut(x) + module(x) (He et al. 2016).

    Raises:
        ValueError: the shapes of the two summands differ, even if they could be broadcast.

    >>> import flnb, flnb.nn as nn
    >>> nn.Residual(nn.Identity())(flnb.asarray([1.0, 2.0])).tolist()
    [2.0, 4.0]
    """

    def __init__(self, module: Module, shortcut: Module | None = None) -> None:
        self.module, self.shortcut = module, shortcut

    def forward(self, x: Any) -> Any:
        y = self.module(x)
        past = x if self.shortcut is None else self.shortcut(x)
        if y.shape != past.shape:
            raise ValueError(
                f"Residual: {type(self.module).__name__} returned {y.shape} for {x.shape}, but the result is added to "
                f"{past.shape}; pass a shortcut that returns the same shape"
            )
        return past + y


class LayerDrop(Module):
    """Call a module, but in training mode return x unchanged with probability ``p`` instead.

    Further arguments, such as a mask, are passed to the module. In evaluation mode the module is always called. Fan et
    al. 2020, section 3.2.

    Raises:
        ValueError: ``p`` is negative, or 1 or more.

    >>> import flnb, flnb.nn as nn
    >>> dropping = nn.LayerDrop(nn.Transform(lambda x: x * 2.0), 0.5)
    >>> flnb.manual_seed(0) and {dropping(flnb.ones(())).item() for _ in range(20)} == {1.0, 2.0}
    True
    """

    def __init__(self, module: Module, p: float) -> None:
        if not 0.0 <= p < 1.0:
            raise ValueError(f"LayerDrop: p is the share of calls to leave out, at least 0 and below 1; got {p}")
        self.module, self.p = module, p

    def forward(self, x: Any, *more: Any, **options: Any) -> Any:
        if self.training and self.p and random.host_generator().random() < self.p:
            return x
        return self.module(x, *more, **options)
