"""Lines of code by language: lines that hold something beside blanks and comments.

In Python, strings that stand alone as statements (docstrings) are comments, as `cloc` counts them. In the languages
with C's comments and in those with ``#``, strings are distinguished from comments. Generated and third-party files are
counted like others.
"""

from __future__ import annotations

import io
import os
import re
import tokenize
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["LANGUAGES", "by_language", "count", "language_of", "sources"]

LANGUAGES = {
    "Python": ".py .pyi",
    "Cython": ".pyx .pxd .pxi",
    "C, C++, CUDA": ".c .cc .cpp .cxx .h .hh .hpp .hxx .inl .ipp .cu .cuh",
    "TypeScript": ".ts",
    "CSS": ".css",
    "YAML": ".yaml .yml",
    "CMake": ".cmake",
}
"""The paper counts C, C++, Python, YAML, CUDA and CMake (footnote 4); the others are what flnb and NumPy add."""

HASHED = ("Cython", "YAML", "CMake")
OMITTED = {"test", "tests", "node_modules", "static", "build", "third_party", "__pycache__"}
"""Folders whose files are not counted: tests, other projects' code, and files built from sources that are counted."""

_SUFFIXES = {suffix: language for language, suffixes in LANGUAGES.items() for suffix in suffixes.split()}
_STRING = r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
_SLASHED = re.compile(rf"(?P<kept>{_STRING}|`(?:\\.|[^`\\])*`)|//[^\n]*|/\*.*?\*/", re.DOTALL)
_HASHED = re.compile(rf"(?P<kept>{_STRING})|#[^\n]*")
_LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def language_of(path: Path) -> str | None:
    """Return the language of a file, by the file's name; None if lines of such files are not counted."""
    return "CMake" if path.name == "CMakeLists.txt" else _SUFFIXES.get(path.suffix)


def count(text: str, language: str) -> int:
    """Return the number of lines of a source text that contain code.

    >>> count('\"\"\"Twice.\"\"\"\\n\\ndef twice(x):  # a number\\n    return 2 * x\\n', "Python")
    2
    """
    if language == "Python":
        try:
            return len(_python(text))
        except (SyntaxError, tokenize.TokenError):  # a template, or another version's syntax
            language = "Cython"
    pattern = _HASHED if language in HASHED else _SLASHED
    bare = pattern.sub(lambda found: found["kept"] or "\n" * found[0].count("\n"), text)
    return sum(bool(line.strip()) for line in bare.splitlines())


def _python(text: str) -> set[int]:
    """Return the numbers of the lines with Python code, without docstrings and blank lines."""
    code: set[int] = set()
    statement: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NEWLINE:
            if any(part.type != tokenize.STRING for part in statement):
                code.update(*(range(part.start[0], part.end[0] + 1) for part in statement))
            statement = []
        elif token.type not in _LAYOUT:
            statement.append(token)
    lines = text.splitlines()
    return {number for number in code if lines[number - 1].strip()}


def sources(folder: Path) -> Iterator[Path]:
    """Return the files in a folder whose lines are counted."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in OMITTED and not name.startswith("."))
        here = type(folder)(parent)
        yield from (here / name for name in sorted(files) if language_of(here / name))


def by_language(files: Iterable[Path]) -> dict[str, int]:
    """Count the lines of code of some files by language, the largest first."""
    lines: Counter[str] = Counter()
    for path in files:
        if language := language_of(path):
            lines[language] += count(path.read_text(errors="replace"), language)
    return dict(lines.most_common())
