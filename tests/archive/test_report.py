"""`mxtrain report`: what the page shows, in a real browser, and that names and files of strangers stay text."""

from __future__ import annotations

import base64
import io
import json
import math
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
from browser import Browser, browser  # noqa: F401
from PIL import Image
from run_directories import write_run

from mxtrain.archive.chart import Line, draw_chart, log_ticks, ticks
from mxtrain.archive.curves import read_curves
from mxtrain.archive.figures import png_of
from mxtrain.archive.registry import read_run
from mxtrain.archive.report import differing_settings, short_names
from mxtrain.cli.dispatch import run as main

EVIL = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


def rows_of(count: int, rate: float) -> List[Dict[str, Any]]:
    rows: List[Dict[str, Any]] = []
    for step in range(1, count + 1):
        rows.append({"step": step, "epoch": 1, "split": "train", "loss": math.exp(-rate * step), "lr": 0.1})
        if step % 10 == 0:
            rows.append({"step": step, "epoch": 1, "split": "val", "loss": 0.5, "accuracy": step / count})
    return rows


def png(width: int = 40, height: int = 30) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(stream, "PNG")
    return stream.getvalue()


def write_evaluation(run_dir: Path) -> None:
    folder = run_dir / "eval" / "test"
    folder.mkdir(parents=True)
    (folder / "confusion.png").write_bytes(png())
    (folder / "confusion.csv").write_text("true,cat\ncat,3\n")
    (folder / "per_class.csv").write_text("class,recall\n" + f'"{EVIL.replace(chr(34), chr(34) * 2)}",0.123456\n' * 60)
    files = ["confusion.png", "confusion.csv", "per_class.csv", "../../status.json", "/etc/passwd"]
    (folder / "metrics.json").write_text(json.dumps({"split": "test", "loss": 0.25, "files": files}))


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The page of two runs, one of them a stranger's."""
    meta = {
        "argv": ["mxtrain", "model=mlp", "hydra.run.dir=x", "note=it's"],
        "working_folder": "/home/me/project",
        "git": {"commit": "abc123", "dirty": True},
        "packages": {"mxnet": "1.9.1"},
        "data": {"splits": {"train": {"samples": 100, "sha256": "f" * 64}}},
    }
    write_run(tmp_path / "good", rows=rows_of(40, 0.05), checkpoints={40: 0.9}, meta=meta, metrics={"test/loss": 0.25})
    write_evaluation(tmp_path / "good")
    evil = write_run(
        tmp_path / EVIL.replace("/", "_"),
        rows=rows_of(40, 0.01),
        state=EVIL,
        monitor=EVIL,
        lr=0.5,
        task="regression",
        meta={"argv": ["mxtrain", EVIL], "host": {EVIL: EVIL}},
    )
    with open(evil / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 50, "split": "train", EVIL: 1.0, "loss": None}) + '\n{"step": 51, "spl')
    monkeypatch.chdir(tmp_path)
    assert main(["report", "good", f"./{evil.name}", "out=out/report.html", "title=Two & more"]) == 0
    return (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


class Tags(HTMLParser):
    """Collects the elements of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: List[Tuple[str, Dict[str, Any]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: List[Tuple[str, Any]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_page_shows_results_commands_and_the_model_card(page: str) -> None:
    assert "<h1>Two &amp; more</h1>" in page
    commands = re.findall(r"<pre>(.*?)</pre>", page, flags=re.DOTALL)[0]
    assert commands.startswith("cd /home/me/project\ngit checkout abc123")
    assert "python -m mxtrain model=mlp &#x27;note=it&#x27;&quot;&#x27;&quot;&#x27;s&#x27;" in commands
    assert "hydra.run.dir" not in commands and "python -m mxtrain reproduce " in commands
    for text in (
        "step-00000040",
        "ab" * 32,
        "0.12346",
        "the first 40 of 60 rows",
        "optimizer.lr",
        "Model card",
        "100 samples, " + "f" * 64,
        "test/loss",
    ):
        assert text in page, text
    tags = Tags(page).found
    (data,) = [attrs["src"] for tag, attrs in tags if tag == "img"]
    assert base64.b64decode(data.partition(",")[2]) == png()
    assert "root:" not in page  # /etc/passwd is no file of an evaluation


SETTINGS = {
    "a": ("sgd", "optimizer: {_target_: own.a.SGD, lr: 0.1, momentum: 0.9}\nloss: {_target_: a.Loss, x: 1}"),
    "b": ("sgd", "optimizer: {_target_: own.a.SGD, lr: 0.1, momentum: 0.8}\nloss: {_target_: a.Loss}"),
    "c": ("", "optimizer: {_target_: own.b.Adam, lr: 0.2, beta1: 0.9}\nloss: {_target_: a.Loss, x: 1}"),
}


def test_unshared_settings_are_folded(tmp_path: Path) -> None:
    """Options name the classes; of a setting of one class, only a difference between its own runs is shown."""

    def of(*names: str) -> Dict[str, Any]:
        return differing_settings([read_run(str(tmp_path / name)) for name in names])

    for name, (option, text) in SETTINGS.items():
        run = write_run(tmp_path / name)
        (run / ".hydra" / "config.yaml").write_text(text)
        hydra = (run / ".hydra" / "hydra.yaml").read_text()
        assert "      optimizer: adam\n" in hydra
        choice = f"      optimizer: {option}\n" if option else ""
        (run / ".hydra" / "hydra.yaml").write_text(hydra.replace("      optimizer: adam\n", choice))
    assert of("a", "b") == {"optimizer.momentum": ["0.9", "0.8"], "loss.x": ["1", None]}
    assert of("a", "c") == {"optimizer": ["sgd", "Adam"], "optimizer.lr": ["0.1", "0.2"]}
    assert of("a", "b", "c") == {
        "optimizer": ["sgd", "sgd", "Adam"],
        "optimizer.lr": ["0.1", "0.1", "0.2"],
        "optimizer.momentum": ["0.9", "0.8", None],
        "loss.x": ["1", None, "1"],
    }
    (tmp_path / "c" / ".hydra" / "hydra.yaml").write_text((tmp_path / "a" / ".hydra" / "hydra.yaml").read_text())
    assert of("a", "c")["optimizer._target_"] == ["own.a.SGD", "own.b.Adam"]


def test_confusion_leads_to_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", rows=rows_of(40, 0.05))
    folder = run / "eval" / "test"
    folder.mkdir(parents=True)
    image = tmp_path / "a cat.png"
    image.write_bytes(png())
    lines = [f"{image},cat,dog", *["gone.png,dog,dog"] * 30, f'"{EVIL.replace(chr(34), chr(34) * 2)}",<b>,cat']
    text = "".join(f"{line},0.123456789\n" for line in lines)
    (folder / "predictions.csv").write_text(f"file,true,predicted,loss\n{text}")
    (folder / "worst.csv").write_text(f"file,true,loss\n{image},cat,2.5\n")
    (folder / "worst.png").write_bytes(png())
    (folder / "confusion.html").write_text(EVIL)
    files = ["predictions.csv", "worst.csv", "worst.png", "confusion.html"]
    monkeypatch.chdir(tmp_path)

    def page_of(names: List[str]) -> Tuple[str, List[Tuple[str, Any]]]:
        (folder / "metrics.json").write_text(json.dumps({"split": "test", "loss": 0.25, "files": names}))
        assert main(["report", "run"]) == 0
        text = (tmp_path / "report.html").read_text(encoding="utf-8")
        return text, Tags(text).found

    page, tags = page_of(files)
    ids = {attrs["id"] for _, attrs in tags if "id" in attrs}
    links = [attrs["href"] for tag, attrs in tags if tag == "a"]
    cells = [link[1:] for link in links if link.startswith("#run0-")]
    assert len(cells) == 3 and set(cells) <= ids
    assert links.count(image.as_uri()) == 2  # in the cell, and in the table of the largest losses
    assert "The first 20 of 30 samples" in page and "true cat, predicted dog: 1" in page
    assert "script" not in {tag for tag, _ in tags} and "2.5" in page and "<td>0.12346</td>" in page
    assert "true cat" not in page_of(files[:3])[0], "only tasks with classes have a matrix"
    (folder / "predictions.csv").unlink()
    (folder / "predictions.csv").symlink_to(tmp_path / "other.csv")
    (tmp_path / "other.csv").write_text("file,true,predicted\nx,cat,dog\n")
    assert "true cat" not in page_of(files)[0]
    (folder / "predictions.csv").unlink()
    (folder / "predictions.csv").write_text("file,true\nx,cat\n")
    assert "matrix" not in page_of(files)[0]


def test_names_of_trials_hold_their_study() -> None:
    assert short_names(["studies/s1/0", "studies/s1/12"]) == ["s1/0", "s1/12"]
    assert short_names(["outputs/a", "outputs/b"]) == ["a", "b"]
    assert [short_names([path]) for path in ("/home/x/studies/s1", "a", "/")] == [["studies/s1"], ["a"], ["/"]]


def test_foreign_text_is_escaped(page: str) -> None:
    tags = Tags(page).found
    assert {tag for tag, _ in tags} <= {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "header",
        "h1",
        "h2",
        "h3",
        "h4",
        "p",
        "nav",
        "a",
        "main",
        "section",
        "div",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "b",
        "ul",
        "li",
        "span",
        "figure",
        "figcaption",
        "img",
        "pre",
        "code",
        "svg",
        "line",
        "text",
        "polyline",
        "circle",
    }
    assert not [attrs for _, attrs in tags if any(name.startswith("on") for name in attrs)]
    assert all(attrs.get("href", "#").startswith("#") for _, attrs in tags)
    assert "&lt;script&gt;" in page


def test_curves_have_the_values_of_the_rows(page: str) -> None:
    """Drawn heights are proportional to the values, or to their logarithms."""
    tags = Tags(page).found
    lines = [attrs["points"] for tag, attrs in tags if tag == "polyline"]
    places = [[tuple(map(float, point.split(","))) for point in line.split()] for line in lines]
    train = [line for line in places if len(line) == 40]
    assert len(train) >= 2
    steep = max(train, key=lambda line: line[-1][1] - line[0][1])
    drops = [steep[i][1] - steep[0][1] for i in (10, 39)]
    expected = [1 * (math.exp(-0.05) - math.exp(-0.05 * (i + 1))) for i in (10, 39)]
    assert drops[0] / drops[1] == pytest.approx(expected[0] / expected[1], abs=0.01)


@pytest.mark.slow
def test_browser_shows_the_page_without_scripts_or_requests(page: str, tmp_path: Path, browser: Browser) -> None:
    address = f"file://{tmp_path}/out/report.html"
    browser.requests.clear()
    for width in (1280, 390):
        browser.resize(width, 900)
        browser.open(address)
        assert browser.run("document.title") == "Two & more"
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run("[...document.images].every(one => one.naturalWidth > 0)")
        assert browser.run("[...document.querySelectorAll('.charts svg')].every(one => one.clientHeight > 100)")
    outside = [one for one in browser.requests if not one.startswith((address, "data:", "about:"))]
    assert outside == [] and browser.errors == []


@pytest.mark.slow
def test_long_curves_are_means_and_damaged_rows_are_left_out(tmp_path: Path) -> None:
    with open(tmp_path / "metrics.jsonl", "w") as file:
        for step in range(1, 10_001):
            file.write(json.dumps({"step": step, "split": "train", "loss": float(step)}) + "\n")
        file.write('{"step": 3, "split": "train", "loss": 9}\nnonsense\n[]\n')
        file.write('{"step": 10001, "split": "train", "loss": NaN}\n')
        file.write(json.dumps({"step": 10002, "split": "train", "loss": None, "a": "b", "c": True}) + "\n")
        file.write("x" * (3 << 20))
    ((key, curve),) = read_curves(str(tmp_path)).items()
    assert key == ("train", "loss") and curve.is_averaged and 300 < len(curve.points) <= 1200
    assert curve.num_non_finite == 1
    assert all(step == value for step, value in curve.points)
    assert sum(value for _, value in curve.points) / len(curve.points) == pytest.approx(5000.5, rel=0.02)


@pytest.mark.parametrize(
    "low, high",
    [
        (0, 1),
        (0.8, 0.95),
        (-3, 1e7),
        (5, 5),
        (0, 0),
        (1e-310, 1e-308),
        (-1e100, 1e100),
    ],
)
def test_ticks_surround_all_values_and_are_few(low: float, high: float) -> None:
    found = ticks(low, high)
    assert found[0] <= low and found[-1] >= high * (1 - 1e-9) and 2 <= len(found) < 50


def test_charts_of_extreme_values() -> None:
    assert log_ticks(1e-300, 1e300)[0] <= 1e-299 and len(log_ticks(1e-300, 1e300)) <= 12
    for points in ([(1, 5.0)], [(0, 1e-300), (1, 1e100)], [(1, -1e100), (2, 1e100)]):
        chart = draw_chart([Line("a", points, 0)], "loss")
        assert chart.startswith("<svg") and "nan" not in chart
    assert draw_chart([Line("a", [], 0)], "loss") == ""


def test_only_moderate_png_files_are_shown() -> None:
    assert png_of(png(), "a") is not None
    huge = bytearray(png())
    huge[16:20] = (60_000).to_bytes(4, "big")
    for content in (b"", b"GIF89a", bytes(huge), png()[:20], png() + b"x" * (5 << 20)):
        assert png_of(content, "a") is None


def test_validation_figures_are_read_from_tensorboard_files(tmp_path: Path) -> None:
    """The files are written by tensorboardX, as in runs; the newest figure of each tag counts."""
    from tensorboardX import SummaryWriter

    from mxtrain.archive.figures import read_validation_figures

    with SummaryWriter(str(tmp_path)) as writer:
        import numpy as np

        for step, side in ((1, 8), (2, 16)):
            writer.add_image("val/samples", np.zeros((3, side, side), np.uint8), step)
            writer.add_scalar("val/loss", 0.5, step)
    ((step, figure),) = read_validation_figures(str(tmp_path))
    assert (step, figure.title, figure.width) == (2, "val/samples", 16)
    (file,) = tmp_path.glob("events*")
    file.write_bytes(file.read_bytes()[:-40] + b"\xff" * 100)
    os.symlink(file, tmp_path / "events.out.tfevents.9")
    assert [step for step, _ in read_validation_figures(str(tmp_path))] in ([1], [2])


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["nowhere"], "there is no folder 'nowhere'"),
        (["good", "out=good"], "should be a file"),
        (["good", "ot=a.html"], "Did you mean 'out'?"),
        (["good", "where=best>5"], "no run passes the filter"),
        (["empty"], "there is no run directory in empty"),
    ],
)
def test_wrong_arguments_write_nothing(
    arguments: List[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "good")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["report", *arguments]) == 2
    assert said in capsys.readouterr().err and sorted(os.listdir(tmp_path)) == ["empty", "good"]
