"""amp as a user meets it: what is refused, what runs, what is resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from low_precision import needs_bfloat16
from running import ROOT, Process

from mxtrain.amp.spec import BFloat16
from mxtrain.cli import main
from mxtrain.runtime.amx import cpu_flags, has_amx
from mxtrain.training.resume import differences

LOW = ("amp=bfloat16", "model=resnet", "model.depth=8", "model.width=2", "dataset.batch_size=128")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments, said",
    [
        (["amp=float16", "parallel.devices=cpu:1"], "amp=float16: MXNet has no products of float16 matrices on a CPU"),
        (["amp=bfloat16", "parallel.devices=gpu:1"], "bfloat16 on CPUs only. Type amp=float16"),
        (["amp=float16", "parallel.devices=gpu:1", "kvstore=dist_async"], "amp=float16 with kvstore=dist_async"),
        (
            ["amp=float16", "parallel.devices=gpu:1", "kvstore=dist_sync", "kvstore.compression=topk"],
            "amp=float16 with kvstore.compression=topk",
        ),
        (["amp=bfloat16", "amp.float32_layer=[output]"], "Did you mean 'amp.float32_layers'?"),
        (["amp=float16", "amp.init_scale=0"], "amp.init_scale"),
    ],
)
def test_impossible_settings_are_refused(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(list(arguments)) == 2
    assert said in capsys.readouterr().err and list(tmp_path.iterdir()) == []


def test_a_processor_without_kernels_is_refused(monkeypatch):
    monkeypatch.setattr("mxtrain.runtime.amx.cpu_flags", lambda: frozenset({"avx2"}))
    assert "no AVX-512" in BFloat16().unsupported_reason("cpu")


def test_another_precision_is_another_run():
    target = {"_target_": "mxtrain.amp.spec.FullPrecision"}
    assert differences({"amp": target}, {"amp": {"_target_": "mxtrain.amp.spec.BFloat16", "float32_layers": []}})


@pytest.mark.slow
@needs_bfloat16
def test_a_run_in_bfloat16_is_resumed_to_the_same_bits_and_evaluated(tmp_path):
    """Three processes train, one evaluates."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    Process(whole, *LOW, "trainer.max_epochs=2").end()
    Process(parts, *LOW, "trainer.max_epochs=2", "trainer.max_steps=13").end(75)
    Process(parts, *LOW, "trainer.max_epochs=2", "trainer.max_steps=null").end()
    statuses = [json.loads((folder / "status.json").read_text()) for folder in (whole, parts)]
    assert statuses[0]["weights_sha256"] == statuses[1]["weights_sha256"]
    meta = json.loads((whole / "meta.json").read_text())
    assert meta["precision"] == {"dtype": "bfloat16", "amx": has_amx(cpu_flags())}
    done = subprocess.run(
        [sys.executable, "-m", "mxtrain", "eval", str(parts), "split=val"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
    )
    assert f"{statuses[1]['best']['value']:.4f}" in done.stdout


@pytest.mark.slow
@needs_bfloat16
def test_no_reference_kernel_is_used(tmp_path):
    """oneDNN's own log of a step of a residual network, whose gradients meet batch norms in many layouts."""
    shape = ("dataset=synthetic", "dataset.shape=[3,32,32]", "dataset.num_samples=30", "dataset.batch_size=8")
    short = ("trainer.max_epochs=null", "trainer.max_steps=2", "trainer.test=false", "checkpoint=off", "optimizer=sgd")
    for precision in ("bfloat16", "off"):
        given = (*LOW[1:3], "model.width=1.0", f"amp={precision}", *shape, *short)
        done = Process(tmp_path / precision, *given, env={"DNNL_VERBOSE": "1"}).end()
        primitives = [line.split(",") for line in done.output.splitlines() if line.startswith("dnnl_verbose,exec")]
        kernels = {f"{kind} {name}" for _, _, _, kind, name, *_ in primitives}
        assert {kind.split()[0] for kind in kernels} >= {"convolution", "batch_normalization", "eltwise"}
        assert not [k for k in kernels if "ref" in k and not k.startswith(("sum", "reorder"))]
        if precision == "bfloat16":
            with_amx = {name for name in kernels if name.startswith("convolution") and "amx" in name}
            assert bool(with_amx) == has_amx(cpu_flags())
