"""Bounds of the proof of an export, and the samples that quantized networks are calibrated with."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, List

import numpy as np
import pytest

from mxtrain.export import compression
from mxtrain.export.compression import Compression, calibration_samples
from mxtrain.export.proof import NotProven, compare_metrics


def test_metrics_may_differ_in_the_sixth_digit() -> None:
    """At most 1e-5, absolute, plus 1e-5 of the value."""
    pairs = compare_metrics({"loss": 2.0, "accuracy": 0.5, "samples_per_s": 9.0}, {"loss": 2.000029, "accuracy": 0.5})
    assert pairs == {"loss": {"mxnet": 2.0, "onnxruntime": 2.000029}, "accuracy": {"mxnet": 0.5, "onnxruntime": 0.5}}
    with pytest.raises(NotProven, match="loss is 2 by MXNet and 2.00003 by onnxruntime"):
        compare_metrics({"loss": 2.0}, {"loss": 2.000031})
    with pytest.raises(NotProven, match="accuracy is nan by MXNet"):
        compare_metrics({"accuracy": float("nan")}, {"accuracy": 0.5})


@pytest.mark.parametrize("wanted, indices", [(4, [0, 33, 66, 99]), (1, [0]), (500, list(range(100)))])
@pytest.mark.parametrize("is_open", [True, False])
def test_calibration_samples_are_evenly_spaced(
    monkeypatch: pytest.MonkeyPatch, wanted: int, indices: List[int], is_open: bool
) -> None:
    """Every sample is yielded once, in batches of at most 8, or one by one if the batch dimension is fixed."""

    def build_loader(description: Any, taken: List[int], signature: Any, device: Any, prefetch: int) -> Any:
        return SimpleNamespace(epoch=lambda: [np.array(taken[n : n + 20]) for n in range(0, len(taken), 20)])

    monkeypatch.setattr(compression, "take", lambda source, chosen: [source[index] for index in chosen])
    monkeypatch.setattr(compression, "build_loader", build_loader)
    monkeypatch.setattr(compression, "RecurrentState", lambda shapes, network: SimpleNamespace(
        enter=lambda batch: SimpleNamespace(inputs=[SimpleNamespace(asnumpy=lambda: batch)])))  # fmt: skip
    objective = SimpleNamespace(state_shapes=(), network=None)
    subject: Any = SimpleNamespace(
        trained=SimpleNamespace(description=None, signature=None, device=None,
                                strategy=SimpleNamespace(objective=objective)),
        network=SimpleNamespace(enter=lambda arrays: {"x": arrays[0]}), is_open=is_open,
    )  # fmt: skip
    settings = Compression("int8", 0.01, train=list(range(100)), samples=wanted)  # type: ignore[arg-type]
    batches = [batch["x"].tolist() for batch in calibration_samples(subject, settings)]
    assert list(itertools.chain(*batches)) == indices
    assert max(map(len, batches)) == (min(8, wanted) if is_open else 1)
