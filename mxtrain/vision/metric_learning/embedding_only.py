"""A trained network without its class centres, for export and for identities that it has not learned."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Sequence, Tuple

from mxtrain.parallel.base import StrategyView
from mxtrain.training.objective import build_evaluator
from mxtrain.vision.metric_learning.head import EmbeddingNetwork, SampledEmbeddingNetwork

if TYPE_CHECKING:
    from mxnet import gluon
    from mxnet.ndarray import NDArray

    from mxtrain.task.spec import Task
    from mxtrain.training.trained import Trained


class EmbeddingStrategy(StrategyView):
    """Returns the embeddings of a strategy alone."""

    def predict(self, inputs: Sequence[NDArray]) -> Tuple[NDArray, ...]:
        return self.whole.predict(inputs)[:1]

    def gather(self) -> gluon.Block:
        network = self.whole.gather()
        assert isinstance(network, (EmbeddingNetwork, SampledEmbeddingNetwork))
        return network.without_centres()


def embedding_only(trained: Trained, task: Task) -> Trained:
    """Returns the trained network without its class centres. Its loss is not defined.

    Args:
        trained: the trained network.
        task: the task of networks without centres.
    """
    description = replace(trained.description, task=task)
    strategy = EmbeddingStrategy(trained.strategy)
    evaluator = build_evaluator(description, strategy, trained.signature)
    return replace(trained, description=description, strategy=strategy, evaluator=evaluator)
