"""Files are written aside, flushed and renamed: whole under their name, or not there."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from flnb_telemetry.formats import aside

if TYPE_CHECKING:
    from pathlib import Path


def test_threads_that_write_one_file_do_not_meet(tmp_path: Path) -> None:
    path, both = tmp_path / "file", threading.Barrier(2, timeout=10)
    failed: list[Exception] = []

    def write(text: str) -> None:
        try:
            with aside(path) as part:
                both.wait()
                with open(part, "a") as file:
                    file.write(text * 1000)
                both.wait()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(text,)) for text in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert path.read_text() in ("a" * 1000, "b" * 1000)
    assert list(tmp_path.iterdir()) == [path]


def test_the_content_is_on_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (happened.append(os.readlink(f"/proc/self/fd/{file}")), fsync(file)))
    monkeypatch.setattr(os, "replace", lambda part, path: (happened.append("renamed"), replace(part, path)))
    with aside(tmp_path / "file") as part:
        part.write_text("content")
    assert happened == [str(part), "renamed", str(tmp_path)]


def test_what_raises_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 60)  # as long as names may be
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), aside(path) as part:
        part.write_text("new")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with aside(path) as part:
        part.write_text("new")
    assert path.read_text() == "new"


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError, match=r"there is no folder '.*nowhere' for path='.*nowhere/file'; make it"),
        aside(tmp_path / "nowhere" / "file"),
    ):
        pass


@pytest.mark.parametrize("path", [5, None, b"run.flnb"])
def test_what_is_no_path_is_named(path: Any) -> None:
    with (
        pytest.raises(TypeError, match=r"path=.* is of type (int|NoneType|bytes); expected the path of a file"),
        aside(path),
    ):
        pass
