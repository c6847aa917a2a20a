"""`augment=flip` of embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mxtrain
from mxtrain.errors import ConfigError
from mxtrain.vision.images.variants import build_variants
from mxtrain.vision.metric_learning.task import MetricLearning


def test_the_network_adds_the_embedding_of_the_mirror_image() -> None:
    variants = build_variants(["flip"], [], (8, 8))
    task = MetricLearning(neighbours=3).with_variants(variants)
    assert task.flip and task.neighbours == 3 and not task._without_centres
    assert MetricLearning().without_centres().with_variants(variants)._without_centres
    with pytest.raises(ConfigError, match="^augment=flip: task.flip=true adds the mirror image already"):
        task.with_variants(variants)
    with pytest.raises(
        ConfigError, match="^augment=vflip: embeddings are added for an image and its mirror image only"
    ):
        MetricLearning().with_variants(build_variants(["vflip"], [], (8, 8)))


@pytest.mark.slow
def test_embeddings_are_sums_of_embeddings_before_they_are_normalised(train_run: Any, tmp_path: Any) -> None:
    train_run("task=metric_learning", "trainer.max_steps=6", "trainer.max_epochs=null", "task.neighbours=0")
    trained = mxtrain.load(tmp_path / "run")
    image_NHW = np.random.RandomState(0).randint(0, 256, (3, 8, 8)).astype(np.uint8)
    found = trained.predict(image_NHW, augment="flip").arrays
    network = trained.network.embedding  # not normalised
    from mxtrain.engine.backend import nd

    signature = trained.signature
    input_N1HW = ((image_NHW / 255 - signature.mean[0]) / signature.std[0]).astype(np.float32)[:, None]
    total = sum(network(nd.array(each)).asnumpy() for each in (input_N1HW, input_N1HW[..., ::-1]))
    np.testing.assert_allclose(found, total / np.linalg.norm(total, axis=1, keepdims=True), atol=1e-5)
    # The network of one pass is kept for other calls.
    assert np.abs(np.array(trained.predict(image_NHW).arrays) - found).max() > 1e-4
    measured = trained.evaluate(augment="flip")
    assert {**measured, "samples_per_s": 0} == {**trained.evaluate("task.flip=true"), "samples_per_s": 0}
