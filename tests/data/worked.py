"""Datasets that worker processes import: some fail, die or say who made an item."""

import os
import signal
import sys
import threading
import time

import numpy as np

from flnb.data import Dataset


class Worked(Dataset):
    """Item i is (i, a matrix of i's that grows with i, the process, the thread's name); `what` happens at `at`."""

    def __init__(self, count, at=-1, what=None):
        self.count, self.at, self.what = count, at, what

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        index = self._check(index)
        if index == self.at:
            self.what()
        time.sleep(0.002 * (index % 3))  # so that later items are ready before earlier ones
        return index, np.full((index + 1, 100), index), os.getpid(), threading.current_thread().name


class Awkward(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def fail():
    raise KeyError("no such record")


def fail_awkwardly():
    raise Awkward("this", "that")


def leave():
    sys.exit(4)


def die():
    os._exit(3)


def be_killed():
    os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does where memory has run out
