"""A trained network back from its checkpoint, ready to be measured or to predict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, List, Tuple

import numpy as np

from mxtrain import snapshot
from mxtrain.backend import nd
from mxtrain.build import Input, build_evaluator, build_network
from mxtrain.checkpoint import Checkpoint
from mxtrain.description import Description
from mxtrain.evaluate import Evaluator
from mxtrain.parallel.base import Objective


@dataclass(frozen=True)
class Trained:
    """A network with a checkpoint's weights on a device."""

    evaluator: Evaluator
    description: Description
    input: Input
    device: Any

    def probabilities(self, loader: Any) -> Tuple[np.ndarray, np.ndarray]:
        """Class probabilities (N, K) and labels (N,) of all samples of `loader`, in order."""
        found: List[Tuple[np.ndarray, np.ndarray]] = [
            (nd.softmax(logits.astype("float32")).asnumpy(), batch.label.asnumpy().astype(int))
            for batch, logits in self.evaluator.predict(loader)
        ]
        probability_NK, label_N = (np.concatenate(part) for part in zip(*found))
        return probability_NK, label_N


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
    (device, *_) = description.parallel.place()
    network = build_network(description, given, device)
    strategy = description.parallel.build(Objective(network, None, None), 1)
    snapshot.set_parameters(strategy.parameters, snapshot.weights_to_use(checkpoint), str(checkpoint.path))
    return Trained(build_evaluator(description, strategy, given.num_classes), description, given, device)
