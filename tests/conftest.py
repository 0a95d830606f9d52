"""Shared by all tests."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

# Set before NumPy loads: on few cores, threads of BLAS only make times unsteady.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")  # jupyter_core warns without it, and warnings are errors here

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in what a shell runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked slow or gpu run only where they are asked for: ``pytest -m slow``."""
    for name in ("slow", "gpu"):
        if name not in config.option.markexpr:
            marked = [item for item in items if item.get_closest_marker(name)]
            config.hook.pytest_deselected(items=marked)
            items[:] = [item for item in items if item not in set(marked)]


@pytest.fixture(autouse=True, scope="module")
def _settled() -> None:
    """The collector need not walk ten thousand collected tests each time that one of them calls it."""
    gc.collect()
    gc.freeze()


PARTS = {
    "backend": "set_backend", "manager": "set_memory_manager", "device": "set_memory_device", "tape": "set_tape",
}  # fmt: skip
"""Parts of the session, and the function that sets each."""


@pytest.fixture(autouse=True, scope="module")
def _same_session() -> Iterator[None]:
    """Fail a module that leaves the session with parts of other names than it found, and restore them for the next."""
    import flnb
    from flnb.dispatch import state

    session, dtype = state.session, flnb.default_dtype()
    before = {name: getattr(session, name) for name in PARTS}
    yield
    found = {name: getattr(state.session, name).name for name in PARTS}
    changed = [name for name, part in before.items() if found[name] != part.name]
    for name in changed:
        getattr(flnb, PARTS[name])(before[name])
    assert not changed, f"the module leaves the session with {found}: restore its {', '.join(changed)}"
    assert state.session is session, "the module leaves another session"
    assert flnb.default_dtype() == dtype, "the module leaves another default dtype"


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What goes, goes by reference counting alone."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def numpy_session() -> Iterator[None]:
    """The session's backend is that of an installation without extras, as in the examples of docstrings."""
    import flnb
    from flnb.dispatch import state

    before = state.session.backend
    flnb.set_backend("numpy")
    yield
    flnb.set_backend(before)


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns as often as Python can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture
def worked(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module `worked` of tests/data, importable here and in worker processes."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "data")
    return importlib.import_module("worked")
