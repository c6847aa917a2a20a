"""Nearest training images of an embedding.

Legend: G images of the gallery, D embedding size.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, List, Mapping, Optional, Sequence
from weakref import WeakKeyDictionary

import numpy as np

from mxtrain.data.spec import open_splits
from mxtrain.errors import MxtrainError
from mxtrain.task.prediction_format import class_name
from mxtrain.task.sample_results import location_texts

if TYPE_CHECKING:
    from mxtrain.parallel.base import Strategy
    from mxtrain.training.trained import Trained
    from mxtrain.types.annotations import Json

log = logging.getLogger(__name__)
_galleries: WeakKeyDictionary[Strategy, Optional[Gallery]] = WeakKeyDictionary()
"""Galleries of networks in use: `Run.predict` is called many times with one network."""


class Gallery:
    """Embeddings of training images.

    Args:
        embedding_GD: embeddings of length 1.
        identities: identity of each image.
        places: file of each image, or its place in the training split.
    """

    def __init__(self, embedding_GD: np.ndarray, identities: Sequence[str], places: Sequence[str]):
        self._embedding_GD, self._identities, self._places = embedding_GD, identities, places

    def nearest(self, embedding_D: np.ndarray, count: int) -> List[Mapping[str, Json]]:
        """Returns identity, cosine and place of the nearest images, nearest first."""
        similarity_G = self._embedding_GD @ embedding_D
        return [
            {
                "identity": self._identities[index],
                "similarity": round(float(similarity_G[index]), 6),
                "file": self._places[index],
            }
            for index in np.argsort(-similarity_G, kind="stable")[:count].tolist()
        ]


def gallery_of(trained: Trained, size: int) -> Optional[Gallery]:
    """Returns the gallery of the run's training images; None with a warning if they cannot be read.

    Args:
        trained: the network.
        size: largest number of images, evenly chosen.
    """
    if trained.strategy not in _galleries:
        try:
            _galleries[trained.strategy] = _embed_gallery(trained, size)
        except MxtrainError as error:
            log.warning("no nearest training images: %s", error)
            _galleries[trained.strategy] = None
    return _galleries[trained.strategy]


def _embed_gallery(trained: Trained, size: int) -> Gallery:
    from mxtrain.training.loaders import build_loader, take

    source = open_splits(trained.description.dataset).train
    chosen = np.linspace(0, len(source) - 1, min(len(source), size)).astype(np.int64).tolist()
    loader = build_loader(trained.description, take(source, chosen), trained.signature, trained.device, in_order=True)
    embeddings, labels = [], []
    for batch, outputs in trained.evaluator.predict(loader):
        embeddings.append(trained.description.task.decode(outputs, batch).asnumpy())  # type: ignore[union-attr]  # one array
        labels += batch.targets[0].asnumpy().astype(int).tolist()
    return Gallery(
        np.concatenate(embeddings),
        [class_name(trained.signature.class_names, label) for label in labels],
        location_texts(source, "train", chosen),
    )
