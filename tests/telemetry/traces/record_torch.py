"""Makes the traces beside it, with torch 2.13 and its profiler: python record_torch.py FOLDER."""

import gzip
import re
import sys
import tempfile
import threading
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

CPU = [ProfilerActivity.CPU]


def store(profiler, name):
    """Compress the trace; the name of the temporary file in it, and the time in gzip's header, are left out."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        text = re.sub(r'"traceName": "[^"]*"', f'"traceName": "{name}.json"', path.read_text())
    with open(Path(sys.argv[1]) / f"torch-{name}.json.gz", "wb") as file, gzip.GzipFile("", "wb", 9, file, 0) as packed:
        packed.write(text.encode())


def mlp():
    """Three training steps of an MLP, with shapes and memory."""
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
    options = {"record_shapes": True, "profile_memory": True, "on_trace_ready": lambda p: store(p, "mlp")}
    with profile(activities=CPU, schedule=schedule(wait=0, warmup=1, active=3, repeat=1), **options) as profiler:
        for _ in range(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
            profiler.step()


def conv():
    """Forward and backward of a small network, with stacks, modules, and a name that would end an HTML element."""
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    x = torch.randn(2, 1, 8, 8)
    verbose = torch._C._profiler._ExperimentalConfig(verbose=True)
    options = {"record_shapes": True, "profile_memory": True, "with_stack": True, "with_modules": True}
    with profile(activities=CPU, experimental_config=verbose, **options) as profiler:
        with record_function("forward part"):
            y = net(x)
        with record_function("backward </script> part"):
            y.sum().backward()
    store(profiler, "conv")


def threads():
    """Four threads, each in an annotation of its own."""

    def work(number):
        with record_function(f"worker {number}"):
            a = torch.ones(16, 16)
            for _ in range(5):
                a = (a @ a).tanh()

    every = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(activities=CPU, with_flops=True, experimental_config=every) as profiler:
        running = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        work(9)
    store(profiler, "threads")


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for make in (mlp, conv, threads):
        make()
