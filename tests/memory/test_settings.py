"""The arguments of a memory manager's constructor: a device, and settings from which an equal manager can be made."""

from __future__ import annotations

import re
from functools import wraps
from typing import Any

import pytest

import flnb
from flnb.memory import Caching, SimulatedDevice, Trace


@pytest.mark.parametrize("device", [3, "8GiB", SimulatedDevice])
def test_what_is_no_device_is_refused(device: Any) -> None:
    says = rf"Caching\(device={re.escape(repr(device))}\): expected a MemoryDevice, such as flnb.memory.HostDevice"
    with pytest.raises(TypeError, match=says):
        Caching(device)


def test_settings_of_constructors_that_hide_the_names_of_their_arguments() -> None:
    def behind(function: Any) -> Any:
        return lambda *given, **named: function(*given, **named)

    class Shown(Caching):
        __init__ = wraps(Caching.__init__)(behind(Caching.__init__))  # type: ignore[assignment]

    class Hidden(Caching):
        __init__ = behind(Caching.__init__)

    class InC(flnb.memory.Native):
        __init__ = dict.__init__  # type: ignore[assignment]

    device = SimulatedDevice()
    assert Shown(device, "64MiB").constructor_arguments == {"split_limit": "64MiB"}
    hidden = Hidden(device, "64MiB", recycling_limit="1GiB")
    assert hidden.split_limit == 64 << 20
    assert hidden.constructor_arguments == {"argument 2": "64MiB", "recycling_limit": "1GiB"}
    assert Hidden(device).constructor_arguments == {}
    with pytest.raises(
        TypeError, match=r"cannot be created for the simulated device: .*unexpected keyword argument 'argument 2'"
    ):
        flnb.memory.replay(Trace.of_calls([1], [8]), [hidden])
    with pytest.raises(TypeError, match="descriptor '__init__' requires a 'dict' object"):
        InC(device)
