"""Pictures of values: their pixels, read back from the PNG."""

import struct
import zlib

import numpy as np
import pytest

from flnb.show.picture import BROKEN, heat_map, histogram, images_of, png, tag


def pixels_of(file):
    """Decode what `png` writes: one IDAT, filter 0."""
    chunks, at = {}, 8
    while at < len(file):
        (length,) = struct.unpack_from(">I", file, at)
        name, data = file[at + 4 : at + 8], file[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", file, at + 8 + length) == (zlib.crc32(name + data),)
        chunks[name] = data
        at += 12 + length
    width, height, depth, colour = struct.unpack_from(">IIBB", chunks[b"IHDR"])
    assert depth == 8
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape((height, width, 3) if colour == 2 else (height, width))


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (4, 2, 3)])
def test_png_holds_the_pixels(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    assert (pixels_of(png(pixels)) == pixels).all()


@pytest.mark.parametrize(
    ("shape", "count", "image"),
    [
        ((1, 8, 9), 1, (8, 9)),
        ((3, 8, 9), 1, (8, 9, 3)),
        ((8, 9, 3), 1, (8, 9, 3)),
        ((5, 1, 8, 8), 5, (8, 8)),
        ((20, 3, 8, 8), 8, (8, 8, 3)),
        ((1, 500, 400), 1, (125, 134)),
        ((8, 9), 0, None),
        ((2, 8, 8), 0, None),
        ((5, 1, 3, 3), 0, None),
        ((0, 1, 8, 8), 0, None),
        ((8,), 0, None),
    ],
)
def test_shapes_of_images(shape, count, image):
    found = images_of(np.ones(shape, np.float32))
    assert len(found) == count
    assert all(one.shape == image and one.dtype == np.uint8 for one in found)


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [([0.0, 0.5], 0, 128), ([-1.0, 3.0], 0, 255), ([2.0, 2.0], 0, 0)],
)
def test_floats_are_scaled_unless_they_lie_between_0_and_1(values, low, high):
    image = np.full((1, 8, 8), values[0], np.float64)
    image[0, 0, 0] = values[1]
    [pixels] = images_of(image)
    assert (pixels[1, 1], pixels[0, 0]) == (low, high)


def test_bytes_are_taken_as_they_are():
    image = np.arange(64, dtype=np.uint8).reshape(1, 8, 8)
    assert (images_of(image)[0] == image[0]).all()


def test_nan_has_a_colour_of_its_own():
    image = np.zeros((1, 8, 8))
    image[0, 2, 3] = np.nan
    assert tuple(images_of(image)[0][2, 3]) == BROKEN
    assert tuple(heat_map(image[0])[2, 3]) == BROKEN


def test_heat_maps_are_blue_below_zero_and_red_above():
    values = np.zeros((8, 8))
    values[0, 0], values[0, 1] = -2.0, 1.0
    pixels = heat_map(values).astype(int)
    assert pixels[0, 0, 2] > pixels[0, 0, 0] + 50
    assert pixels[0, 1, 0] > pixels[0, 1, 2] + 20
    assert (pixels[4, 4] == 247).all()
    assert heat_map(values[:4]) is None
    assert (heat_map(np.eye(8))[0, 0] == 255).all()


def test_histograms_say_their_range():
    assert "distribution from 0 to 99" in histogram(np.arange(100.0))
    assert histogram(np.ones(100)) == histogram(np.array([1.0, 2.0])) == ""


def test_a_tag_enlarges_small_pictures_and_names_them():
    text = tag(np.zeros((8, 16), np.uint8), "image 0")
    assert 'width="160" height="80"' in text
    assert 'alt="image 0"' in text
    assert "image-rendering:pixelated" in text
