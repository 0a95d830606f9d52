"""The records that the benchmark of loading writes are the ones it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchmarks import loading
from flnb.data import FileBlobDataset

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kept", ["array", "zlib", "jpeg"])
def test_records_are_images_with_labels_however_they_are_kept(tmp_path: Path, kept: str) -> None:
    if kept == "jpeg":
        pytest.importorskip("PIL")
    path = tmp_path / "records.blob"
    loading.make(path, 3, 16, kept)
    blob = FileBlobDataset(path)
    for index in range(3):
        image, label = loading.record(blob, index)
        assert (image.shape, image.dtype, label) == ((3, 16, 16), np.float32, index)
        assert np.abs(image).max() <= 2.0
    pixels = np.random.default_rng(0).integers(0, 32, (3, 16, 16), np.uint8) * np.uint8(8)
    first = loading.record(blob, 0)[0] * 64 + 127.5
    if kept == "jpeg":  # noise, of which little is kept
        assert abs(first.mean() - pixels.mean()) < 10
    else:
        np.testing.assert_allclose(first, pixels, atol=1e-4)
