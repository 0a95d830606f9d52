"""What a built wheel must do where it alone is installed. Run from outside the checkout with `core` or `full`.

core: numpy is the only other package; training works, and what needs an extra says which one.
full: with the extras `lab` and `cpu`; the backend is `cpu` where that exists; `flnb lab` copies the quickstart to the
working folder and serves it.
"""

import importlib.metadata
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FLNB = Path(sys.executable).parent / "flnb"


def train() -> None:
    """Fit a line with what `import flnb` brings along."""
    import flnb

    flnb.manual_seed(0)
    x = flnb.random.uniform((64, 3))
    target = x @ flnb.asarray([[1.0], [-2.0], [3.0]])
    weight = flnb.Variable(flnb.zeros((3, 1)))
    with flnb.record() as run:
        for _ in range(300):
            loss = ((flnb.Variable(x, requires_grad=False) @ weight - target) ** 2).mean()
            loss.backward()
            with flnb.no_grad():
                weight = flnb.Variable(weight.data - 0.5 * weight.grad)
    assert loss.item() < 1e-3, loss.item()
    assert run.dropped == 0, run.dropped
    assert "matmul" in str(run.ops), run.ops


def active() -> str:
    """The name of the backend that computes unless another is chosen."""
    from flnb.dispatch import state

    return state.current().backend.name


def expect(command: list[str], status: int, *words: str) -> None:
    """Run a command; its exit status and what it must say."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    output = done.stdout + done.stderr
    assert done.returncode == status, f"{command}: status {done.returncode}, expected {status}\n{output}"
    for word in words:
        assert word in output, f"{command}: {word!r} is not in\n{output}"


def core() -> None:
    """The wheel with numpy alone."""
    others = {distribution.name for distribution in importlib.metadata.distributions()} - {"flnb", "numpy"}
    assert not others, f"a core install must bring numpy alone, found also {sorted(others)}"
    train()
    import flnb

    said = ""
    try:
        flnb.dashboard()
    except ImportError as error:
        said = str(error)
    assert "flnb[lab]" in said, f"flnb.dashboard() without its extra said {said!r}"
    expect([str(FLNB), "lab"], 2, "jupyterlab", "pip install 'flnb[lab]'")
    expect([str(FLNB), "doctor"], 0, "extra lab", "missing", "numpy", "needs cffi; install it with")
    assert active() == "numpy", active()
    print("core: import, training, recording and the extras' errors are fine")


def full() -> None:
    """The wheel with the extras lab and cpu, `flnb lab` included."""
    train()
    expected = "cpu" if (sys.platform, platform.machine()) == ("linux", "x86_64") else "numpy"
    assert active() == expected, active()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "quickstart.ipynb").write_text("somebody's own")
        log = Path(folder, "lab.log")
        with log.open("w") as stream:
            lab = subprocess.Popen(
                [str(FLNB), "lab", "--no-browser"], cwd=folder, stdout=stream, stderr=subprocess.STDOUT
            )
            deadline = time.monotonic() + 90
            while not (url := re.search(r"flnb lab: (http\S+)", log.read_text())):
                assert lab.poll() is None, log.read_text()
                assert time.monotonic() < deadline, f"no URL after 90 s:\n{log.read_text()}"
                time.sleep(0.2)
            lab.send_signal(signal.SIGINT)
            assert lab.wait(30) == 0, log.read_text()
        assert "quickstart-1.ipynb?token=" in url.group(1), url.group(1)
        assert Path(folder, "quickstart-1.ipynb").stat().st_size > 1000
        assert Path(folder, "quickstart.ipynb").read_text() == "somebody's own"
    print("full: training, and flnb lab from the wheel, are fine")


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    {"core": core, "full": full}[sys.argv[1]]()
