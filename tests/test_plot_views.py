"""Pictures of the dashboard's views, as SVG and as PNG, from Python and from the command line."""

from __future__ import annotations

import base64
import io
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import pytest
from flnb_telemetry import device_words, intern, load_run, schema
from flnb_telemetry.device_words import DeviceInfo, Kernel
from flnb_telemetry.formats import png as pngs
from flnb_telemetry.formats import svg
from flnb_telemetry.formats.png import as_images, bundle, png
from flnb_telemetry.ranks import Ranks
from flnb_telemetry.recording import Recording

import flnb
from flnb import cli
from flnb.plot.views import VIEWS, program_svg
from tests.distributed.test_ranks import recording

if TYPE_CHECKING:
    from pathlib import Path

for package in ("plotly", "resvg_py", "PIL"):
    pytest.importorskip(package)
pytestmark = pytest.mark.usefixtures("numpy_session")


def pixels(content: bytes) -> Any:
    """The pixels of a PNG file, shape (height, width, 3)."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def assert_drawn(content: bytes) -> None:
    """The picture is on white, and a part of it that is more than a line of text is not."""
    from PIL import Image

    shown = Image.open(io.BytesIO(content)).convert("RGB")
    light = np.asarray(shown.convert("L"))
    assert (light[0] == 255).all(), "paper at the edge"
    assert 600 < (light < 255).sum() < 0.7 * light.size
    assert len(shown.getcolors(1 << 22)) > 2


@pytest.fixture(scope="module")
def runs() -> tuple[Recording, Recording]:
    net = flnb.nn.Sequential(flnb.nn.Linear(64, 32), flnb.nn.ReLU(), flnb.nn.Linear(32, 8))
    found = []
    for name, rows in (("small", 16), ("large", 64)):
        with flnb.record(name, grad_interval=0) as run:
            for i in range(3):
                with flnb.step():
                    net(flnb.ones((rows, 64))).sum().backward()
                    flnb.log(loss=1.0 / (i + 1))
        found.append(run)
    return found[0], found[1]


def on_a_device(emulated: bool) -> Recording:
    """A recording of two kernels in two streams and of a copy, made of records."""
    run = Recording("device")
    run.describe()
    info = intern.devices.id_of(DeviceInfo("cuda:0", "A device", emulated, "random" if emulated else ""))
    kernel = intern.kernels.id_of(Kernel("scale"))
    where = [intern.contexts.id_of(intern.Context("", 0, "cuda:0", stream)) for stream in (0, 7)]
    start, bound = run.start, -1 if emulated else 100
    records = [[device_words.DEVICE, start, info, 0, 0, 0, 0, 0]]
    tasks = (device_words.LAUNCH, 0), (device_words.COPY, 1), (device_words.LAUNCH, 1)
    for seq, (kind, place) in enumerate(tasks, 1):
        called, ran = start + 1_000_000 * seq, start + 2_000_000 * seq
        word = kind | (kernel << schema.PLAN_SHIFT if kind == device_words.LAUNCH else 1 << schema.AUX_SHIFT)
        records.append([word, called, called + 200_000, seq, 4096, 0, 0, where[place]])
        records.append([device_words.RAN, ran, ran + 900_000, seq, bound, ran + 1_000_000, 0, 0])
    run.feed(1, np.array(records, np.int64))
    run.end, run.state = start + 10_000_000, "finished"
    return run


def test_every_view_of_a_run_is_a_picture(runs: tuple[Recording, Recording], tmp_path: Path) -> None:
    run, other = runs
    for view in ("overview", "ops", "memory", "tape", "timeline", "metrics"):
        run.save_png(tmp_path / "view.png", view=view)
        assert_drawn((tmp_path / "view.png").read_bytes())
    for view in ("collectives", "devices"):
        with pytest.raises(ValueError, match=f"the recording has no events for the view '{view}'"):
            run.to_svg(view)
    assert set(VIEWS) == {
        "overview", "ops", "memory", "tape", "timeline", "collectives", "devices", "metrics"
    }  # fmt: skip
    run.save_as(tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes() == png(run.to_svg())
    nothing = Recording("blank")
    assert "blank: no metrics, memory or ops were recorded" in nothing.to_svg()
    assert "B: blank" in run.to_svg("comparison", nothing)
    compared = run.to_svg("comparison", other)
    assert_drawn(png(compared))
    texts = [each.text or "" for each in ElementTree.fromstring(compared).iter() if each.tag.endswith("text")]
    assert {"A: small", "B: large"} <= set(texts)
    assert any("bigger 4.00×" in text for text in texts), "the notes of the comparison's rows"


def test_devices_are_drawn_with_their_times_and_an_emulated_one_with_its_order() -> None:
    real, emulated = on_a_device(False), on_a_device(True)
    figure = flnb.plot.devices(real)
    assert figure.layout.yaxis.ticktext == ("host", "cuda:0, stream 0", "cuda:0, stream 7")
    launches, copies = figure.data
    assert (launches.name, copies.name) == ("launch", "copy to the device")
    assert np.allclose(launches.base, [1, 3, 2, 6])  # ms: two calls, and when the device ran them
    assert np.allclose(launches.x, [0.2, 0.2, 0.9, 0.9])
    assert launches.y.tolist() == [0, 0, 1, 2]
    assert launches.hovertext[0] == "scale"
    figure = flnb.plot.devices(emulated)
    assert figure.layout.yaxis.ticktext == ("cuda:0, stream 0", "cuda:0, stream 7")
    assert [each.base.tolist() for each in figure.data] == [[0, 2], [1]], "slots, not times"
    assert "durations are not" in figure.layout.title.subtitle.text
    for run in (real, emulated):
        assert_drawn(png(run.to_svg("devices")))


def test_collectives_of_one_recording_and_of_ranks_are_drawn(tmp_path: Path) -> None:
    with flnb.record("threads") as run:
        flnb.distributed.run_threads(2, lambda: flnb.distributed.all_reduce(flnb.ones(3)))
    assert_drawn(png(run.to_svg("collectives")))
    ranks = Ranks([recording(0, [(10, 20)]), recording(1, [(13, 20)])])
    ranks.save_svg(tmp_path / "ranks.svg", view="collectives")
    assert "Collective calls of run 0" in (tmp_path / "ranks.svg").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="of the ranks 0, 1 only the view 'collectives' has a picture, not 'ops'"):
        ranks.to_svg("ops")


def test_a_program_is_drawn_with_the_memory_of_what_it_stores() -> None:
    f = flnb.jit(lambda x: flnb.sum(flnb.exp(x) @ x), fuse=False)
    for _ in range(2):
        f(flnb.ones((64, 64)))
    document = program_svg(f)
    assert_drawn(png(document))
    root = ElementTree.fromstring(document)
    titles = [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert "%1 64×64 float32, 16.0 KiB" in titles


def test_pictures_lie_below_each_other_each_with_its_own_height() -> None:
    heights = (60, 150, 40)
    colours = ("#ff0000", "#00ff00", "#0000ff")
    images = [
        svg.picture("", f'<rect width="640" height="{height}" fill="{colour}"/>', height)
        for height, colour in zip(heights, colours, strict=True)
    ]
    column = pixels(png(svg.stacked(images)))[:, 600].reshape(-1, 3)
    for height, colour in zip(heights, colours, strict=True):
        rgb = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
        assert abs(int((column == rgb).all(axis=1).sum()) - pngs.ZOOM * height) <= 2, colour


def test_a_notebook_gets_a_png_with_its_size_text_and_mark(
    runs: tuple[Recording, Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    document = svg.stacked([svg.curve("loss", np.arange(3), np.array([3.0, 2.0, 1.0]))])
    data, about = bundle(document, "flnb-picture-1234567890123456789012345678901a")
    assert list(data) == ["image/png"]
    assert base64.b64encode(b"flnb-picture-1234567890123456789012345678901a").decode() in data["image/png"]
    assert pixels(base64.b64decode(data["image/png"])).shape[1] == pngs.ZOOM * about["image/png"]["width"]
    assert about["image/png"]["alt"] == "loss: 3.00 → 1.00"
    html = runs[0]._repr_html_()
    images = re.findall(r'<img alt="[^"]+" width="640"[^>]* src="data:image/png;base64,([^"]+)"', as_images(html))
    assert len(images) == html.count("<svg") > 0
    assert "<svg" not in as_images(html)
    for each in images:
        assert (pixels(base64.b64decode(each)) != 255).any()
    monkeypatch.setattr(pngs, "FAMILIES", ("no such font",))
    try:
        with pytest.raises(RuntimeError, match="needs one of the fonts no such font, and none is installed; install"):
            png(document)
        data, _ = bundle(document, "mark")
        assert data["image/svg+xml"].startswith('<svg class="mark" ')
        assert as_images(html) == html
    finally:
        monkeypatch.undo()


def test_without_resvg_the_error_names_the_extra(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['resvg_py'] = None; import flnb\n"
        "with flnb.record('a') as run: flnb.ones((64, 64)) * 2.0\n"
        "run.save_png('a.png')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "a PNG picture needs resvg_py; install it with: pip install 'flnb[lab]'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_views(
    runs: tuple[Recording, Recording], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in runs:
        run.save(tmp_path / f"{run.name}.flnb")
    path, other = (str(tmp_path / f"{run.name}.flnb") for run in runs)
    assert cli.main(["export", path, "--to", "png", "--view", "memory"]) == 0
    assert (tmp_path / "small.png").read_bytes() == png(load_run(path).to_svg("memory"))
    assert cli.main(["export", path, "--to", "svg", "--beside", other]) == 0
    assert "small and large compared" in (tmp_path / "small.svg").read_text(encoding="utf-8")
    capsys.readouterr()
    assert cli.main(["export", path, "--to", "svg", "--view", "nothing"]) == 2
    assert "no view 'nothing'; expected one of overview, ops, memory, tape, timeline" in capsys.readouterr().err
    assert cli.main(["export", path, "--to", "csv", "--view", "ops"]) == 2
    assert "--view and --beside are for pictures, --to svg or png, not --to csv" in capsys.readouterr().err
