"""What core answers where its tools were deleted, as `.ci/core_alone.py` does; elsewhere these are skipped."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

import flnb

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(find_spec("flnb.explore") is not None, reason="the tools are here")


@pytest.mark.parametrize(
    ("ask", "tool"),
    [
        (lambda: flnb.compare_backends, "flnb.explore"),
        (lambda: flnb.dashboard, "flnb.widgets"),
        (lambda: flnb.testing, "flnb.testing"),
        (lambda: flnb.plot, "flnb.plot"),
        (lambda: flnb.memory.replay, "flnb.memory_lab"),
        (lambda: flnb.memory.load_snapshot, "flnb_telemetry.foreign"),
        (lambda: flnb.record(inputs=True).__enter__(), "flnb.explore"),
        (lambda: flnb.use_memory_manager(flnb.memory.Planned(plan="run.flnb")), "flnb.memory_lab"),
    ],
)
def test_a_tool_that_is_asked_for_is_named(ask: Callable[[], Any], tool: str) -> None:
    with pytest.raises(ImportError, match=rf"^{tool}[\w.]* is missing: this installation of flnb has the core without"):
        ask()


def test_what_holds_without_tools_says_what_it_lacks(tmp_path: Path) -> None:
    with flnb.record() as run:
        flnb.ones(3) + 1.0
    assert run.ops.rows
    with pytest.raises(ImportError, match=r"flnb_telemetry.foreign[\w.]* is missing"):
        run.to_torch_snapshot(tmp_path / "a.pickle")
    (tmp_path / "b.pickle").write_bytes(b"\x80\x04.")
    with pytest.raises(ImportError, match=r"flnb_telemetry.foreign[\w.]* is missing"):
        flnb.load_run(tmp_path / "b.pickle")
    small = flnb.memory.Caching(flnb.memory.SimulatedDevice("1MiB"))
    with pytest.raises(flnb.OutOfMemoryError) as caught:
        flnb.memory.allocate(small, 2 << 20)
    with pytest.raises(ImportError, match=r"flnb.memory_lab[\w.]* is missing"):
        _ = caught.value.report
