"""The text of the character models: what is in it, how it is cut, and what counting makes of it."""

import math

import numpy as np
import pytest

from benchmarks.trained import sources
from benchmarks.trained.sources import CHARACTERS, Windows, decoded, encoded, entropies, spread, texts


def test_codes_give_the_text_back():
    assert len(CHARACTERS) == len(set(CHARACTERS)) == 96
    text = 'def f(x):\n    return "~"\n'
    assert decoded(encoded(text)) == text
    assert decoded(encoded("")) == ""
    for other in ("naïve", "a\tb", "\x00", "\x7f"):
        assert encoded(other) is None


def test_files_are_for_training_or_for_validation_whatever_else_is_there(tmp_path):
    names = [f"module{number}.py" for number in range(40)]
    for name in names:
        (tmp_path / name).write_text(f"# {name}\n")
    (tmp_path / "_sysconfigdata_x.py").write_text("# built\n")
    (tmp_path / "tabs.py").write_text("\tx\n")
    before = [decoded(text).splitlines() for text in texts(tmp_path)]
    assert sorted(before[0] + before[1]) == sorted(f"# {name}" for name in names)
    assert before == [sorted(part) for part in before]
    (tmp_path / "another.py").write_text("# another.py\n")
    after = [decoded(text).splitlines() for text in texts(tmp_path)]
    assert [set(new) - {"# another.py"} for new in after] == [set(old) for old in before]


def test_a_folder_without_sources_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="0 files of Python for training and 0 for validation"):
        texts(tmp_path)


def test_the_standard_library_is_megabytes():
    train, validation = texts()
    assert len(train) > 2_000_000
    assert len(train) / 20 < len(validation) < len(train) / 5


def test_windows_predict_the_next_character():
    text = encoded("abcdefgh")
    windows = Windows(text, 3)
    assert [(decoded(x), decoded(y)) for x, y in windows] == [("abc", "bcd"), ("def", "efg")]
    x, y = spread(Windows(np.arange(92, dtype=np.uint8), 1), 3).take(np.arange(3))
    assert x.numpy().ravel().tolist() == [0, 45, 90]
    assert (y.numpy() == x.numpy() + 1).all()
    assert x.numpy().dtype == np.int64


def test_entropies_are_of_the_frequencies(monkeypatch):
    text = np.tile(np.asarray([0, 1, 0, 2], np.uint8), 50_000)  # after 0 comes 1 or 2, after them always 0
    monkeypatch.setattr(sources, "CHARACTERS", "abc")
    windows = Windows(text, 100)
    x, y = (tensor.numpy() for tensor in windows.take(np.arange(len(windows))))
    got = entropies(text, x, y)
    assert got["unigram"] == pytest.approx(1.5, abs=1e-3)
    assert got["bigram"] == pytest.approx(0.5, abs=1e-3)
    assert got["unigram"] < math.log2(3)
