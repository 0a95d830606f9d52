"""Records per second of a dataset on disk: `PrefetchDataset` beside torch's `DataLoader`, where torch is installed.

`python -m benchmarks loading` writes sets of synthetic uint8 images with labels: as arrays, compressed by zlib, and as
JPEG where Pillow is installed (decoding then costs most of the time). Both sides read them with the same function, one
record at a time: bytes from the file, float32, normalised, every other image mirrored. Both make batches in two worker
processes or threads, which are started once. They take turns, an epoch each; ratios are taken round by round. First it
is checked that both return the same batches. Batches are not used, so the rates are those of loading alone. The system
has the files in memory.
"""

from __future__ import annotations

import argparse
import io
import math
import statistics
import tempfile
import time
import zlib
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.report import table, write
from flnb.bench import in_turn
from flnb.data import BatchDataset, Dataset, FileBlobDataset, PrefetchDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

WORKERS, GOAL = 2, 1.0
SETS = {
    "small": (32, "array"),
    "medium": (96, "array"),
    "large": (224, "array"),
    "compressed": (224, "zlib"),
    "jpeg": (224, "jpeg"),
}
"""For each data set the side of its square images in pixels, and how the images are stored."""


def make(path: Path, records: int, side: int, kept: str) -> None:
    """Write a dataset of random uint8 images (3, side, side) with labels to a folder.

    Args:
        path: the folder.
        records: the number of images.
        side: the height and the width of an image.
        kept: the form in which images are stored: "array" (uncompressed), "zlib" or "jpeg". Only 32 of the 256 possible
            values of a pixel are drawn, so that compression has an effect.
    """
    random = np.random.default_rng(0)

    def image() -> Any:
        pixels = random.integers(0, 32, (3, side, side), np.uint8) * np.uint8(8)
        return pixels if kept == "array" else np.frombuffer(COMPRESS[kept](pixels), np.uint8)

    FileBlobDataset.write(path, ((image(), np.int64(i % 10)) for i in range(records)))


def jpeg(pixels: Any) -> bytes:
    """Encode uint8 pixels (3, side, side) as a JPEG file of Pillow's default quality."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(file, "JPEG")
    return file.getvalue()


def decoded(kept: Any) -> Any:
    """Decode an image that was compressed by zlib or as JPEG; returns uint8 pixels (3, side, side)."""
    if kept[:2].tobytes() == JPEG_BEGINS:
        from PIL import Image

        return np.asarray(Image.open(io.BytesIO(kept))).transpose(2, 0, 1)
    image = np.frombuffer(zlib.decompress(kept), np.uint8)
    side = math.isqrt(image.size // 3)
    return image.reshape(3, side, side)


COMPRESS: dict[str, Callable[[Any], bytes]] = {"zlib": lambda pixels: zlib.compress(pixels, 1), "jpeg": jpeg}
JPEG_BEGINS = b"\xff\xd8"


def record(blob: FileBlobDataset, index: int) -> tuple[Any, Any]:
    """Read image number ``index`` and its label, and prepare the image, as the dataset of a user would."""
    image, label = blob.arrays(index)
    if image.ndim == 1:
        image = decoded(image)
    pixels = image.astype(np.float32)
    pixels -= 127.5
    pixels *= 1 / 64
    return (np.ascontiguousarray(pixels[:, :, ::-1]) if index % 2 else pixels), int(label)


class Records(Dataset):
    """A dataset of flnb that reads the images on disk."""

    def __init__(self, path: Path) -> None:
        self.blob = FileBlobDataset(path)

    def __len__(self) -> int:
        return len(self.blob)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return record(self.blob, self._check(index))


class PlainRecords:
    """A dataset for torch that reads the images on disk; torch requires no base class."""

    def __init__(self, path: Path) -> None:
        self.blob = FileBlobDataset(path)

    def __len__(self) -> int:
        return len(self.blob)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return record(self.blob, index)


def torch_loader(path: Path, batch: int) -> Iterable[Any]:
    """Return torch's `DataLoader` of the dataset at ``path``, with two worker processes."""
    from torch.utils.data import DataLoader

    data: Any = PlainRecords(path)
    return DataLoader(data, batch_size=batch, num_workers=WORKERS, persistent_workers=True)


def first_batch(loader: Iterable[Any]) -> tuple[float, list[Any]]:
    """Read a whole epoch; returns the seconds until the first batch, and that batch.

    The seconds include the start of the workers.
    """
    began = time.perf_counter()
    batches = iter(loader)
    batch = next(batches)
    took = time.perf_counter() - began
    for _ in batches:
        pass
    return took, [np.asarray(entry).copy() for entry in batch]


def epoch(loader: Iterable[Any]) -> float:
    """Read a whole epoch, and return the seconds that this took."""
    began = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - began


def measure(kind: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure one kind of data set, a key of `SETS`; returns the rows of the printed table."""
    side, kept = SETS[kind]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.blob"
        records = max(4 * options.batch, options.megabytes * 1_000_000 // (3 * side * side))
        make(path, records, side, kept)
        batches = BatchDataset(Records(path), options.batch)
        with closing(PrefetchDataset(batches, WORKERS, processes=True)) as processes:
            loaders: dict[str, Iterable[Any]] = {
                "processes": processes,
                "threads": PrefetchDataset(batches, WORKERS),
                "one thread, no prefetch": batches,
            }
            if find_spec("torch"):
                loaders["torch"] = torch_loader(path, options.batch)
            starts = {name: first_batch(loader) for name, loader in loaders.items()}
            for _, batch in starts.values():
                for got, expected in zip(batch, starts["threads"][1], strict=True):
                    np.testing.assert_array_equal(got, expected)
            turns = in_turn(list(loaders), lambda name: epoch(loaders[name]), options.rounds)
            times = dict(zip(loaders, turns, strict=True))
    return [row(kind, side, records, name, times, starts[name][0]) for name in loaders]


def row(kind: str, side: int, records: int, name: str, times: dict[str, list[float]], start: float) -> dict[str, Any]:
    """Return a row of the table: records per second, and the median ratio of these to torch's in the same round.

    Only the row for worker processes has a goal, because torch's workers are processes.

    Args:
        kind: the kind of data set, a key of `SETS`.
        side: the height and the width of an image.
        records: the number of images in an epoch.
        name: the loader, a key of ``times``.
        times: for each loader the seconds of its epochs.
        start: the seconds until the loader's first batch.
    """
    found = {
        "images": f"{kind}, 3x{side}x{side}",
        "loader": name if name == "torch" else f"flnb {name}",
        "records/s": round(records / statistics.median(times[name])),
        "first batch, s": round(start, 3),
        "over torch": "",
        "least .. most": "",
        "goal": "",
        "met": "",
    }
    if "torch" in times and name != "torch":
        ratios = sorted(theirs / ours for ours, theirs in zip(times[name], times["torch"], strict=True))
        median = statistics.median(ratios)
        found["over torch"] = round(median, 3)
        found["least .. most"] = f"{ratios[0]:.3f} .. {ratios[-1]:.3f}"
        if name == "processes":
            found["goal"] = f">= {GOAL}"
            found["met"] = "yes" if median >= GOAL else "NO"
    return found


def main(argv: list[str]) -> int:
    """Run the benchmark; the exit status is 1 if the goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks loading")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--megabytes", type=int, default=60, help="of a set, uncompressed")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="a smoke size, for CI")
    options = parser.parse_args(argv)
    if options.quick:
        options.megabytes, options.rounds = 1, 1
    if not find_spec("torch"):
        print("torch is not installed here: its rows are left out")
    if not find_spec("PIL"):
        print("Pillow is not installed here: the set of JPEG files is left out")
    rows = [line for kind in SETS if kind != "jpeg" or find_spec("PIL") for line in measure(kind, options)]
    print(table(rows))
    print(f"kept in {write('loading', rows, vars(options))}")
    return 0 if options.quick or all(line["met"] != "NO" for line in rows) else 1
