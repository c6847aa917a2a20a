"""A trained network back from its checkpoint, ready to be measured or to predict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, List, Tuple

import numpy as np

from mxtrain.build import Input, build_evaluator, build_network
from mxtrain.checkpoint import Checkpoint
from mxtrain.description.groups import Description
from mxtrain.engine.backend import nd
from mxtrain.parallel.base import Objective
from mxtrain.trainer import snapshot
from mxtrain.trainer.evaluate import Evaluator
from mxtrain.types import Batch


@dataclass(frozen=True)
class Trained:
    """A network with a checkpoint's weights on a device."""

    evaluator: Evaluator
    description: Description
    input: Input
    device: Any

    def measure(self, loader: Any) -> Tuple[Dict[str, float], np.ndarray, np.ndarray]:
        """What `Evaluator.measure` returns, class probabilities (N, K) and labels (N,), from one pass in order."""
        probabilities: List[nd.NDArray] = []
        labels: List[nd.NDArray] = []

        def keep(batch: Batch, logits: nd.NDArray) -> None:
            # Read after the pass: nothing in it waits for the device because of this.
            probabilities.append(nd.softmax(logits.astype("float32")))
            labels.append(batch.label)

        values = self.evaluator.measure(loader, keep)
        probability_NK, label_N = (np.concatenate([one.asnumpy() for one in part]) for part in (probabilities, labels))
        return values, probability_NK, label_N.astype(int)


def load_trained(checkpoint: Checkpoint, description: Description) -> Trained:
    """The network of `description` with the weights that were validated.

    Args:
        checkpoint: of any strategy and any number of devices.
        description: of the run, perhaps with another dataset or placement.

    Raises:
        CheckpointError: it does not fit the description.
    """
    given = Input.from_json(checkpoint.state["run"]["input"])
    description = replace(description, model=description.model.model_copy(update={"weights": None, "freeze": []}))
    ((device, *_), *_) = description.parallel.place()
    network = build_network(description, given, device)
    strategy = description.parallel.build(
        Objective(network, None, None, given.shape, description.dataset.batch_size, description.amp), 1
    )
    snapshot.set_parameters(strategy, snapshot.weights_to_use(checkpoint), str(checkpoint.path))
    return Trained(build_evaluator(description, strategy, given.num_classes), description, given, device)
