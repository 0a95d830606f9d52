"""Guards: the objects besides its arguments on which a captured step depends, such as training flags and globals."""

from __future__ import annotations

import dis
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["Guard", "changed", "guarded", "hold", "items_of", "referred"]

PLAIN = frozenset({bool, int, float, complex, str, bytes})
MISSING = object()
LONGEST = 256
"""The largest number of items of a list or dict that are compared one by one."""


Guard = tuple[Any, str | None, Any]
"""A tuple: a dict or object, a key or attribute of it, and the value at capture, copied if it is a list or dict.

If the key is None, the value is a copy of the first object, a list or dict inside of another.
"""


def guarded(
    settings: Iterable[tuple[Any, str]], references: Iterable[tuple[Any, str]], grown: frozenset[int] = frozenset()
) -> list[Guard]:
    """Return guards that store what attributes and names currently refer to.

    Args:
        settings: attributes of modules and optimizers.
        references: global names and closure variables of a function, and attributes of objects.
        grown: ids of lists and dicts whose items are not compared, because the function itself changes them.

    Other lists and dicts are compared item by item, and so are lists and dicts inside of them.
    """
    known: dict[tuple[int, str | None], Guard] = {}
    for holder, name in (*references, *settings):
        value = _find(holder, name)
        known[id(holder), name] = holder, name, value if id(value) in grown else _copied(value)
        inside = [value] if id(value) not in grown else []
        while inside:
            for each in items_of(inside.pop()):
                if type(each) is tuple:
                    inside.append(each)
                elif type(each) in (list, dict) and (id(each), None) not in known:
                    known[id(each), None] = each, None, each if id(each) in grown else _copied(each)
                    inside.append(each)
    return list(known.values())


def hold(guards: Iterable[Guard]) -> bool:
    """Return whether all guards still hold: the same objects, equal numbers and texts, or equal lists and dicts."""
    for holder, name, value in guards:
        now = holder if name is None else holder.get(name, MISSING) if type(holder) is dict else _find(holder, name)
        if now is not value and not _same(now, value):
            return False
    return True


def changed(guards: Iterable[Guard]) -> frozenset[int]:
    """Return the ids of the lists and dicts whose items differ from those that the guards have copied."""
    pairs = [(holder if name is None else _find(holder, name), value) for holder, name, value in guards]
    return frozenset(id(now) for now, value in pairs if type(now) in (list, dict) and not _same(now, value))


def referred(function: Any, arguments: Sequence[Any] = ()) -> Iterator[tuple[Any, str]]:
    """Yield (holder, name) for everything to which a function refers: globals, closure variables, attributes.

    If a reference is a function of the same file or notebook, its references are also yielded.

    Args:
        function: a function or method, or an object that wraps one.
        arguments: objects whose attributes the function may read.
    """
    waiting, seen = [function], set()
    while waiting:
        method = waiting.pop()
        method = getattr(method, "__wrapped__", method)
        inner = getattr(method, "__func__", method)
        if not isinstance(inner, FunctionType) or inner in seen:
            continue
        seen.add(inner)
        names = _names(inner.__code__, "ATTR", "METHOD")
        owned = [vars(x) for x in (*arguments, getattr(method, "__self__", None)) if hasattr(x, "__dict__")]
        found = [(each, name) for each in owned for name in names if name in each]
        found += [(inner.__globals__, name) for name in _names(inner.__code__, "GLOBAL")]
        found += [(cell, "cell_contents") for cell in inner.__closure__ or ()]
        found += [(inner, "__defaults__"), (inner, "__kwdefaults__")]
        values = [_find(*each) for each in found]
        inside = [vars(x) for value in values for x in (value, *items_of(value)) if _is_plain(x)]
        yield from (*found, *[(each, name) for each in inside for name in names if name in each])
        waiting += [x for x in values if getattr(x, "__globals__", None) is inner.__globals__]


def _names(code: CodeType, *kinds: str) -> list[str]:
    """List the names that code loads by instructions ``LOAD_KIND`` of the given kinds, such as ``LOAD_GLOBAL``.

    Names in functions that are defined inside of the code are included.
    """
    wanted = [f"LOAD_{kind}" for kind in kinds]
    names = [each.argval for each in dis.get_instructions(code) if each.opname in wanted]
    return names + [name for each in code.co_consts if isinstance(each, CodeType) for name in _names(each, *kinds)]


def _find(holder: Any, name: str) -> Any:
    """Return the present value of a holder's key or attribute ``name``; a sentinel if it is undefined."""
    if type(holder) is dict:
        return holder.get(name, MISSING)
    try:
        return getattr(holder, name)
    except (AttributeError, ValueError):  # the latter of a variable in a closure that has no value yet
        return MISSING


def items_of(value: Any) -> list[Any]:
    """Return the items of a list, tuple or dict; none of a long one or of another object."""
    if type(value) not in (list, tuple, dict) or len(value) > LONGEST:
        return []
    return list(value.values() if type(value) is dict else value)


def _is_plain(value: Any) -> bool:
    """Return whether an object has attributes that a function may read, and is no module file, class or function."""
    return type(getattr(value, "__dict__", None)) is dict and not isinstance(value, (ModuleType, type, FunctionType))


def _copied(value: Any) -> Any:
    """Return a copy of a list or dict; return a long one unchanged, because its items are not compared."""
    return value.copy() if type(value) in (list, dict) and len(value) <= LONGEST else value


def _same(now: Any, then: Any) -> bool:
    """Return whether two objects are equal numbers or texts, or lists or dicts with identical items."""
    if type(now) is not type(then):
        return False
    if type(now) is list:
        return len(now) == len(then) and all(map(_same_item, now, then))
    if type(now) is dict:
        return now.keys() == then.keys() and all(map(_same_item, now.values(), then.values()))
    return type(now) in PLAIN and now == then


def _same_item(now: Any, then: Any) -> bool:
    return now is then or (type(now) is type(then) and type(now) in PLAIN and now == then)
