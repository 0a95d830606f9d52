"""Ctrl-C at lines drawn at random; `python -m tests.interrupts` tries all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def tried(*options):
    command = [sys.executable, "-m", "tests.interrupts", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.parametrize(
    "options", [("--sample", "60"), ("--sample", "20", "--cold"), ("--sample", "10", "--manager", "native")], ids=str
)
def test_a_training_step_can_be_interrupted_anywhere(options):
    done = tried(*options, "--seed", "11")
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_broken_is_told():
    """A harness that sees nothing would pass as well: without its list, it finds what Python cannot protect."""
    done = tried("--only", "(self._bootstrap", "--unprotected", os.devnull)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "threads are left: ['flnb-telemetry']" in done.stdout
