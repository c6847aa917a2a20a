"""scripts/bench: each part works in its tiny mode, and the figures are computed and published rightly."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from low_precision import needs_bfloat16
from waiting import wait_until

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from bench_parts import (  # noqa: E402
    callbacks,
    files,
    forecasting,
    gluoncv_side,
    memory,
    parts,
    publish,
    replay,
    task_races,
    vision_races,
)
from bench_parts.__main__ import PARTS  # noqa: E402
from bench_parts.delayed_wire import Link  # noqa: E402
from bench_parts.distributed import needs_own_network  # noqa: E402
from bench_parts.fault_run import differences  # noqa: E402
from bench_parts.faults import _fill  # noqa: E402
from bench_parts.harness import (  # noqa: E402
    Comparison,
    Measured,
    Options,
    ProcessFailed,
    Ratio,
    Series,
    Side,
    Target,
    default_environment,
    in_turn,
    in_turns,
    tuned_environment,
)
from bench_parts.load import LoadGenerator  # noqa: E402
from bench_parts.network import unsupported_reason  # noqa: E402
from bench_parts.records import Records, noting_gaps  # noqa: E402
from bench_parts.seeded_runs import Score, compare_runs  # noqa: E402
from bench_parts.serving_peers import NETWORKS, NO_PEERS, UNITS, compare_servers  # noqa: E402

from mxtrain.data.checking.problems import Findings  # noqa: E402
from mxtrain.data.spec import open_splits  # noqa: E402
from mxtrain.forecasting.json_lines import DeepARLines  # noqa: E402
from mxtrain.forecasting.series_table import generate_demand  # noqa: E402
from mxtrain.kvstore.spec import has_horovod  # noqa: E402
from mxtrain.recommendation.atomic_files import AtomicFiles  # noqa: E402
from mxtrain.recommendation.kinds import NextItem  # noqa: E402
from mxtrain.text.tokenizing.base import OWN_SPECIAL  # noqa: E402
from mxtrain.vision.video.video_folder import VideoFolder  # noqa: E402

# Loads the data as GluonCV's script does, and logs as it does.
STAND_IN = """
import argparse, logging, time
from mxnet import gluon

parser = argparse.ArgumentParser()
for name in ("--model", "--mode", "--save-dir", "-j"):
    parser.add_argument(name)
for name in ("--batch-size", "--num-epochs"):
    parser.add_argument(name, type=int)
options = parser.parse_args()
assert options.mode == "hybrid"
logging.basicConfig(level=logging.INFO)
train, test = (gluon.data.vision.CIFAR10(train=split) for split in (True, False))
assert len(train) == 5 * len(test) and train[0][0].shape == (32, 32, 3)
for epoch in range(options.num_epochs):
    logging.info("[Epoch %d] train=%f val=%f loss=%f time: %f" % (epoch, 0.5, 0.25, 1.0, 7.0 + epoch))
"""

# Loads images and asks for a network as GluonCV's script does, and needs the same replacements.
SEGMENTATION_STAND_IN = """
import argparse
import mxnet as mx
from mxnet import gluon
from mxnet.gluon.data.vision import transforms
from tqdm import tqdm
from gluoncv.data import get_segmentation_dataset
from gluoncv.model_zoo.segbase import *

parser = argparse.ArgumentParser()
for name in ("--no-cuda", "--aux", "--no-val"):
    parser.add_argument(name, action="store_true")
for name in ("--dataset", "--model", "--save-dir"):
    parser.add_argument(name)
for name in ("--base-size", "--crop-size", "--batch-size", "--workers"):
    parser.add_argument(name, type=int)
for name in ("--aux-weight", "--lr", "--momentum", "--weight-decay"):
    parser.add_argument(name, type=float)
args = parser.parse_args()
assert args.no_cuda and args.no_val
images = get_segmentation_dataset(
    args.dataset, split="train", mode="train", transform=transforms.ToTensor(), base_size=args.base_size,
    crop_size=args.crop_size,
)
loader = gluon.data.DataLoader(
    images, args.batch_size, shuffle=True, last_batch="rollover", num_workers=args.workers
)
net = get_segmentation_model(model=args.model, dataset=args.dataset, aux=args.aux, crop_size=args.crop_size)
bar = tqdm(loader)
for data, target in bar:
    assert data.shape == (args.batch_size, 3, args.crop_size, args.crop_size) and target.min().asscalar() >= -1
    assert net(data.as_in_context(mx.cpu()))[0].shape == (args.batch_size, 21, args.crop_size, args.crop_size)
    bar.set_description("a step")
"""


def bench(out, *arguments):
    """Runs scripts/bench's Python part as the script does."""
    path = os.pathsep.join([str(ROOT / "scripts"), str(ROOT)])
    command = [sys.executable, "-m", "bench_parts", "--quick", "--out", str(out), "--work", str(out), *arguments]
    return subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )


def run_part(part, out, *arguments):
    """The JSON of a part in its tiny mode."""
    done = bench(out, part, *arguments)
    assert done.returncode == 0, done.stderr
    result = json.loads((out / "benchmarks" / f"{part}.json").read_text())
    assert result["quick"] and result["machine"]["environment"]["OMP_NUM_THREADS"] == "1"
    assert (out / "benchmarks" / f"{part}.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "benchmarks" / "README.md").read_text()
    assert all(target["name"] in page for target in result["targets"]) and "figures mean nothing" in page
    assert str(out) not in json.dumps(result) + page, "a path of this machine was published"
    left = {path.name for path in out.iterdir()} - {"benchmarks", "script.py"}
    assert not left, f"left behind: {left}"
    return {series["name"]: series for series in result["series"]}, result


@pytest.mark.zoo
@pytest.mark.slow
def test_default(tmp_path):
    series, result = run_part("default", tmp_path)
    assert series["wall time, command to exit"]["median"] > 1 and series["processor time, all threads"]["median"] > 1
    assert 0.1 < series["best validation accuracy"]["median"] <= 1
    assert [target["limit"] for target in result["targets"]] == [60, 0.985]


@pytest.mark.zoo
@pytest.mark.slow
def test_serve(tmp_path):
    series, result = run_part("serve", tmp_path)
    assert series["LeNet, 64 clients: batching"]["median"] > 1
    lost = [target for target in result["targets"] if target["name"].startswith("rolling restart")]
    assert [target["value"] for target in lost] == [0]
    assert set(result["details"]["rolling restart: statuses"]) == {"200"}


@pytest.mark.zoo
@pytest.mark.slow
def test_serving_peers(tmp_path):
    series, result = run_part("serving_peers", tmp_path)
    title = "LeNet, digits: mxtrain"
    assert all(series[f"{title}, {clients} clients"]["median"] > 1 for clients in (1, 8, 64))
    assert series[f"{title}, 64 clients, binary"]["median"] > 1 and series[f"{title}, start"]["median"] > 0.1
    for load in (50, 80):
        assert (
            0 < series[f"{title}, p50 at {load} % load"]["median"] <= series[f"{title}, p99 at {load} % load"]["median"]
        )
    assert 30 < series[f"{title}, memory"]["median"] < 3000
    assert series[f"{title}, processor time for a request"]["median"] > 50
    assert NO_PEERS in result["notes"] and result["targets"] == []


def test_servers_are_compared_with_the_best_of_the_others():
    def turns(speed, p99_ms):
        return [{figure: p99_ms if figure.startswith("p99") else speed for figure in UNITS}]

    figures = {"mxtrain": turns(300, 4), "LitServe": turns(100, 5), "MLServer": turns(150, 2), "BentoML": []}
    found = Measured()
    compare_servers(NETWORKS[0], figures, found)
    speeds, latencies = found.targets[:3], found.targets[3:]
    assert all("MLServer" in target.name for target in found.targets) and len(latencies) == 2
    assert {(target.value, target.limit, target.met) for target in speeds} == {(2.0, 1.5, True)}
    assert {(target.value, target.limit, target.met) for target in latencies} == {(2.0, 1.0, False)}


def test_load_client_reads_chunked_answers():
    """An answer is complete with its last chunk, also if it arrives in pieces."""
    chunks = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"2\r\nok\r\n", b"0\r\n", b"\r\n"]

    def answer(server):
        connection, _ = server.accept()
        with connection:
            while connection.recv(1 << 10):
                for chunk in chunks:
                    connection.sendall(chunk)
                    time.sleep(0.01)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        load = LoadGenerator(b"GET / HTTP/1.1\r\n\r\n").keep_asking(server.getsockname()[1], 1, count=3)
        thread.join()
    assert load.statuses == {200: 3} and min(load.seconds) > 0.02


@pytest.mark.zoo
@pytest.mark.slow
def test_runner(tmp_path):
    series, result = run_part("runner", tmp_path)
    share = series["ResNet-20, 16 px, batch 8: runner / hand-written loop, pair by pair"]["values"]
    rates = [series[f"ResNet-20, 16 px, batch 8: {side}"]["median"] for side in ("runner", "hand-written loop")]
    assert share == [pytest.approx(rates[0] / rates[1])]
    assert [target["limit"] for target in result["targets"]] == [0.98, 1.7]


@pytest.mark.zoo
@pytest.mark.slow
def test_gluoncv(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(STAND_IN)
    series, result = run_part("gluoncv", tmp_path, "--gluoncv-script", str(script))
    assert [found["values"] for name, found in series.items() if "train_cifar10" in name] == [[8.0], [8.0]]
    assert [target["limit"] for target in result["targets"]] == [1.0, 1.0]
    assert series["an epoch of cifar_resnet20_v1: mxtrain"]["median"] > 0.01


@pytest.mark.zoo
def test_segmentation(tmp_path):
    """Twenty seconds: a script in the place of GluonCV's, and mxtrain, take turns on the same files."""
    scripts = tmp_path / "gluon-cv" / "scripts"
    for path in (scripts / "segmentation" / "train.py", scripts / "classification" / "cifar" / "train_cifar10.py"):
        path.parent.mkdir(parents=True)
        path.write_text(SEGMENTATION_STAND_IN)
    (tmp_path / "out").mkdir()
    series, result = run_part("segmentation", tmp_path / "out", "--gluoncv-script", str(path), "--turns", "3")
    title = "fastscnn, 64 px, batch 2"
    assert [target["limit"] for target in result["targets"]] == [1.2]
    ours, theirs = (series[f"{title}: {side}"]["values"] for side in ("mxtrain", parts.AS_SHIPPED))
    assert series[f"{title}: mxtrain / {parts.AS_SHIPPED}, pair by pair"]["values"] == [
        pytest.approx(a / b) for a, b in zip(ours, theirs)
    ]
    assert len(ours) == len(theirs) == len(series[f"{title}: {parts.AS_OURS}"]["values"]) == 3


def test_segmentation_needs_the_script_in_the_same_checkout(tmp_path):
    (tmp_path / "script.py").write_text("")
    given = Options(True, tmp_path, gluoncv_script=str(tmp_path / "script.py"))
    assert "segmentation/train.py is not there" in PARTS["segmentation"].why_not(given)
    assert "no script was given" in PARTS["segmentation"].why_not(Options(True, tmp_path))


def test_segmentation_images_are_equal_on_both_sides(tmp_path):
    """GluonCV takes trainval.txt for train, mxtrain train.txt; the ignored outlines are there."""
    from PIL import Image

    from mxtrain.vision.segmentation.voc_segmentation import VocSegmentation

    files.write_segmentation(tmp_path, files.IMAGES + 2)
    lists = tmp_path / "VOC2012" / "ImageSets" / "Segmentation"
    assert (lists / "train.txt").read_text() == (lists / "trainval.txt").read_text()
    splits = VocSegmentation(root=str(tmp_path)).open()
    assert len(splits.train) == files.IMAGES + 2 and len(splits.val) == files.VAL_IMAGES
    with Image.open(tmp_path / "VOC2012" / "SegmentationClass" / "train_000000.png") as mask:
        values, mode = set(np.unique(np.asarray(mask)).tolist()), mask.mode
    assert mode == "P" and {0, 255} < values and values - {255} <= set(range(files.SEGMENTATION_CLASSES))


@pytest.mark.zoo
@needs_bfloat16
def test_detection_race(tmp_path):
    """Forty seconds: what GluonCV's script does and mxtrain take turns on the same files."""
    series, result = run_part("detection_race", tmp_path, "--turns", "3")
    title, names = "yolo3_mobilenet0.25, 96 px, batch 2", [parts.OURS, parts.SAME]
    assert [(target["limit"], target["at_least"]) for target in result["targets"]] == [(1.3, True), (0.05, False)]
    assert 0 <= result["targets"][1]["value"] < 1
    ours, theirs = (series[f"{title}: {side}"]["values"] for side in names)
    shares = [pytest.approx(a / b) for a, b in zip(ours, theirs)]
    assert series[f"{title}: {' / '.join(names)}, pair by pair"]["values"] == shares and len(shares) == 3
    memory = [found["median"] for name, found in series.items() if name.endswith("most memory")]
    assert len(memory) == 4 and all(value > 100 for value in memory)
    assert all(result["details"][f"{title}: {side}"]["cpu_s of a block"] > 0 for side in names)


@pytest.fixture(scope="module")
def devkit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("detection") / "VOCdevkit"
    files.write_detection(folder, files.IMAGES + 2)
    return folder


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # GluonCV's
def test_detection_images_are_equal_on_both_sides(devkit):
    """The same images, and the same boxes of the same classes. GluonCV leaves out the last pixel of a box."""
    from mxtrain.vision.detection.voc import Voc

    lists = {"train_split": files.DETECTION_SPLIT, "val_split": files.DETECTION_VAL_SPLIT}
    splits = Voc(root=str(devkit), **lists).open()
    theirs = gluoncv_side.open_images(gluoncv_side.Work("", 0, 0, 0, devkit))
    assert len(splits.train) == len(theirs) == files.IMAGES + 2
    assert len(splits.val) == files.VAL_IMAGES
    for index in (0, 7, files.IMAGES + 1):
        image_HWC, label_M6 = theirs[index]
        image_CHW, box_MD = splits.train.image(index), splits.train.boxes(index)
        assert image_HWC.shape == image_CHW.transpose(1, 2, 0).shape == (375, 500, 3)
        assert len(label_M6) > 0 and np.abs(image_HWC.asnumpy() - image_CHW.transpose(1, 2, 0).astype(int)).mean() < 2
        np.testing.assert_array_equal(box_MD[:, :5], label_M6[:, :5] + [0, 0, 1, 1, 0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # GluonCV's
@pytest.mark.parametrize(
    "network, size",
    [
        pytest.param("ssd_512_mobilenet1.0", 512, marks=pytest.mark.zoo),
        ("yolo3_mobilenet0.25", 96),
        ("center_net_resnet18_v1b", 64),
        pytest.param("faster_rcnn_fpn_resnet18_v1b", 96, marks=pytest.mark.zoo),
    ],
)
def test_gluoncv_scripts_train_on_full_batches(network, size, devkit, request):
    """Ten seconds each: three steps on two images each, with losses that are numbers, and weights that move."""
    if network.startswith(gluoncv_side.FASTER_RCNN):
        request.getfixturevalue("written_memory")
    recipe = gluoncv_side.build_recipe(gluoncv_side.Work(network, size, 2, 0, devkit))
    steps = gluoncv_side.train(recipe)
    seen = [next(steps).shape]
    trained = [parameter for parameter in recipe.trainer._params if parameter.grad_req != "null"]
    before = [parameter.data().asnumpy() for parameter in trained]
    seen += [next(steps).shape for _ in range(2)]
    assert all(shape[:2] == (2, 3) and min(shape[2:]) == size for shape in seen)
    assert all(np.isfinite(metric.get()[1]) and metric.num_inst > 0 for metric in recipe.metrics)
    moved = [(parameter.data().asnumpy() != array).any() for parameter, array in zip(trained, before)]
    assert sum(moved) > 0.8 * len(moved)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # GluonCV's
def test_both_sides_train_the_same_pyramid_of_faster_rcnn(devkit):
    from mxtrain.model.parameters import freeze, is_trained
    from mxtrain.vision.detection.faster_rcnn import FasterRCNN

    (case,) = (one for one in parts.DETECTORS if one.model == "faster_rcnn")
    recipe = gluoncv_side.build_recipe(gluoncv_side.Work(case.name, 96, 2, 0, devkit))
    theirs = {parameter.name for parameter in recipe.trainer._params}
    network = FasterRCNN(name=case.ours, backbone="resnet18_v1b").build(20, (3, 96, 128))
    freeze(network, parts.FROZEN)
    ours = {parameter.name for parameter in network.features.collect_params().values() if is_trained(parameter)}
    assert ours and ours == {name for name in theirs if name.startswith(("resnetv1b", "P"))}


@pytest.mark.zoo
@pytest.mark.slow
@pytest.mark.skipif(bool(needs_own_network()), reason="no network namespaces here")
def test_compression(tmp_path):
    series, result = run_part("compression", tmp_path)
    (two_bit,) = [target["value"] for target in result["targets"] if "bytes a step" in target["name"]]
    assert 0.05 < two_bit < 0.4
    assert len(result["table"]) == 3 and series["MLP: none"]["median"] > 4 * 4 * 64 * 3 * 32 * 32


@pytest.mark.zoo
@pytest.mark.slow
@pytest.mark.skipif(bool(unsupported_reason()), reason="no hosts in network namespaces here")
def test_slow_links(tmp_path):
    """A minute: four hosts, one network. On the delayed link local SGD is faster than a sum in every step."""
    series, result = run_part("slow_links", tmp_path)
    assert [row[:2] for row in result["table"][1:]][0] == ["MLP", "dist_sync"]
    speeds = {name: found["median"] for name, found in series.items()}
    assert speeds["MLP: dist_sync, sync_every=4"] > speeds["MLP: dist_sync, sum in every step"] > 0


@pytest.mark.zoo
@pytest.mark.slow
@pytest.mark.skipif(not has_horovod(), reason="Horovod is not built here: scripts/horovod")
def test_sharded_optimizer(tmp_path):
    series, _ = run_part("sharded_optimizer", tmp_path)
    peaks = [found["median"] for name, found in series.items() if "MiB" in found["unit"]]
    assert len(peaks) == 2 and min(peaks) > 50


def test_a_link_takes_one_packet_after_another():
    """Bits per second: 8,000, so a packet of 100 bytes takes 0.1 s."""
    link = Link(8000)
    assert [link.pass_on(at, 100) for at in (0.0, 0.02, 0.5)] == pytest.approx([0.1, 0.2, 0.6])
    assert Link(0).pass_on(0.3, 100) == 0.3


@pytest.mark.zoo
@pytest.mark.slow
def test_faults(tmp_path):
    """Ten seconds: a worker is killed, and the run ends as an undisturbed one."""
    series, result = run_part("faults", tmp_path)
    assert [row[:4] for row in result["table"][1:]] == [["dist_sync", "worker 1 killed", "1", "1"]]
    assert result["details"]["wrong"] == [] and len(series) == 2
    assert all(0 < found["median"] < 120 for found in series.values())


def test_differences_of_runs_are_found():
    rows = [{"split": "train", "step": step, "loss": 1.0} for step in (1, 2)]
    other = [rows[0], {**rows[1], "loss": 1.001}]
    assert differences(("a", rows), ("a", rows), exact=True) == ""
    assert "weights" in differences(("b", rows), ("a", rows), exact=True)
    assert "rows" in differences(("a", other), ("a", rows), exact=True)
    assert differences(("b", other), ("a", rows), exact=False) == ""
    assert "off by 50.0%" in differences(("a", [rows[0], {**rows[1], "loss": 1.5}]), ("a", rows), exact=False)
    for wrong in (rows[:1], [*rows, rows[1]]):
        assert "missing or twice" in differences(("a", wrong), ("a", rows), exact=False)


def test_the_race_needs_pytorch(tmp_path):
    why_not = PARTS["race"].why_not
    assert "--torch-python" in why_not(Options(True, tmp_path))
    assert "is not there" in why_not(Options(True, tmp_path, torch_python=str(tmp_path / "python")))


@pytest.mark.zoo
def test_language_race(tmp_path):
    """Half a minute: GluonNLP's networks and ours take turns; PyTorch is not installed here."""
    pytest.importorskip("gluonnlp")
    series, result = run_part("language_race", tmp_path, "--turns", "3")
    compared = [chosen for chosen in parts.QUICK_LANGUAGE_RACES if chosen.gluonnlp]
    assert [target["limit"] for target in result["targets"]] == [1.3, 1.2]
    names = ["mxtrain, float32", parts.GLUONNLP, parts.SHIPPED]
    for title in (chosen.name for chosen in compared):
        ours, theirs, _ = (series[f"{title}: {side}"]["values"] for side in names)
        shares = [pytest.approx(a / b) for a, b in zip(ours, theirs)]
        assert series[f"{title}: mxtrain / {parts.GLUONNLP}, pair by pair"]["values"] == shares and len(shares) == 3
        assert all(series[f"{title}: {side}, most memory"]["median"] > 100 for side in names)
    assert {found["unit"] for found in series.values()} == {"tokens/s", "MiB", "ratio"}


def test_races_of_language_can_be_chosen(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "HAS_GLUONNLP", True)
    for only, turns in (("transformer", 2), ("lstm", 3)):
        (tmp_path / only).mkdir()
        (one,) = parts.language_race(Options(True, tmp_path / only, turns=turns, steps=3, only=only))
        assert only in one.title.lower() and one.times == turns
        assert {side.steps for side in one.sides.values()} == {3}
        assert {side.work for side in one.sides.values()} == {3 * 2 * 8}


def test_the_race_of_language_needs_pytorch_or_gluonnlp(tmp_path, monkeypatch):
    why_not = PARTS["language_race"].why_not
    monkeypatch.setattr(parts, "HAS_GLUONNLP", True)
    assert why_not(Options(True, tmp_path)) == ""
    assert "is not there" in why_not(Options(True, tmp_path, torch_python="nowhere/python"))
    monkeypatch.setattr(parts, "HAS_GLUONNLP", False)
    assert "--torch-python" in why_not(Options(True, tmp_path))


def test_the_race_of_forecasts_has_the_default_series(tmp_path):
    assert "--torch-python" in PARTS["forecasting_race"].why_not(Options(True, tmp_path))
    path = tmp_path / "series.jsonl"
    count = forecasting.write_series(path)
    read = DeepARLines(path=str(path), frequency="h").read(Findings()).series_set.series
    made = generate_demand(0).series
    assert count == len(read) == len(made) and [one.name for one in read] == [one.name for one in made]
    np.testing.assert_allclose(read[3].target_T, made[3].target_T, atol=1e-4)
    assert read[3].categories == ["3"]


def run_race(part, out):
    """The scores of a race in its tiny mode: PyTorch is in the environment of the tests, where scripts/torch put it."""
    pytest.importorskip("torch")
    series, result = run_part(part, out, "--torch-python", sys.executable)
    speeds = [found["median"] for found in series.values() if found["unit"].endswith("/s")]
    assert len(speeds) == 4 and min(speeds) > 1
    return {name: one["median"] for name, one in series.items() if one["unit"] in ("fraction", "unit of the target")}


def test_runs_of_seeds_are_compared(tmp_path):
    """A score may be one deviation worse, the larger of both sides; the speed counts pair by pair."""
    made = {
        "mxtrain": [(4, 2, 3.0), (6, 3, 3.0)],
        "other": [(2, 2, 1.0), (4, 4, 2.0)],
        "trees": [(None, None, 9.0)] * 2,
    }

    def run(name):
        keys = ("work_per_s", "work_per_cpu_s", "error")
        return lambda seed: {key: value for key, value in zip(keys, made[name][seed]) if value is not None}

    options, score = Options(False, tmp_path, turns=2), Score("error", "error", "m", -1)
    found = compare_runs(options, {name: run(name) for name in made}, [score], "rows", 1.2)
    series = {one.name: one.values for one in found.series}
    assert series["mxtrain: rows of training in a second"] == [4, 6]
    assert series["mxtrain / other, training, by the second, pair by pair"] == [2.0, 1.5]
    assert series["mxtrain / other, training, by the second of the processor, pair by pair"] == [1.0, 0.75]
    assert series["trees: error"] == [9.0, 9.0] and not any("trees" in name for name in series if "training" in name)
    assert [(target.value, target.limit) for target in found.targets[:2]] == [(1.75, 1.2), (0.875, 1.2)]
    assert found.targets[2].value == pytest.approx(3.0 - 1.5 - 0.5**0.5) and not found.targets[2].met


def test_validations_do_not_count_as_training(tmp_path, monkeypatch):
    moments = iter([10.0, 11.0, 13.0, 20.0, 24.0])
    monkeypatch.setattr(callbacks.time, "perf_counter", lambda: next(moments))
    monkeypatch.setattr(callbacks.time, "process_time", lambda: 0.0)
    clock = callbacks.TrainingClock(str(tmp_path / "clock"))
    clock.on_steps([{"step": 4}, {"step": 5}], None)
    clock.on_steps([{"step": 10}], None)
    clock.on_steps([{"step": 15}], None)
    clock.on_validation(SimpleNamespace(row={"step": 15}), None)
    clock.on_steps([{"step": 20}], None)
    clock.on_end(None)
    assert json.loads((tmp_path / "clock").read_text()) == [[15, 1.0 + 2.0 + 4.0, 0.0]]


def test_interactions_of_the_race_are_those_of_the_default_data(tmp_path):
    """RecBole trains on as many samples: the first item of a user has no history, and the last two are held out."""
    count = task_races.write_interactions(tmp_path / "items.inter", 30, 20, (5, 9))
    splits = AtomicFiles(root=str(tmp_path)).for_run(NextItem).open()
    assert count == len(splits.train) and len(splits.val) == len(splits.test) == 30


RACES = ("sequential_race", "multi_label_race", "video_race", "volume_race", "regression_race", "summarization_race")


@pytest.mark.parametrize("part", RACES)
def test_the_races_of_tasks_need_pytorch(part, tmp_path):
    assert "--torch-python" in PARTS[part].why_not(Options(True, tmp_path))


@pytest.mark.zoo
@pytest.mark.slow
def test_sequential_race(tmp_path):
    pytest.importorskip("recbole")
    scores = run_race("sequential_race", tmp_path)
    assert len(scores) == 4 and all(0 <= value <= 1 for value in scores.values())


@pytest.mark.zoo
@pytest.mark.slow
def test_multi_label_race(tmp_path):
    scores = run_race("multi_label_race", tmp_path)
    assert len(scores) == 2 and all(0.1 < value < 1 for value in scores.values())


@pytest.mark.zoo
@pytest.mark.slow
@pytest.mark.parametrize("part", ["video_race", "volume_race"])
def test_races_of_videos_and_volumes(part, tmp_path):
    scores = run_race(part, tmp_path)
    assert len(scores) == 2 and all(0 <= value < 1 for value in scores.values())


def test_videos_of_the_race_are_those_that_pytorch_gets(tmp_path):
    """The arrays are the decoded frames; a split has other digits than the next one."""
    arrays = np.load(vision_races.write_videos(tmp_path, {"train": 20, "test": 10}))
    source = open_splits(VideoFolder(root=str(tmp_path), frames=4, image_size=32, central_crop=1.0)).test
    found, label_B = source.fetch(np.arange(10), seed=0, epoch=0, train=False)
    order = np.argsort(label_B, kind="stable")
    expected = arrays["test_video"][:, [1, 4, 7, 10]].transpose(0, 1, 4, 2, 3).reshape(10, 12, 32, 32)
    assert sorted(arrays["test_target"]) == list(range(10))
    assert np.array_equal(found[order], expected[np.argsort(arrays["test_target"])])


def test_mean_iou_of_the_race_of_volumes():
    true_NHW = np.array([[[0, 0, 1, 2]]])
    assert vision_races.mean_iou(true_NHW, true_NHW) == 1
    assert vision_races.mean_iou(np.array([[[0, 1, 1, 2]]]), true_NHW) == pytest.approx((1 / 2 + 1 / 2 + 1) / 3)


@pytest.mark.zoo
@pytest.mark.slow
def test_regression_race(tmp_path):
    scores = run_race("regression_race", tmp_path)
    assert len(scores) == 3 and all(1 < value < 10 for value in scores.values())


@pytest.mark.zoo
@pytest.mark.slow
def test_summarization_race(tmp_path):
    scores = run_race("summarization_race", tmp_path)
    assert len(scores) == 2 and all(0 <= value < 1 for value in scores.values())


def test_time_of_training_leaves_out_validations():
    """Two epochs of 40 optimizer steps, noted every ten: a validation of 5 s is between them."""
    noted = [[step, step * 0.1 + 5.0 * (step > 40), step * 0.2] for step in range(10, 90, 10)]
    found = replay.training_time(noted, 40, 4.0)
    assert found == {"steps": 240.0, "wall_s": pytest.approx(6.0), "processor_s": pytest.approx(12.0)}


@pytest.mark.parametrize("name", replay.PAIRS)
def test_both_sides_of_the_race_of_replay_buffers_do_the_same(name):
    """The settings of stable-baselines3 follow from the description that mxtrain makes of the overrides."""
    from mxtrain.composing.composer import Composer
    from mxtrain.composing.environment import check

    pair = replay.PAIRS[name]
    with Composer() as composer:
        run = check(composer.compose(pair.words(pair.epochs, pair.rollouts)))
    settings = pair.settings(pair.epochs, pair.rollouts)
    arguments, loss, dataset = settings["arguments"], run.loss, run.dataset
    rollout = dataset.num_envs * dataset.rollout_steps
    assert (settings["id"], settings["num_envs"]) == (dataset.id, dataset.num_envs)
    assert settings["steps"] == rollout * dataset.rollouts_per_epoch and settings["epochs"] == run.trainer.max_epochs
    assert arguments["gradient_steps"] == dataset.passes * rollout / dataset.batch_size
    assert arguments["train_freq"] == dataset.rollout_steps and arguments["gamma"] == dataset.gamma
    assert (arguments["batch_size"], arguments["buffer_size"]) == (dataset.batch_size, loss.buffer_size)
    assert settings["start"] == loss.learning_starts and settings["lr"] == run.optimizer.lr
    assert run.lr_scheduler.warmup_steps(1, 8000) == 0  # the rate of stable-baselines3 falls from the first step
    assert list(settings["hidden"]) == run.model.hidden and settings["normalize"] == run.model.normalize_observations
    if name == "DQN":
        total = settings["start"] + settings["epochs"] * settings["steps"]
        assert arguments["exploration_fraction"] * total == pytest.approx(loss.epsilon_steps)
        assert arguments["exploration_final_eps"] == loss.epsilon_end and loss.epsilon_start == 1.0
        # The defaults of stable-baselines3's DQN, which names none of the three but the last: max_grad_norm.
        assert (loss.double, loss.error_limit, run.trainer.clip_global_norm) == (False, 1.0, 10.0)
        assert arguments["target_update_interval"] * arguments["gradient_steps"] == loss.target_interval * rollout
    else:
        assert arguments["tau"] == loss.target_rate and loss.target_interval == 1


@pytest.mark.parametrize("chosen", parts.QUICK_LANGUAGE_RACES, ids=lambda one: one.network)
def test_texts_of_the_race_have_all_words_and_are_enough(tmp_path, chosen):
    """Otherwise the output layer would be smaller than claimed, or an epoch would end."""
    chosen = replace(chosen, steps=20)
    overrides = dict(one.split("=", 1) for one in parts.language_overrides(chosen, "off", tmp_path))
    for language in ("en", "de") if chosen.network == "transformer_tiny" else ("txt",):
        lines = [line.split() for line in (tmp_path / f"train.{language}").read_text().splitlines()]
        assert {len(line) for line in lines} == {chosen.size - 1}
        assert len(set(sum(lines, []))) + len(OWN_SPECIAL) == int(overrides["dataset.vocab_size"])
        assert len(lines) > chosen.steps * (chosen.blocks + 3) * chosen.batch_size


def test_a_disk_is_filled(small_disk):
    """To the last byte: /dev/full stands for one without any space."""
    _fill(Path("/dev/full"))
    disk = small_disk("1m")
    _fill(disk / "filler")
    with pytest.raises(OSError, match="No space left"):
        (disk / "one").write_bytes(b"1")


@pytest.mark.zoo
@pytest.mark.slow
def test_loader(tmp_path):
    series, _ = run_part("loader", tmp_path)
    assert len(series) == 7 and all(found["median"] > 10 for found in series.values())


@pytest.mark.zoo
def test_corpora(tmp_path):
    pytest.importorskip("tokenizers")
    series, result = run_part("corpora", tmp_path, "--before", str(ROOT))
    assert len(series) == 5 and all(found["median"] > 0 for found in series.values())
    assert [row[0] for row in result["table"][1:]] == ["1,000 rows, now", "1,000 rows, before"]
    assert all(one["exit_code"] == 0 for one in result["details"]["again"])


@pytest.mark.slow
def test_gluonnlps_network_with_our_weights_is_the_same_network():
    """All at once and one token after the other, with texts of other lengths."""
    pytest.importorskip("gluonnlp")
    from bench_parts.gluonnlp_side import SameNetwork

    from mxtrain.engine.backend import mx, nd
    from mxtrain.text.translation.networks.transformer import TransformerNetwork, TransformerSizes

    network = TransformerNetwork(30, 20, TransformerSizes(2, 16, 32, 4, 0.0, False), "none", 1)
    network.initialize(mx.init.Normal(0.3))
    source = nd.array(np.arange(18).reshape(3, 6) * 7 % 30)
    length, target, label = nd.array([6, 3, 4]), nd.array(np.arange(15).reshape(3, 5)), nd.array([[4, 1, 19, 2, 7]] * 3)
    wanted = network(source, length, target, label)[0].asnumpy()
    model = SameNetwork(network).model
    encoded, _ = model.encode(source, valid_length=length)
    states = model.decoder.init_state_from_encoder(encoded, length)
    whole, _, _ = model.decode_seq(target, states)
    np.testing.assert_allclose(-nd.pick(nd.log_softmax(whole), label).asnumpy(), wanted, rtol=1e-4, atol=1e-5)
    for place in range(5):
        score, states, _ = model.decode_step(target[:, place], states)
        assert states[0].shape == (3, place + 1, 16)  # all that was read is read again
        found = -nd.pick(nd.log_softmax(score), label[:, place]).asnumpy()
        np.testing.assert_allclose(found, wanted[:, place], rtol=1e-4, atol=1e-5)


@pytest.mark.zoo
@pytest.mark.slow
def test_beam_search(tmp_path):
    pytest.importorskip("gluonnlp")
    series, result = run_part("beam_search", tmp_path)
    assert len(series) == 7 and all(found["median"] > 0 for found in series.values())
    assert all(len(side["found"]) == 12 for side in result["details"].values())
    assert [target["value"] for target in result["targets"] if "at a time and" in target["name"]] == [1.0, 1.0]


@pytest.mark.zoo
@pytest.mark.slow
def test_cli(tmp_path):
    series, result = run_part("cli", tmp_path)
    assert len(series) == 3
    assert result["details"]["imports_mxnet"] == {"--help": False, "--cfg job": False, "bad override": False}


@pytest.mark.zoo
@pytest.mark.slow
def test_start(tmp_path):
    series, _ = run_part("start", tmp_path, "--before", str(ROOT))
    assert list(series) == [
        "first visible line, before",
        "first visible line, now",
        "first step, before",
        "first step, now",
    ]
    assert 0 < series["first visible line, now"]["median"] < series["first step, now"]["median"]


@pytest.mark.zoo
@pytest.mark.slow
def test_checkpoint(tmp_path):
    series, _ = run_part("checkpoint", tmp_path)
    assert all(found["median"] > 0 for name, found in series.items() if "a step" in name)


@pytest.mark.slow
def test_an_unknown_part_and_a_missing_script_are_refused(tmp_path):
    """Two seconds."""
    done = bench(tmp_path, "runer")
    assert done.returncode == 2 and "there is no part runer" in done.stderr
    done = bench(tmp_path, "gluoncv", "--gluoncv-script", "nowhere.py")
    assert done.returncode == 1 and "'nowhere.py' is no file" in done.stderr
    (tmp_path / "script.py").write_text("")
    done = bench(tmp_path, "gluoncv_workers", "--gluoncv-script", str(tmp_path / "script.py"))
    assert done.returncode == 1 and "train_horovod.py is not there" in done.stderr


@pytest.mark.slow
def test_a_process_that_is_measured_does_not_outlive_an_interrupt(tmp_path):
    """Half a second; the child of the measured process ends, too."""
    code = (
        "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, file=open('pid', 'w')); time.sleep(60)"
    )
    caller = f"from pathlib import Path; from bench_parts.harness import run; run(['-c', {code!r}], {{}}, Path('.'))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
    process = subprocess.Popen([sys.executable, "-c", caller], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    pid = tmp_path / "pid"
    while not (pid.is_file() and pid.read_text().endswith("\n")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.wait(10)
    wait_until(lambda: not is_running(int(pid.read_text())), 5)


def is_running(pid):
    """Returns True if the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_sides_are_measured_in_turn_each_going_first_as_often():
    order = []
    found = in_turn({name: lambda number, name=name: order.append(name) or number for name in "ab"}, 4)
    assert "".join(order) == "abbaabba"
    assert found == {"a": [0, 1, 2, 3], "b": [0, 1, 2, 3]}


def test_medians_and_quartiles():
    series = Series("x", "s", [1.0, 2.0, 3.0, 4.0, 100.0])
    assert series.median == 3 and series.quartiles() == [2, 4]
    assert Series("x", "s", [5.0]).quartiles() == [5, 5]


def test_targets_have_a_direction():
    assert Target("", 0.98, 0.98, at_least=True).met and not Target("", 0.97, 0.98, at_least=True).met
    assert Target("", 60.0, 60.0, at_least=False).met and not Target("", 61.0, 60.0, at_least=False).met


def test_epoch_seconds_are_between_validations(tmp_path):
    path = tmp_path / "clock.json"
    path.write_text(json.dumps([[10, 3.0], [20, 7.0], [30, 9.5]]))
    assert callbacks.epoch_seconds(path) == [4.0, 2.5]


COUNTING = """
import sys, time
from bench_parts.turn import Turns
turns = Turns()
for number in range(100):
    print(sys.argv[1], number, "begins", file=open("../order", "a"), flush=True)
    time.sleep(float(sys.argv[2]))
    print(sys.argv[1], number, "ends", file=open("../order", "a"), flush=True)
    turns.next()
    if sys.argv[3:] and number == 2:
        sys.exit("I give up")
"""


def sides(*arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "scripts"), str(ROOT)])}
    return {words[0]: Side(["-c", COUNTING, *words], environment) for words in arguments}


@pytest.mark.zoo
def test_processes_take_turns(tmp_path):
    """Three seconds; blocks don't overlap, and the first ones are not counted."""
    found = in_turns(sides(("a", "0.1"), ("b", "0.2")), 2, tmp_path)
    seconds = {name: one.seconds for name, one in found.items()}
    assert seconds == {"a": [pytest.approx(0.1, abs=0.05)] * 2, "b": [pytest.approx(0.2, abs=0.05)] * 2}
    lines = [line.split() for line in (tmp_path / "order").read_text().splitlines()]
    timed = [line for line in lines if line[1] in "123"]  # what the first turn began with is over
    assert all(begin[:2] == end[:2] for begin, end in zip(timed[::2], timed[1::2])), timed


TICKING = """
import subprocess, sys, time
from bench_parts.turn import Turns
tick = "import time\\nwhile True: print(time.monotonic(), file=open('../ticks', 'a')); time.sleep(0.01)"
if sys.argv[1] == "ticking":
    subprocess.Popen([sys.executable, "-c", tick])
turns = Turns()
while True:
    time.sleep(0.5)
    turns.next()
"""


@pytest.mark.zoo
def test_side_is_stopped_with_its_children_between_turns(tmp_path):
    """Six seconds; a loader's worker would go on otherwise."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "scripts"), str(ROOT)])}
    given = {name: Side(["-c", TICKING, name], environment, stopped_between=True) for name in ("ticking", "other")}
    found = in_turns(given, 2, tmp_path)
    assert [round(value, 1) for one in found.values() for value in one.seconds] == [0.5] * 4
    ticks = [float(line) for line in (tmp_path / "ticks").read_text().splitlines()]
    pauses = [after - before for before, after in zip(ticks, ticks[1:]) if after - before > 0.45]
    assert len(pauses) >= 2, "it went on while the other had its turn"


HOLDING = """
import multiprocessing, sys, time
from bench_parts.turn import Turns
turns = Turns()
held = bytearray(b"1" * (64 << 20))
fork = multiprocessing.get_context("fork")
is_held = fork.Event()
def hold():
    own = bytearray(96 << 20)
    own[::4096] = b"1" * (len(own) // 4096)
    is_held.set()
    time.sleep(60)
if sys.argv[1] == "two":
    fork.Process(target=hold, daemon=True).start()
    is_held.wait()
while True:
    time.sleep(0.4)
    turns.next()
"""


@pytest.mark.zoo
def test_memory_includes_child_processes_and_counts_shared_pages_once(tmp_path):
    """Four seconds; without that, a loader's worker would count all that it has in common with its parent."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "scripts"), str(ROOT)])}
    given = {name: Side(["-c", HOLDING, name], environment, stopped_between=True) for name in ("one", "two")}
    peak_MiB = {name: one.peak_MiB for name, one in in_turns(given, 1, tmp_path).items()}
    assert 96 <= peak_MiB["two"] - peak_MiB["one"] < 96 + 48, peak_MiB


def test_memory_of_a_process_is_measured_with_and_without_its_imports(tmp_path):
    (tmp_path / "imported.py").write_text("text = bytearray(48 << 20)")
    (tmp_path / "held.py").write_text("import imported, sys; sys.exit(0 * len(bytearray(32 << 20)))")
    path = os.pathsep.join([str(ROOT / "scripts"), str(ROOT), str(tmp_path)])
    figures = memory.Process(["held"], {**os.environ, "PYTHONPATH": path}).measure(tmp_path)
    assert 80 <= figures[memory.GROSS] < 80 + 48, figures
    assert 32 <= figures[memory.NET] < 32 + 16, figures


def test_memory_is_measured_in_pieces(tmp_path, monkeypatch):
    """Processes of the file are not measured again; targets compare with the Gluon loop in float32 and PyTorch."""
    measured = []
    peaks = {"mxtrain": 110.0, "bench_parts.turn": 100.0}

    def measure(process, folder):
        measured.append(process)
        return {memory.GROSS: peaks[process.arguments[0]], memory.NET: 50.0}

    monkeypatch.setattr(memory.Process, "measure", measure)
    for only, count in (("resnet", 11), ("", 11)):
        (tmp_path / f"work{only}").mkdir()
        measured.clear()
        given = Options(True, tmp_path / f"work{only}", torch_python="python", only=only, records=tmp_path / "records")
        found = memory.measure(given)
        assert len(measured) == count
    limits = [target.limit for target in found.targets if target.name.startswith("ResNet-20, 16 px, batch 8, bfloat16")]
    assert limits == [1.1, 1.0, 1.1, 1.0, 1.0]
    assert {(target.value, target.met) for target in found.targets} == {(1.1, True), (1.0, True), (1.1, False)}


WORKING = """
import sys, time
from bench_parts.turn import take_turns
def step():
    until = time.process_time() + float(sys.argv[1])
    while time.process_time() < until: pass
    time.sleep(float(sys.argv[2]))
take_turns(step, lambda: None, 2)
"""


def working(compute_s, sleep_s, **options):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "scripts"), str(ROOT)])}
    return Side(["-c", WORKING, str(compute_s), str(sleep_s)], environment, **options)


@pytest.mark.zoo
def test_comparison_has_rates_ratios_and_processor_time(tmp_path):
    """Five seconds: a block is two steps, of which one side computes for half of the time."""
    sides = {"idle": working(0.1, 0.1, work=8, steps=2), "busy": working(0.2, 0.2, work=8, steps=2)}
    ratios = [Ratio("idle", "busy", 1.5), Ratio("busy", "idle", None, "twice", 2.0), Ratio("absent", "idle", 9.0)]
    found = Measured()
    figures = Comparison("case", "samples/s", sides, 2, ratios).measure(tmp_path, found)
    assert [series.name for series in found.series] == [
        "case: idle",
        "case: busy",
        "case: idle / busy, pair by pair",
        "case: twice, pair by pair",
    ]
    cpu_s = {name: about["cpu_s of a block"] for name, about in found.details.items()}
    assert cpu_s == {"case: idle": pytest.approx(0.2, abs=0.06), "case: busy": pytest.approx(0.4, abs=0.08)}
    shares = [a / b for a, b in zip(figures["idle"], figures["busy"])]
    assert found.series[2].values == shares and all(8 / 0.4 >= rate for rate in figures["idle"])
    assert found.series[3].values == [pytest.approx(0.5 / share) for share in shares]
    (target,) = found.targets
    assert target.name == "case: idle / busy, median of pairs" and target.value == pytest.approx(sum(shares) / 2)


@pytest.mark.slow
def test_sides_with_different_work_are_refused(tmp_path):
    """Two seconds."""
    with pytest.raises(ProcessFailed, match="a: a block of 3 steps had 2"):
        in_turns({"a": working(0.01, 0.0, steps=3)}, 2, tmp_path)


@pytest.mark.slow
def test_a_side_that_dies_is_named(tmp_path):
    """Two seconds."""
    with pytest.raises(ProcessFailed, match="(?s)b: exit code 1.*I give up"):
        in_turns(sides(("a", "0.1"), ("b", "0.1", "dies")), 5, tmp_path)


def test_environments(monkeypatch):
    """The default one is free of what tunes, the tuned one keeps what the caller set."""
    monkeypatch.delitem(sys.modules, "mxnet", raising=False)  # the bench never imports it: then it is not too late
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("MXNET_CPU_TEMP_COPY", "9")
    assert tuned_environment()["OMP_NUM_THREADS"] == "7"
    assert not {"OMP_NUM_THREADS", "MXNET_CPU_TEMP_COPY"} & set(default_environment())
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert int(tuned_environment()["OMP_NUM_THREADS"]) >= 1
    assert "OMP_NUM_THREADS" not in os.environ


def test_missed_target_is_marked_on_the_page(tmp_path):
    found = Measured([Series("a rate", "samples/s", [12_345.0, 12_347.0])], [Target("a share", 0.5, 0.98, True)])
    machine = {
        "cpu": "one",
        "cores": 2,
        "instructions": [],
        "memory_gib": 1,
        "system": "Linux",
        "python": "3.11",
        "packages": {"mxnet": "1.9.1"},
        "commit": "abc",
        "environment": {"OMP_NUM_THREADS": "2"},
    }
    result = {"part": "x", "taken": "2020-01-01", "quick": False, "machine": machine, **found.to_json()}
    publish.write_result("x", result, tmp_path)
    publish.write_page(tmp_path, ["absent", "x"])
    page = (tmp_path / "benchmarks" / "README.md").read_text()
    assert "| [x](other.md#x) | a share | ≥ 0.98 | 0.5 | **no** |" in page
    topic = (tmp_path / "benchmarks" / "other.md").read_text()
    assert "12,346" in topic and "mean nothing" not in page
    assert "**Target missed**: a share is 0.5, and should be at least 0.98." in topic


def test_measurements_in_pieces_are_continued_from_their_records(tmp_path: Path) -> None:
    def never() -> None:
        raise AssertionError("it was measured again")

    options = Options(quick=False, work=tmp_path, records=tmp_path / "records.jsonl")
    first = Records(options)
    assert first.get("a") is None and first.get("a", lambda: [1, 2]) == first.get("a", never) == [1, 2]
    assert first.require(["b", 0], float, "3") == 3.0
    later = Records(replace(options, minutes=0.0))
    assert later.get("a", never) == [1, 2] and later.get("c", never) is None and later.require(["b", 0], never) == 3.0
    assert Records(replace(options, records=None)).get("a") is None
    found = Measured()
    with noting_gaps(found):
        later.require(["b", 1], never)
    assert found.notes == ["Not measured: b, 1."]
