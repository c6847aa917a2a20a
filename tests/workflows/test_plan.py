"""`mxtrain plan`: from a written profile without training, bad input, and a real measurement."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, List

import pytest

import mxtrain
from mxtrain.cli import main
from mxtrain.cluster.launch.placement_probes import hash_of
from mxtrain.errors import ConfigError
from mxtrain.kvstore.spec import has_horovod
from mxtrain.parallel.placement import Placement
from mxtrain.parallel.placement_profile import PlacementProfile, Probe, read_profile

WORDS = ["model=mlp", "dataset.batch_size=64"]
MIB = 2**20


@pytest.fixture
def profile(tmp_path: Path, describe_run: Any) -> Path:
    """A profile of two cores, on which two replicas are faster and a network that cannot be cut."""
    sizes = tuple((size, 0.001 * size) for size in (8, 16, 32, 64))
    alone = Probe(Placement(), 2, "", 100.0 * MIB, 64, sizes, 0.07, 0.064, 166.0 * MIB, parameter_bytes=1e6)
    parts = Probe(Placement(accumulation=2), 2, "", 0.0, 64, sizes, 0.07, 0.064, 140.0 * MIB)
    two = Probe(Placement(replicas=2), 1, "", 0.0, 64, (), 0.04, 0.033, 170.0 * MIB)
    cut = [Probe(Placement(stages=2, microbatches=n), 1, "it cannot be cut") for n in (1, 2, 4)]
    pairs = [Probe(Placement(workers=2, store=store), 1, step_s=0.09) for store in ("dist_sync", "horovod")]
    probes = [alone, replace(alone, threads=1), parts, two, *cut, *pairs]
    made = PlacementProfile(hash_of(describe_run(*WORDS)), WORDS, 64, 20, "cpu", 2, 2e9, "a processor", probes)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(made.to_json()))
    return path


def test_a_written_profile_is_ranked_without_mxnet(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = "mxnet" in sys.modules
    assert main(["plan", *WORDS, f"profile={profile}", "devices=2", "format=json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert ("mxnet" in sys.modules) == loaded
    steps = [one["step_s"] for one in found["placements"] if not one["reason"]]
    assert steps == sorted(steps) and steps[0] == pytest.approx(0.04)
    assert found["best"] == [*WORDS, "parallel=data", "parallel.replicas=2", "amp=off"]
    assert [one["reason"] for one in found["placements"] if one["reason"]] == ["it cannot be cut"] * 12


def test_the_table_ends_with_the_command(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *WORDS, "parallel=hybrid", f"profile={profile}", "devices=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:2] == ["placement", "step"]
    assert lines[2].startswith("parallel=data parallel.replicas=2 amp=off") and "40.0 ms" in lines[2]
    assert any(line.endswith("it cannot be cut") for line in lines)
    assert lines[-1].endswith("parallel=data parallel.replicas=2 amp=off")


def test_the_python_form_returns_the_same(profile: Path) -> None:
    found = mxtrain.plan(model="mlp", dataset={"batch_size": 64}, profile=profile, devices=2)
    assert found.best is not None and found.best.placement.replicas == 2
    assert found.overrides(found.best)[-3:] == ["parallel=data", "parallel.replicas=2", "amp=off"]
    assert len(found.rows()) == 18 and str(found).startswith("placement")


def test_numbers_of_workers_are_compared(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = tmp_path / "scaling.png"
    words = [*WORDS, f"profile={profile}", "devices=1", "workers=8", "bandwidth=10", f"figure={figure}"]
    assert main(["plan", *words, "kvstore=dist_sync"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("kvstore=dist_sync cluster.workers=8" in line for line in lines)
    assert not any("horovod" in line for line in lines), "the store of the configuration is kept"
    assert next(line for line in lines if line.startswith("rent ")).startswith("rent 1 worker: 1.0 times the samples/s")
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(not has_horovod(), reason="Horovod is not built here: scripts/horovod")
@pytest.mark.parametrize("bucket_mib, messages", [(None, 1), (0.25, 4)])
def test_messages_have_the_configured_size(profile: Path, bucket_mib: Any, messages: int) -> None:
    """Gradients of 1 MB over links of 1 Gbit/s and 100 ms, between two workers: each sends half of them twice. With
    fp16, as many messages are half as long."""
    words = [*WORDS, "kvstore=horovod", *([] if bucket_mib is None else [f"kvstore.bucket_mib={bucket_mib}"])]
    found = mxtrain.plan(*words, profile=profile, devices=1, workers=2, bandwidth=1, latency=100)
    exchange_s = {one.placement.compression: one.exchange_s for one in found.forecasts if one.placement.workers == 2}
    wanted = {name: 2 * (messages * 0.1 + size / 2 / 125e6) for name, size in (("none", 1e6), ("fp16", 0.5e6))}
    assert exchange_s == {name: pytest.approx(seconds) for name, seconds in wanted.items()}


def test_folders_of_outputs_are_made(profile: Path, tmp_path: Path) -> None:
    out, figure = tmp_path / "profiles" / "copy.json", tmp_path / "figures" / "scaling.png"
    mxtrain.plan(*WORDS, profile=profile, devices=1, out=out, figure=figure)
    assert json.loads(out.read_text()) == json.loads(profile.read_text())
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_batches_that_cannot_be_divided_are_listed(profile: Path) -> None:
    """6 samples in 2 x 4 microbatches."""
    content = json.loads(profile.read_text())
    content["batch_size"] = 6
    profile.write_text(json.dumps(content))
    found = mxtrain.plan(model="mlp", dataset={"batch_size": 64}, profile=profile, devices=2)
    assert any("microbatches must be equal" in one.reason for one in found.forecasts)


def test_precisions_and_recomputation_are_compared_if_asked(profile: Path) -> None:
    """Recomputation needs 40 MiB less and takes a third longer; this machine refuses the other precisions."""
    content = json.loads(profile.read_text())
    measured = [one for one in content["probes"] if one["placement"]["workers"] == 1 and "refused" not in one]
    for one in json.loads(json.dumps(measured)):
        one["placement"]["recompute"] = "auto"
        one["step_s"], one["passes_s"] = 4 / 3 * one["step_s"], 4 / 3 * one["passes_s"]
        one["step_peak_bytes"] -= 40 * MIB
        for size in one["passes"]:
            size["seconds"] *= 4 / 3
        content["probes"].append(one)
    for precision in ("bfloat16", "float16"):
        place = {**measured[0]["placement"], "precision": precision}
        content["probes"].append({"placement": place, "threads": 2, "refused": f"no {precision} here"})
    profile.write_text(json.dumps(content))
    found = mxtrain.plan(*WORDS, profile=profile, devices=1, over=["precision", "recompute"])
    steps = {
        one.placement.recompute: one for one in found.forecasts if one.placement.accumulation == 1 and not one.reason
    }
    assert steps["auto"].step_s == pytest.approx(4 / 3 * steps["off"].step_s)
    assert steps["auto"].process_bytes == pytest.approx(steps["off"].process_bytes - 40 * MIB)
    assert "parallel.recompute=auto" in found.overrides(steps["auto"])
    reasons = {
        one.placement.precision: one.reason
        for one in found.forecasts
        if one.reason and one.placement.recompute == "off"
    }
    assert reasons == {"bfloat16": "no bfloat16 here", "float16": "no float16 here"}
    assert len(mxtrain.plan(*WORDS, profile=profile, devices=1).forecasts) == 3


def test_recomputation_of_the_configuration_is_kept(profile: Path) -> None:
    found = mxtrain.plan(*WORDS, "parallel.recompute=4", profile=profile, devices=1)
    assert {one.placement.recompute for one in found.forecasts} == {"4"}
    assert "with amp=off and parallel.recompute=4" in found.forecasts[0].reason


def test_named_devices_are_in_the_overrides(profile: Path) -> None:
    found = mxtrain.plan(*WORDS, "parallel.devices=cpu:1", profile=profile)
    assert found.best is not None
    assert found.overrides(found.best)[-4:] == [
        "parallel=data",
        "parallel.replicas=2",
        "parallel.devices=cpu:2",
        "amp=off",
    ]


def test_gpus_of_a_profile_are_in_the_overrides(profile: Path) -> None:
    """Stands for a profile of a machine with GPUs; `auto` would take all of them."""
    content = json.loads(profile.read_text())
    content["kind"] = "gpu"
    profile.write_text(json.dumps(content))
    found = mxtrain.plan(*WORDS, profile=profile, devices=1)
    assert found.best is not None and "parallel.devices=gpu:1" in found.overrides(found.best)


def test_what_a_step_computes_is_part_of_the_hash(describe_run: Any) -> None:
    words = ["parallel.batch_norm=global", "trainer.clip_global_norm=1", "trainer.sparse_grad=false", "trainer.seed=3"]
    hashes = {hash_of(describe_run(*WORDS, *([word] if word else []))) for word in ["", *words]}
    assert len(hashes) == 5
    assert hash_of(describe_run(*WORDS, "parallel=data", "trainer.log_interval=7")) in hashes


@pytest.mark.parametrize(
    "words, message",
    [
        ([*WORDS, "over=[precison]"], "over"),
        (["model=lenet", "dataset.batch_size=64", "profile={profile}"], "is of another configuration"),
        ([*WORDS, "profile=none.json"], "none.json: the profile cannot be read"),
        ([*WORDS, "devices=0"], "devices"),
        ([*WORDS, "seconds=0"], "seconds"),
        ([*WORDS, "workers=65"], "workers"),
        ([*WORDS, "bandwidth=0"], "bandwidth"),
        ([*WORDS, "latency=-1"], "latency"),
        ([*WORDS, "-m"], "Leave out -m"),
        (["modle=mlp"], "Did you mean"),
        ([*WORDS, "out=profile.json/new.json"], "out"),
        ([*WORDS, "trainer.folds=3"], "folds"),
    ],
    ids=[
        "over",
        "other",
        "missing",
        "devices",
        "seconds",
        "workers",
        "bandwidth",
        "latency",
        "sweep",
        "group",
        "out",
        "folds",
    ],
)
def test_bad_input_is_refused_before_anything_is_measured(
    words: List[str],
    message: str,
    profile: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mxtrain.cluster.launch.placement_probes.run_silently", _no_child)
    assert main(["plan", *(word.format(profile=profile) for word in words)]) == 2
    assert message in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["profile.json"]


def _no_child(*arguments: object, **keywords: object) -> None:
    raise AssertionError("a process was started")


def test_objects_are_refused() -> None:
    with pytest.raises(ConfigError, match="plan: metric.* is an object, which cannot be sent"):
        mxtrain.plan(model="mlp", metric=lambda targets, predictions: 1.0)


@pytest.mark.slow
def test_a_small_network_is_measured_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = ["model=mlp", "model.hidden=[64,64]", "dataset.batch_size=32"]
    found = mxtrain.plan(*words, devices=2, seconds=0.05, out=tmp_path / "profile.json")
    assert read_profile(tmp_path / "profile.json") == found.profile
    assert found.best is not None and found.profile.batch_size == 32
    assert {probe.placement.option for probe in found.profile.probes} == {"single", "data", "model", "pipeline"}
    assert all(0 < one.step_s < 10 and one.process_bytes > 50 * MIB for one in found.forecasts if not one.reason)
    monkeypatch.setattr("mxtrain.cluster.launch.placement_probes.run_silently", _no_child)
    assert mxtrain.plan(*words, devices=2).profile == found.profile, "the second call measures nothing"
