"""Text that everybody has: the sources of Python's own standard library, as characters to predict."""

from __future__ import annotations

import sysconfig
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from flnb.data import Dataset, ResampleDataset

CHARACTERS = "\n" + "".join(chr(code) for code in range(ord(" "), ord("~") + 1))
"""The vocabulary: files with other characters are left out."""
CODES = np.full(128, len(CHARACTERS), np.uint8)
CODES[[ord(character) for character in CHARACTERS]] = range(len(CHARACTERS))

Codes = np.ndarray[Any, np.dtype[np.uint8]]


def encoded(text: str) -> Codes | None:
    """Return each character's number in `CHARACTERS`; None if the text has a character that is not in it.

    >>> encoded("a b").tolist(), encoded("ä")
    ([66, 1, 67], None)
    """
    if not text.isascii():
        return None
    codes = CODES[np.frombuffer(text.encode("ascii"), np.uint8)]
    return None if len(codes) and codes.max() == len(CHARACTERS) else codes


def decoded(codes: Any) -> str:
    return "".join(CHARACTERS[int(code)] for code in codes)


def texts(folder: Path | None = None) -> tuple[Codes, Codes]:
    """Return training text and validation text: the top-level modules of the standard library, in order of their names.

    One file in ten is for validation, chosen by the CRC-32 of its name, so that the choice does not depend on other
    files. Files written by Python's build (`_sysconfigdata...`) are left out.
    """
    folder = Path(sysconfig.get_path("stdlib")) if folder is None else folder
    parts: tuple[list[Codes], list[Codes]] = ([], [])
    for path in sorted(folder.glob("*.py")):
        codes = None if path.name.startswith("_sysconfigdata") else encoded(path.read_text(encoding="utf-8"))
        if codes is not None:
            parts[zlib.crc32(path.name.encode()) % 10 == 0].append(codes)
    if not all(parts):
        raise FileNotFoundError(
            f"{folder} has {len(parts[0])} files of Python for training and {len(parts[1])} for validation; expected "
            "the standard library's sources"
        )
    return np.concatenate(parts[0]), np.concatenate(parts[1])


class Windows(Dataset):
    """A dataset of the pieces of `length` characters into which a text is cut.

    An item is a piece, and the characters that follow each of its characters: two arrays (length,) of int64.

    >>> [(x.tolist(), y.tolist()) for x, y in Windows(np.arange(6, dtype=np.uint8), 2)]
    [([0, 1], [1, 2]), ([2, 3], [3, 4])]
    """

    def __init__(self, text: Codes, length: int) -> None:
        self.text, self.length = text, length

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        start = self._check(index) * self.length
        piece = self.text[start : start + self.length + 1].astype(np.int64)
        return piece[:-1], piece[1:]


def spread(windows: Windows, count: int) -> ResampleDataset:
    """Return `count` of the windows at equal distances, a sample of all files."""
    return ResampleDataset(windows, np.linspace(0, len(windows) - 1, count).astype(np.int64))


def entropies(train: Codes, x: Any, y: Any) -> dict[str, float]:
    """Return the bits per character of two simple predictions of the characters `y`, which follow the characters `x`.

    The "unigram" prediction uses the frequency of each character in the training text, the "bigram" prediction the
    frequency of each pair of neighbouring characters. One is added to each count.
    """
    size = len(CHARACTERS)
    single = np.bincount(train, minlength=size) + 1.0
    pairs = np.bincount(train[:-1].astype(np.int64) * size + train[1:], minlength=size * size).reshape(size, size) + 1.0
    unigram, bigram = single / single.sum(), pairs / pairs.sum(1, keepdims=True)
    return {"unigram": float(-np.log2(unigram[y]).mean()), "bigram": float(-np.log2(bigram[x, y]).mean())}
