"""What the dashboard answers to "open in a cell"."""

import contextlib
import io

import flnb
from flnb.widgets.model import code_of


def recorded(**options):
    with flnb.record("asked", **options) as run:
        with flnb.scope("first"):
            flnb.exp(flnb.zeros((2,)))
        with flnb.scope("second"):
            flnb.exp(flnb.ones((2,)))
    return run


def test_the_last_call_in_the_scope_is_answered_with_code_that_runs():
    run = recorded(inputs=True)
    found = code_of(run, {"type": "code", "op": "exp", "scope": "first"})
    assert found["said"] == "op 1 of 'asked', exp"
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(found["code"], {})
    assert said.getvalue() == "the same bits as recorded: True\n"
    assert "of 'asked', exp" in code_of(run, {"type": "code", "op": "exp"})["said"]
    assert code_of(run, {"type": "code", "op": "exp"})["said"].startswith("op 3")


def test_another_scope_is_better_than_none():
    assert code_of(recorded(inputs=True), {"type": "code", "op": "exp", "scope": "elsewhere"})["said"].startswith(
        "op 3"
    )


def test_without_inputs_or_such_an_op_the_reason_is_told():
    reason = "the inputs of ops were not kept: record with flnb.record(inputs=True)"
    assert code_of(None, {"type": "code", "op": "exp"}) == {"type": "code", "code": "", "said": reason}
    assert code_of(recorded(), {"type": "code", "op": "exp"})["said"] == reason
    assert code_of(recorded(inputs=True), {"type": "code", "op": "sin"})["said"].startswith(
        "no call of sin with its inputs was kept; inputs of 4 ops kept"
    )
    assert code_of(recorded(inputs=True), {"type": "code"})["code"] == ""
