"""Prefetched items come in order; failing and dying workers are told; nothing is left behind."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import numpy as np
import pytest

import flnb
from flnb.data import BatchDataset, FileBlobDataset, PrefetchDataset, ShuffleDataset, TensorDataset
from flnb.dispatch import state

HERE = Path(__file__).parent
BOTH = pytest.mark.parametrize("processes", [False, True], ids=["threads", "processes"])


@pytest.fixture(autouse=True)
def nothing_is_left():
    threads, blocks = set(threading.enumerate()), shared()
    yield
    gc.collect()
    deadline = time.monotonic() + 20
    while (rest := (set(threading.enumerate()) - threads, multiprocessing.active_children(), shared() - blocks)) != (
        set(),
        [],
        set(),
    ):
        assert time.monotonic() < deadline, rest
        time.sleep(0.05)


def shared() -> set[str]:
    folder = Path("/dev/shm")
    return {path.name for path in folder.glob("psm_*")} if folder.is_dir() else set()


@BOTH
def test_items_are_the_datasets_in_order(worked, processes):
    prefetched = PrefetchDataset(worked.Worked(12), workers=2, ahead=3, processes=processes)
    for _ in range(2):
        items = list(prefetched)
        assert [item[0] for item in items] == list(range(12))
        assert [item[1].tolist() for item in items] == [np.full((i + 1, 100), i).tolist() for i in range(12)]
        pids, names = {item[2] for item in items}, {item[3] for item in items}
        assert (os.getpid() in pids) is not processes
        assert processes or all(name.startswith("flnb-prefetch") for name in names)
    assert (len(prefetched), prefetched[-1][0]) == (12, 11)
    prefetched.close()


@BOTH
def test_epochs_shuffle_batch_and_resume_as_without(tmp_path, processes):
    FileBlobDataset.write(tmp_path / "b", ((np.full(3, i), i) for i in range(20)))

    def make():
        return BatchDataset(ShuffleDataset(FileBlobDataset(tmp_path / "b"), seed=1), 3)

    plain, prefetched = make(), PrefetchDataset(make(), processes=processes)
    expected = [[y.tolist() for _, y in plain] for _ in range(3)]
    assert [[y.tolist() for _, y in prefetched] for _ in range(2)] == expected[:2]
    prefetched.state = {"epoch": 2, "index": 4, "size": 7}
    rest = list(prefetched)
    assert [y.tolist() for _, y in rest] == expected[2][4:]
    assert isinstance(rest[0][0], flnb.Tensor)
    prefetched.close()


@BOTH
def test_an_error_comes_in_its_turn_with_the_workers_stack(worked, processes):
    prefetched = PrefetchDataset(worked.Worked(8, 3, worked.fail), processes=processes)
    for _ in range(2):
        seen = []
        with pytest.raises(KeyError, match="no such record") as caught:
            for item in prefetched:
                seen.append(item[0])  # noqa: PERF401 - what came before the error counts
        assert seen == [0, 1, 2]
        told = "".join(traceback.format_exception(caught.value))
        assert "worked.py" in told
        assert "in fail" in told
        assert "while a worker of PrefetchDataset loaded item 3 of 8" in told
    prefetched.close()


@BOTH
def test_a_worker_that_exits_does_not_end_the_program(worked, processes):
    prefetched = PrefetchDataset(worked.Worked(4, 1, worked.leave), processes=processes)
    with pytest.raises(RuntimeError, match=r"SystemExit\(4\) in a worker of PrefetchDataset at item 1 of 4"):
        list(prefetched)
    prefetched.close()


def test_an_error_that_cannot_be_pickled_is_told_by_its_text(worked):
    prefetched = PrefetchDataset(worked.Worked(2, 0, worked.fail_awkwardly), processes=True)
    with pytest.raises(RuntimeError, match="Awkward: this and that") as caught:
        list(prefetched)
    assert "in fail_awkwardly" in "".join(traceback.format_exception(caught.value))
    prefetched.close()


def test_a_dead_worker_is_an_error_and_the_next_epoch_has_new_ones(worked):
    dataset = worked.Worked(8, 5, worked.die)
    prefetched = PrefetchDataset(dataset, processes=True)
    with pytest.raises(RuntimeError, match="a worker process of PrefetchDataset died"):
        list(prefetched)
    dataset.at = -1
    pids = {item[2] for item in prefetched}
    os.kill(pids.pop(), signal.SIGKILL)
    with pytest.raises(RuntimeError, match="a worker process of PrefetchDataset died"):
        for _ in range(50):
            list(prefetched)
    prefetched.close()


@BOTH
def test_an_epoch_that_is_left_ends_its_threads(worked, processes):
    prefetched = PrefetchDataset(worked.Worked(50), processes=processes)
    for item in prefetched:
        if item[0] == 4:
            break
    assert not any(thread.name.startswith("flnb-prefetch") for thread in threading.enumerate())
    assert prefetched.state["index"] == 5
    assert [item[0] for item in prefetched] == list(range(50))  # and without close(), when the dataset goes


def test_threads_compute_where_the_loop_does():
    class Other(flnb.backends.NumpyBackend):
        name = "other"

    with flnb.use_backend(Other) as backend:
        seen = []

        class Seen(TensorDataset):
            def __getitem__(self, index):
                seen.append(state.current().backend)
                return super().__getitem__(index)

        list(PrefetchDataset(Seen(np.arange(4))))
    assert seen == [backend] * 4


def test_what_cannot_be_sent_is_told():
    class Local(TensorDataset):
        pass

    with pytest.raises(TypeError, match=r"pickled copy of the Local.*or use threads"):
        list(PrefetchDataset(Local(np.arange(4)), processes=True))


def test_what_a_worker_cannot_import_is_told(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "gone.py").write_text("from flnb.data import TensorDataset\nclass Gone(TensorDataset): pass\n")
    import gone

    dataset = gone.Gone(np.arange(4))
    (tmp_path / "gone.py").unlink()
    prefetched = PrefetchDataset(dataset, processes=True)
    with pytest.raises(RuntimeError, match="could not unpickle the dataset: No module named 'gone'"):
        list(prefetched)
    prefetched.close()


def test_workers_end_when_the_process_that_iterates_is_killed(worked, tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(
        f"import os, signal, sys\nsys.path.insert(0, {str(HERE)!r})\n"
        "from worked import Worked\nfrom flnb.data import PrefetchDataset\n"
        "if __name__ == '__main__':\n"
        "    print(*{item[2] for item in PrefetchDataset(Worked(6), processes=True)}, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    pids = [int(pid) for pid in done.stdout.split()]
    assert pids
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_script_without_a_main_guard_is_an_error_that_names_it(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(
        "import numpy as np\nfrom flnb.data import PrefetchDataset, TensorDataset\n"
        "print(list(PrefetchDataset(TensorDataset(np.arange(4)), processes=True)))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert 'script without `if __name__ == "__main__":`' in done.stderr


@pytest.mark.parametrize("arguments", [{"workers": 0}, {"ahead": 0}])
def test_arguments_are_checked(arguments):
    with pytest.raises(ValueError, match="workers >= 1 and ahead >= 1"):
        PrefetchDataset(TensorDataset(np.arange(3)), **arguments)


def test_an_empty_dataset_has_empty_epochs():
    assert list(PrefetchDataset(TensorDataset(np.zeros((0, 2))))) == []
