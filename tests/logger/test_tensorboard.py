from __future__ import annotations

import contextlib
import html
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest
from markdown import markdown
from PIL import Image
from running import ROOT
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import plugin_data_pb2

from mxtrain.callback.protocol import CommandLine
from mxtrain.logger.tensorboard import TensorBoard
from mxtrain.logger.tensorboard_views import build_graph_def, select_hparams
from mxtrain.task.sample_figure import PredictedImages, draw_samples
from mxtrain.types import Figure, Table, TextLines

from .conftest import CONFIG, NODES, shown_samples

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def read(run_dir) -> EventAccumulator:
    events = EventAccumulator(str(run_dir), size_guidance={"scalars": 0, "images": 0, "tensors": 0, "histograms": 0})
    events.Reload()
    return events


def points(events, tag):
    return [(event.step, pytest.approx(event.value)) for event in events.Scalars(tag)]


def test_the_logger_imports_boto3_only_when_it_is_used(tmp_path: Path) -> None:
    """tensorboardX imports it wherever it is installed."""
    (tmp_path / "boto3.py").write_text("print('boto3')")
    code = "import mxtrain.logger.tensorboard_logger, boto3; print('imported'); boto3.client"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert process.stdout.split() == ["imported", "boto3"] and "no attribute 'client'" in process.stderr


def test_tags_and_cadence(fake_run):
    fake_run.drive(TensorBoard().build(), 1, 30)
    events = read(fake_run.run_dir)
    assert sorted(events.Tags()["scalars"]) == [
        "perf/samples_per_s",
        "test/accuracy",
        "train/accuracy",
        "train/loss",
        "train/lr",
        "val/accuracy",
        "val/best_accuracy",
        "val/loss",
    ]
    mean = np.mean([2.0 / step for step in range(6, 11)])
    assert [event.step for event in events.Scalars("train/loss")] == [5, 10, 15, 20, 25, 30]
    assert events.Scalars("train/loss")[1].value == pytest.approx(mean)
    assert points(events, "val/loss") == [(10, 0.2), (20, 0.1), (30, 2 / 30)]
    assert points(events, "test/accuracy") == [(30, 0.5)]
    # The learning rate comes with the rows and once more by itself.
    assert points(events, "train/lr") == [(step, 0.1) for step in range(5, 31, 5)]


def test_no_point_is_duplicated_after_a_resume(fake_run):
    for first, last in ((1, 15), (11, 25), (21, 25), (21, 30)):
        fake_run.drive(TensorBoard(histograms=1).build(), first, last)
        newest = max(fake_run.run_dir.glob("events.*"))
        if last < 30:
            newest.write_bytes(newest.read_bytes() + bytes([80, 0, 0]))  # torn, as after a power failure
    events = read(fake_run.run_dir)
    for tag in ("train/loss", "train/lr"):
        assert [event.step for event in events.Scalars(tag)] == [5, 10, 15, 20, 25, 30]
    assert [event.step for event in events.Scalars("val/loss")] == [10, 20, 30]
    assert [event.step for event in events.Images("val/samples")] == [10, 20, 30]
    assert [event.step for event in events.Scalars("test/accuracy")] == [30]
    assert [event.step for event in events.Histograms("parameters/features.0.weight")] == [10, 20, 30]


def test_a_run_that_starts_over_hides_the_first_attempt(fake_run):
    fake_run.drive(TensorBoard().build(), 1, 15)
    fake_run.drive(TensorBoard().build(), 1, 10)
    assert [event.step for event in read(fake_run.run_dir).Scalars("train/loss")] == [5, 10]


def test_configuration_graph_and_hparams(fake_run):
    fake_run.drive(TensorBoard().build(), 1, 10)
    events = read(fake_run.run_dir)
    (config,) = events.Tensors("config/text_summary")
    assert "lr: 0.1" in config.tensor_proto.string_val[0].decode()
    assert {node.name for node in events.Graph().node} == {"data", "conv0/weight", "conv0/Convolution", "relu0"}
    start = plugin_data_pb2.HParamsPluginData.FromString(
        events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    ).session_start_info
    assert start.hparams["optimizer.lr"].number_value == 0.1
    assert start.hparams["model"].string_value == "LeNet"
    # TensorBoard selects the first five by name.
    assert sorted(start.hparams)[:2] == ["Learning rate", "Model"]
    assert start.hparams["Learning rate"].number_value == 0.1 and start.hparams["Model"].string_value == "LeNet"
    assert "_hparams_/session_end_info" in events.PluginTagToContent("hparams")


def test_overview_charts_and_texts(fake_run):
    logger = TensorBoard().build()
    words = ["optimizer.lr=0.1", "hydra.run.dir=x", "+a=[1, 2]"]
    logger.on_start(fake_run.info(command=CommandLine(overrides=words), model_table="17 parameters"))
    fake_run.five_steps(logger, 10)
    logger.on_end(fake_run.result(10))
    events = read(fake_run.run_dir)
    (config,) = events.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(config.tensor_proto.string_val[0])
    (overview,) = layout.category
    assert [chart.title for chart in overview.chart] == ["loss", "accuracy", "learning rate", "samples per second"]
    known = events.Tags()["scalars"]
    patterns = [chart.multiline.tag for chart in overview.chart]
    shown = [[tag for tag in known if any(re.match(one, tag) for one in chart)] for chart in patterns]
    assert shown == [
        ["train/loss", "val/loss"],
        ["train/accuracy", "val/accuracy"],
        ["train/lr"],
        ["perf/samples_per_s"],
    ]
    texts = {
        tag.partition("/text_summary")[0]: events.Tensors(tag)[0].tensor_proto.string_val[0].decode()
        for tag in events.Tags()["tensors"]
        if tag.endswith("/text_summary")
    }
    assert sorted(texts)[:4] == ["about/1_command", "about/2_model", "about/3_result", "config"]
    assert "python -m mxtrain optimizer.lr=0.1 hydra.run.dir=x '+a=[1, 2]'" in texts["about/1_command"]
    assert texts["about/1_command"].endswith("    optimizer.lr=0.1\n    +a=[1, 2]\n")
    assert "17 parameters" in texts["about/2_model"]
    table = [line.split() for line in texts["about/3_result"].splitlines()[-3:]]
    assert table == [["train", "val", "best", "test"], ["loss", "0.1000"], ["accuracy", "0.7500", "0.7500", "0.5000"]]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_first_view_in_a_browser(fake_run, tmp_path):
    fake_run.drive(TensorBoard().build(), 1, 30)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["-m", "tensorboard.main", "--logdir", str(tmp_path), "--port", str(port), "--load_fast=false"]
    server = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{port}/data/runs", timeout=5) as answer:
                if json.load(answer):
                    break
            time.sleep(0.2)
        browser = [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--virtual-time-budget=20000",
            f"--user-data-dir={tmp_path}/browser",
            "--dump-dom",
            f"http://127.0.0.1:{port}/#custom_scalars",
        ]
        page = subprocess.run(browser, capture_output=True, text=True, timeout=120, check=True).stdout
    finally:
        server.terminate()
        server.wait()
    # Titles are in shadow roots, which are not printed. Each chart that is shown has a tooltip in the document itself.
    assert page.count("<vz-line-chart-tooltip ") == 4  # loss, accuracy, learning rate, throughput


def test_resumable_run_has_no_ending(fake_run):
    logger = TensorBoard().build()
    logger.on_start(fake_run.info())
    logger.on_end(fake_run.result(5, "interrupted", 130))
    assert "_hparams_/session_end_info" not in read(fake_run.run_dir).PluginTagToContent("hparams")


def test_disabled_summaries_are_not_computed(fake_run):
    logger = TensorBoard(images=0, graph=False, hparams=False).build()
    logger.on_start(fake_run.info(graph_nodes=lambda: pytest.fail("traced")))
    fake_run.five_steps(logger, 10)
    logger.on_end(fake_run.result(10))
    events = read(fake_run.run_dir)
    assert not events.Tags()["images"] and not events.Tags()["graph"] and not events.Tags()["histograms"]


def test_images_and_histograms_at_every_nth_validation(fake_run):
    fake_run.drive(TensorBoard(images=2, histograms=3).build(), 1, 30)
    events = read(fake_run.run_dir)
    assert [event.step for event in events.Images("val/samples")] == [10, 30]
    assert [event.step for event in events.Histograms("parameters/features.0.bias")] == [10]


def test_a_network_that_cannot_be_traced_is_trained_anyway(fake_run, caplog):
    def trace():
        raise RuntimeError("dynamic")

    logger = TensorBoard().build()
    logger.on_start(fake_run.info(graph_nodes=trace))
    logger.on_end(fake_run.result(0))
    assert "dynamic" in caplog.text


def test_events_after_a_full_disk_are_readable(fake_run, file_size_limit):
    logger = TensorBoard(images=0).build()
    fake_run.drive(logger, 1, 10, end=False)
    (path,) = fake_run.run_dir.glob("events.*")
    with file_size_limit(path.stat().st_size + 10):
        fake_run.five_steps(logger, 15)
        logger.on_checkpoint(15)
    fake_run.five_steps(logger, 20)
    logger.on_end(fake_run.result(20))
    assert [event.step for event in read(fake_run.run_dir).Scalars("train/loss")] == [5, 10, 15, 20]


def test_an_image_that_cannot_be_drawn_is_left_out(fake_run, caplog):
    logger = TensorBoard().build()
    logger.on_start(fake_run.info())
    shown = PredictedImages(np.zeros((1, 8, 8, 1), np.uint8), np.zeros(0), np.zeros((0, 3)))
    logger._add_artifact(Figure("samples", lambda most: draw_samples(shown, [], most)), 1)
    fake_run.five_steps(logger, 10)
    logger.on_end(fake_run.result(10))
    assert "was left out" in caplog.text
    assert [event.step for event in read(fake_run.run_dir).Images("val/samples")] == [10]


def test_the_image_is_stored_as_png(fake_run):
    fake_run.drive(TensorBoard(max_images=4).build(), 1, 10)
    (event,) = read(fake_run.run_dir).Images("val/samples")
    image = Image.open(io.BytesIO(event.encoded_image_string))
    assert image.size == (event.width, event.height) == draw_samples(shown_samples(), [], 4).size


def test_tables_and_texts_of_a_task_are_in_the_text_tab(fake_run):
    cells = ["a | `b`", "__future__", "*x* <b>", "[y](z)", "\\_ &lt;"]
    table = Table("samples", ["text", "a|b"], [*([cell, "x"] for cell in cells), ["e\nf", "y"], ["d", "z"]])
    logger = TensorBoard(max_images=6).build()
    logger.on_start(fake_run.info())
    for artifact in (table, TextLines("said", ["one", "two"])):
        logger._add_artifact(artifact, 10)
    logger.on_end(fake_run.result(10))
    shown, said = (
        read(fake_run.run_dir).Tensors(f"val/{name}/text_summary")[0].tensor_proto.string_val[0].decode()
        for name in ("samples", "said")
    )
    drawn = html.unescape(re.sub("</?(table|thead|tbody|tr|th|td)>", "", markdown(shown, extensions=["tables"])))
    expected = ["text", "a|b", *(word for cell in cells for word in (cell, "x")), "e f", "y"]
    assert [line for line in drawn.splitlines() if line] == expected
    assert said.split() == ["one", "two"]


def test_sweep_shows_swept_settings_and_validation_first(fake_run):
    logger = TensorBoard(images=0, graph=False).build()
    command = CommandLine(job=0, swept=["optimizer.lr"])
    logger.on_start(fake_run.info(command=command))
    logger.on_end(fake_run.result(10))
    content = read(fake_run.run_dir).SummaryMetadata("_hparams_/experiment").plugin_data.content
    experiment = plugin_data_pb2.HParamsPluginData.FromString(content).experiment
    assert [info.name for info in experiment.hparam_infos if info.differs] == ["optimizer.lr"]
    assert experiment.hparam_infos[0].name == "optimizer.lr" and len(experiment.hparam_infos) > 2
    tags = [info.name.tag for info in experiment.metric_infos]
    assert tags[:3] == ["val/best_accuracy", "val/accuracy", "val/loss"] and "test/accuracy" in tags[3:]


def test_hparams_are_settings_that_differ_between_runs():
    assert select_hparams(CONFIG) == {
        "Learning rate": 0.1,
        "Model": "LeNet",
        "model": "LeNet",
        "model.channels": "16,32",
        "dataset": "Digits",
        "dataset.batch_size": 64,
        "optimizer": "SGD",
        "optimizer.lr": 0.1,
        "trainer.seed": 3,
        "trainer.max_epochs": 3,
    }


def test_hparams_name_the_options_that_were_chosen():
    chosen = select_hparams(CONFIG, choices={"model": "own_lenet", "dataset": "digits"})
    assert (chosen["Model"], chosen["model"], chosen["dataset"]) == ("own_lenet", "own_lenet", "digits")
    assert chosen["optimizer"] == "SGD"  # not known: its class


def test_graph_edges_and_shapes():
    nodes = {node.name: node for node in build_graph_def(NODES).node}
    assert list(nodes["conv0/Convolution"].input) == ["data", "conv0/weight"]
    assert [dim.size for dim in nodes["relu0"].attr["_output_shapes"].list.shape[0].dim] == [1, 4, 6, 6]
    assert (nodes["data"].op, nodes["conv0/weight"].op) == ("Input", "Parameter")
