"""Calls of the CUDA driver API's functions, with errors as exceptions that say which ops were launched last."""

from __future__ import annotations

import ctypes
from collections import deque
from ctypes import byref, c_char_p, c_int
from typing import Any

from flnb_backends.tensor.cuda.api import CAPTURE, LASTING, SIGNATURES, DriverError

NOT_READY = 600


class Calls:
    """The functions of a library with the driver API.

    Attributes:
        path: the path of the library, or its name.
        recent: the names of the ops launched last.
        failed: whether a kernel's error was reported, after which every call fails.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        library = ctypes.CDLL(path)
        self._calls: dict[str, Any] = {}
        for name, types in (SIGNATURES | CAPTURE).items():
            call = getattr(library, name, None)
            if call is None and name in CAPTURE:
                continue
            if call is None:  # elapsed time has no second version before CUDA 12.8
                call = getattr(library, name.removesuffix("_v2"))
            call.argtypes, call.restype = types, c_int
            self._calls[name] = call
        self.recent, self.failed = deque[str](maxlen=8), False
        self._run("cuInit", 0)

    def blame(self, error: str) -> str:
        """Return a text about the likely cause of an error, given its name; "" if the name is not in `LASTING`.

        The text is added to the error's message. It names the ops that were launched last, or says that an earlier
        error has made the device unusable.
        """
        if error not in LASTING:
            return ""
        if self.failed:
            return "; it failed before: every further call does, until the process ends"
        self.failed = True
        newest = ", ".join(reversed(self.recent)) or "none"
        return f"; {self.culprit() or 'a kernel that was launched before'}; the last ops, the newest first: {newest}"

    def culprit(self) -> str:
        """Return a description of the kernel that failed; "" except on an emulated device: a GPU does not report it."""
        return ""

    def _check(self, name: str, error: int) -> None:
        if error:
            said = [c_char_p(), c_char_p()]
            for call, found in zip(("cuGetErrorName", "cuGetErrorString"), said, strict=True):
                self._calls[call](error, byref(found))
            words = [(each.value or f"error {error}".encode()).decode() for each in said]
            raise DriverError(name, words[0], f"{words[1]}{self.blame(words[0])}")

    def _run(self, name: str, *arguments: Any) -> None:
        self._check(name, self._calls[name](*arguments))

    def try_call(self, name: str, *arguments: Any) -> int:
        """Call a function of the API; returns its status, 0 for success, and raises nothing."""
        return int(self._calls[name](*arguments))

    def _get(self, name: str, *arguments: Any) -> Any:
        """Call the API's function ``name``, whose first argument points to its result; returns the result."""
        found = self._calls[name].argtypes[0]._type_()
        self._run(name, byref(found), *arguments)
        return found.value

    def _finished(self, name: str, handle: int) -> bool:
        error = self._calls[name](handle)
        if error != NOT_READY:
            self._check(name, error)
        return bool(error == 0)
