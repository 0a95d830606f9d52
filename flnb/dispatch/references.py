"""References: the objects to which a function's code leads, by global names, imports, closures, attributes and items.

They are found by reading the code, without running it. Names are not matched to objects exactly: an attribute that any
of the examined functions names counts for all objects found.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections import deque
from importlib.util import resolve_name
from types import CodeType, FunctionType, MappingProxyType, MemberDescriptorType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch.source_lines import is_users
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MISSING = object()
LONGEST = 256
"""The largest number of items of a container that are examined."""
MOST_OBJECTS = 20_000
"""The largest number of objects that are examined."""
UNUSED = frozenset({"__init__", "__new__", "__repr__", "__str__", "__del__", "__reduce__", "__init_subclass__"})
"""Special methods that are not examined, because a step hardly calls them."""


def referred(
    function: Any, arguments: Sequence[Any] = (), settings: Iterable[tuple[Any, str]] = ()
) -> list[tuple[Any, str | None]]:
    """List (holder, name) for everything to which a function refers: globals, closure variables, attributes, items.

    The user's functions to which it refers, directly, as items of containers or as methods, are examined, too.

    Args:
        function: a function or method, or an object that wraps one.
        arguments: objects whose attributes the function may read.
        settings: further pairs (holder, name).

    Returns:
        A list of pairs. The holder is an object with an attribute of that name, or a dict with such a key. If the name
        is None, the holder is a container or an array, and the pair stands for its items.
    """
    found = _References(function)
    found.waiting += arguments
    for holder, name in settings:
        found.add(holder, name)
        found.waiting += [holder] if isinstance(holder, type) else []
    found.examine_all()
    return list(found.pairs.values())


def find(holder: Any, name: str | None) -> Any:
    """Return the present value of a holder's key or attribute ``name``, or the holder if ``name`` is None.

    Return `MISSING` if the name is undefined.
    """
    if name is None:
        return holder
    if type(holder) is dict:
        return holder.get(name, MISSING)
    try:
        return getattr(holder, name)
    except Exception:  # a variable in a closure that has no value yet, or a user's descriptor that needs an instance
        return MISSING


def items_of(value: Any) -> list[Any]:
    """Return a list of a container's items, or of a dict's values; it is empty for long ones and other objects."""
    if not isinstance(value, (list, tuple, dict, set, frozenset, deque)) or len(value) > LONGEST:
        return []
    return list(value.values() if isinstance(value, dict) else value)


def is_mutable(value: Any) -> bool:
    """Return whether an object is a container or an array whose items or elements may be replaced."""
    return isinstance(value, (list, dict, set, deque, np.ndarray))


class _References:
    """A search for the references of a function: the pairs (holder, name) found so far, and the objects to examine.

    Attributes:
        pairs: the pairs (holder, name), by the holder's id and the name.
        waiting: the objects that `examine_all` has yet to examine.
        names: the names of attributes in the code of all functions found.
        owners: objects, classes and modules; their attributes whose names are in ``names`` are added to ``pairs``.
    """

    def __init__(self, function: Any) -> None:
        self.pairs: dict[tuple[int, str | None], tuple[Any, str | None]] = {}
        self.waiting = [function]
        self.names: set[str] = set()
        self.owners: list[Any] = []
        self._seen: dict[int, Any] = {}
        while (inner := _wrapped(function)) is not None:
            function = inner
        self._globals = getattr(function, "__globals__", None)

    def add(self, holder: Any, name: str | None) -> None:
        """Add the pair (holder, name) unless it is known; `examine_all` will then examine the object it refers to."""
        if (id(holder), name) not in self.pairs:
            self.pairs[id(holder), name] = holder, name
            self.waiting.append(find(holder, name))

    def examine_all(self) -> None:
        """Examine waiting objects and their attributes until nothing new is found."""
        while self.waiting:
            value = self.waiting.pop()
            if id(value) not in self._seen and len(self._seen) < MOST_OBJECTS:
                self._seen[id(value)] = value
                self._examine(value)
            if not self.waiting:
                for owner in self.owners:
                    self._add_attributes(owner)

    def _examine(self, value: Any) -> None:
        if isinstance(value, (Tensor, np.ndarray)):
            return
        for each in items_of(value):
            if is_mutable(each):
                self.add(each, None)
            self.waiting.append(each)
        if isinstance(value, FunctionType):
            self._examine_function(value)
        if isinstance(value, functools.partial):
            self.waiting.append(value.args)
            self.add(value, "keywords")
        elif isinstance(value, MethodType):
            self.waiting.append(value.__self__)
        if (inner := _wrapped(value)) is not None:
            self.waiting.append(inner)
        inside = getattr(value, "__dict__", None)
        is_file = isinstance(value, (type, ModuleType))
        if type(inside) is dict and callable(value) and not is_file:  # such as a custom op
            self.waiting += [each for each in inside.values() if isinstance(each, (FunctionType, MethodType))]
        if _is_users(value) if is_file else type(inside) is dict or _is_users(type(value)):
            self.owners.append(value)

    def _examine_function(self, function: FunctionType) -> None:
        """Add a function's closure variables and, if the user wrote it, the globals and modules that it names."""
        for cell in function.__closure__ or ():
            self.add(cell, "cell_contents")
        code = function.__code__
        if function.__globals__ is self._globals or is_users(code.co_filename):
            self.names |= _names(code, "LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM")
            for name in _names(code, "LOAD_GLOBAL"):
                self.add(function.__globals__, name)
            for name in _imported(code, function.__globals__.get("__package__")):
                self.add(sys.modules, name)
            self.add(function, "__defaults__")
            self.add(function, "__kwdefaults__")

    def _add_attributes(self, owner: Any) -> None:
        """Add the attributes of an object, class or module that the code names, and special methods of its class."""
        inside = getattr(owner, "__dict__", None)
        own = inside if type(inside) is dict else {}
        for name in self.names & own.keys():
            self.add(own, name)
        kind = owner if isinstance(owner, type) else type(owner)
        for base in kind.__mro__ if _is_users(kind) else ():
            methods = vars(base)
            for name in self._used(methods) if _is_users(base) else ():
                stored = methods[name]
                if isinstance(stored, MemberDescriptorType):  # in __slots__
                    self.add(owner, name)
                elif isinstance(stored, property) or not hasattr(type(stored), "__set__"):
                    self.waiting += [stored] if (id(kind), name) not in self.pairs else []  # may be a descriptor
                    self.add(kind, name)
                    if own is inside and name in self.names:
                        self.add(own, name)

    def _used(self, methods: MappingProxyType[str, Any]) -> list[str]:
        """Return the attributes of a class that the code names, and its methods that run without being named."""
        special = [name for name in methods if name == "forward" or (name[:2] == "__" and name not in UNUSED)]
        return [*(self.names & methods.keys()), *[x for x in special if isinstance(methods[x], FunctionType)]]


def _wrapped(value: Any) -> Any:
    """Return the function that a method, property, partial or decorated function calls; None for other objects."""
    if isinstance(value, (MethodType, staticmethod, classmethod)):
        return value.__func__
    if isinstance(value, (functools.partial, functools.cached_property)):
        return value.func
    return value.fget if isinstance(value, property) else getattr(value, "__dict__", {}).get("__wrapped__")


def _is_users(value: type | ModuleType) -> bool:
    """Return whether a class or module is the user's, rather than of flnb or of an installed library."""
    name = value.__module__ if isinstance(value, type) else value.__name__
    file = getattr(sys.modules.get(name), "__file__", None)
    return is_users(file) if isinstance(file, str) else name not in sys.builtin_module_names


@functools.lru_cache(4096)
def _names(code: CodeType, *instructions: str) -> frozenset[str]:
    """Return the names in the given kinds of instructions of a code, such as ``LOAD_GLOBAL``.

    Names in functions that are defined inside of the code are included.
    """
    inner = [_names(each, *instructions) for each in code.co_consts if isinstance(each, CodeType)]
    return frozenset(x.argval for x in dis.get_instructions(code) if x.opname in instructions).union(*inner)


@functools.lru_cache(4096)
def _imported(code: CodeType, package: str | None) -> frozenset[str]:
    """Return the full names of the modules that code of a package imports, and of their outermost packages.

    Imports in functions that are defined inside of the code are included.
    """
    inner = [_imported(each, package) for each in code.co_consts if isinstance(each, CodeType)]
    steps = [x for x in dis.get_instructions(code) if x.opname != "EXTENDED_ARG"]
    # two instructions before an import comes its level, the number of dots before the name
    found = [(steps[i - 2].argval or 0, x.argval) for i, x in enumerate(steps) if x.opname == "IMPORT_NAME"]
    deepest = package.count(".") + 1 if package else 0  # an import with more dots raises an error
    names = [resolve_name("." * dots + name, package) for dots, name in found if dots <= deepest]
    return frozenset([*names, *[name.partition(".")[0] for name in names]]).union(*inner)
