"""Texts from files and users made safe to display: shortened, on one line, without control characters."""

from __future__ import annotations

import unicodedata
from html import escape
from typing import Any

LONGEST, LONGEST_LINE = 200, 1000  # the most characters of a name, and of a line of a text
WHOLE = 1 << 30  # for code, which is shown in full, to be copied
_HARMLESS = frozenset("\u200c\u200d")  # joiners, which scripts and emoji need
_CONTROL = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


def safe_text(text: str, longest: int = LONGEST) -> str:
    r"""Make a name safe to display in a terminal or, after it is escaped as HTML, in a page.

    Control characters such as ESC, direction marks, line separators and lone surrogates become escapes like \x1b; a
    text of more than `longest` characters is shortened in its middle.

    >>> print(safe_text("net\x1b[2J" + "x" * 1000, longest=24))
    net\x1b[2Jxxxxx…xxxxxxxx
    """
    if len(text) <= longest and text.isprintable():
        return text
    shown = "".join(map(_escaped, text if len(text) <= 2 * longest else f"{text[:longest]}{text[-longest:]}"))
    if len(shown) <= longest and len(text) <= 2 * longest:
        return shown
    end = longest // 3
    return f"{shown[: longest - end - 1]}…{shown[len(shown) - end :]}"


def safe_lines(text: str, longest: int = LONGEST_LINE) -> str:
    """Make each line of a text safe to display (see `safe_text`)."""
    return "\n".join([safe_text(line, longest) for line in text.split("\n")])


def html_text(text: str, longest: int = LONGEST_LINE) -> str:
    r"""Make a text safe to display and escape it for HTML or SVG, also within an attribute.

    Lines of more than `longest` characters are truncated.

    >>> html_text('<b>\x1b[31m"red"')
    '&lt;b&gt;\\x1b[31m&quot;red&quot;'
    """
    return escape(safe_lines(text, longest))


def _escaped(character: str) -> str:
    """Return a character, or its escape if it is a control character."""
    if unicodedata.category(character) not in _CONTROL or character in _HARMLESS:
        return character
    return character.encode("unicode_escape").decode("ascii")


def brief(value: Any) -> str:
    """Describe a value from a file for an error message, without inspecting nested values.

    >>> brief("name"), brief(3), brief([[1], [2]]), brief({"device": 0})
    ("'name'", '3', 'a list of 2', "a dict with 'device'")
    """
    if isinstance(value, str):
        return f"'{safe_text(value, 60)}'"
    if value is None or isinstance(value, (bool, float)):
        return repr(value)
    if isinstance(value, int):
        return repr(value) if value.bit_length() <= 128 else f"an integer of {value.bit_length():,} bits"
    if isinstance(value, dict):
        keys = [brief(key) for key in list(value)[:8] if isinstance(key, (str, int))]
        return f"a dict with {', '.join(keys)}" if keys else f"a dict of {len(value):,}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value):,}"
    return f"of type {type(value).__name__}"
