"""Finds the settings of a memory manager class, and values to try for each, from its constructor."""

from __future__ import annotations

import types
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from inspect import Parameter, signature
from typing import Any, Literal, get_args, get_origin, get_type_hints

from flnb_backends.memory.cached import Size
from flnb_telemetry import quantity
from flnb_telemetry.quantity import bytes_of

SMALLEST = 512
"""The smallest size in bytes that is tried, which is the granularity of most devices."""
SHARES = tuple(round(0.1 * tenth, 1) for tenth in range(1, 11))


@dataclass(frozen=True)
class Tunable:
    """A setting of a memory manager class, with values to try.

    Attributes:
        name: the name of the constructor's argument.
        default: the argument's default; the first of ``values`` if the argument has no default.
        values: the values to try, the default among them; empty if any text is possible.
        ordered: whether the values are numbers in order, for which a slider is suitable.
        required: whether the argument has no default, so that it must always be passed.
    """

    name: str
    default: Any
    values: tuple[Any, ...] = ()
    ordered: bool = False
    required: bool = False


def tunables(kind: type, largest: int, choices: dict[str, Any] | None = None) -> list[Tunable]:
    """List the settings of a memory manager class, from its constructor's annotations and defaults.

    The values to try are powers of two for sizes, tenths for shares, and multiples of the default for other numbers.
    A setting is a size if it is annotated as ``int | str | None``, or has a default such as ``"2MiB"`` or ``4 << 20``.
    Settings of base classes are included if the constructor accepts further keywords (``**options``).

    Args:
        kind: the class.
        largest: the largest size to try, in bytes.
        choices: a dict from the name of a setting to the values to try instead.

    Raises:
        TypeError: the class has no such setting; a setting without a default has no choices; or choices are no list.
        ValueError: the list of choices is empty.

    >>> from flnb_backends.memory.best_fit import BestFit
    >>> [(one.name, one.values[0], one.values[-1]) for one in tunables(BestFit, 4096)]
    [('step', None, '4KiB'), ('rounding', None, '4KiB')]
    """
    found = _parameters(kind)
    given = dict(choices or {})
    unknown = [name for name in given if name not in found]
    if unknown:
        raise TypeError(
            f"{kind.__name__} has no setting {unknown[0]!r} to tune; its settings: {', '.join(found) or 'none'}"
        )
    return [_tunable(kind, parameter, hint, largest, given.get(name)) for name, (parameter, hint) in found.items()]


def as_text(value: Any) -> str:
    """Return a setting's value as text for people: sizes with a unit, and "default" for None."""
    if value is None:
        return "default"
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, int) and not isinstance(value, bool) and value >= SMALLEST:
        return _size(value)
    return str(value)


def _parameters(kind: type) -> dict[str, tuple[Parameter, Any]]:
    """Return the settings of a class: a dict from the name of an argument to the argument and its annotation.

    The arguments are those of the constructor, and of the constructors of base classes, without the device.
    """
    found: dict[str, tuple[Parameter, Any]] = {}
    for base in kind.__mro__:
        init = base.__dict__.get("__init__")
        if not isinstance(init, types.FunctionType):
            continue
        parameters = list(signature(init).parameters.values())[1:]
        for one in parameters:
            if one.name != "device" and one.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
                found.setdefault(one.name, (one, _hint(init, one.name)))
        if not any(one.kind is Parameter.VAR_KEYWORD for one in parameters):
            break
    return found


def _hint(init: types.FunctionType, name: str) -> Any:
    """Return the annotation of an argument; None if there is none, or if its names exist for type checking only."""
    alone = types.SimpleNamespace(__annotations__={name: init.__annotations__.get(name)})
    try:
        return get_type_hints(alone, {"Size": Size} | init.__globals__)[name]  # managers import it for types alone
    except (NameError, AttributeError, TypeError, SyntaxError):
        return None


def _tunable(kind: type, parameter: Parameter, hint: Any, largest: int, given: Any) -> Tunable:
    """Return the `Tunable` for an argument of a manager's constructor.

    Args:
        kind: the manager's class.
        parameter: the argument, with its default.
        hint: the argument's annotation.
        largest: the largest size to try, in bytes.
        given: the values to try, if the caller has chosen them; else None.
    """
    required = parameter.default is Parameter.empty
    default = None if required else parameter.default
    if given is not None:
        values = _listed(kind, parameter.name, given)
        numbers = all(_is_number(value) or _is_size(value) or value is None for value in values)
        if not required and default not in values:
            values = (default, *values)
        return Tunable(parameter.name, values[0] if required else default, values, numbers, required)
    if required:
        raise TypeError(
            f"{kind.__name__}: the setting {parameter.name!r} has no default; give the values to try, as in "
            f"tune(..., {parameter.name}=[...])"
        )
    values, ordered = _values(hint, default, largest)
    return Tunable(parameter.name, default, values, ordered)


def _listed(kind: type, name: str, given: Any) -> tuple[Any, ...]:
    """Return the caller's choices for the setting ``name`` as a tuple; raise an error if they are no list or empty."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(
            f"{kind.__name__}: got {name}={given!r}, expected the values to try, as in tune(..., {name}=[{given!r}])"
        )
    values = tuple(given)
    if not values:
        raise ValueError(f"{kind.__name__}: got no values to try for {name}; expected one or more")
    return values


def _values(hint: Any, default: Any, largest: int) -> tuple[tuple[Any, ...], bool]:
    """Return the values to try for a setting, and whether these are numbers in order.

    Args:
        hint: the annotation of the setting.
        default: its default; None if that stands for "no limit" or the like.
        largest: the largest size to try, in bytes.
    """
    kinds = {type(default), *(get_args(hint) or (hint,))} - {type(None), None}
    if bool in kinds:
        return (False, True), False
    literal = next((one for one in (hint, *get_args(hint)) if get_origin(one) is Literal), None)
    if literal is not None:
        return tuple(dict.fromkeys((default, *get_args(literal)))), False
    chosen = next((one for one in kinds if isinstance(one, type) and issubclass(one, Enum)), None)
    if chosen is not None:
        return tuple(dict.fromkeys((*([default] if default is None else []), *chosen))), False
    if _is_size(default) or (default is None and int in kinds):
        return _sizes(default, largest), True
    if float in kinds and (default is None or 0 <= default <= 1):
        return (*([None] if default is None else []), *sorted({*SHARES, *([] if default is None else [default])})), True
    if _is_number(default) and default:
        scaled = [default * 2.0**power for power in range(-4, 5)]
        values = [max(1, round(value)) for value in scaled] if isinstance(default, int) else scaled
        return tuple(sorted({*values, default})), True
    return ((0, *(1 << power for power in range(9))), True) if default == 0 else ((), False)


def _sizes(default: Any, largest: int) -> tuple[Any, ...]:
    """Return the sizes to try: powers of two up to about ``largest`` bytes, and the default, first if it is None.

    The sizes are ints if the default is an int, otherwise texts such as "2MiB".
    """
    powers = range(SMALLEST.bit_length() - 1, max(SMALLEST, largest - 1).bit_length() + 1)
    sizes = {1 << power: 1 << power if isinstance(default, int) else _size(1 << power) for power in powers}
    if default is None:
        return (None, *sizes.values())
    sizes[bytes_of(default)] = default
    return tuple(value for _, value in sorted(sizes.items()))


def _size(nbytes: int) -> str:
    """Return a size as the shortest exact text: "64MiB", "700B"."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if not nbytes % (1 << shift):
            return f"{nbytes >> shift}{unit}"
    return f"{nbytes}B"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_size(value: Any) -> bool:
    """Return whether a value is a number of bytes: a string with a unit, or a whole number of 512 or more."""
    if isinstance(value, str):
        try:
            return bool(quantity.bytes_of(value))
        except ValueError:
            return False
    return isinstance(value, int) and not isinstance(value, bool) and value >= SMALLEST
