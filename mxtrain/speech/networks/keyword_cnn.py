"""Convolutions over spectrograms. Imports MXNet, so descriptions import this module only when they build."""

from __future__ import annotations

from typing import Sequence

from mxtrain.engine.backend import gluon
from mxtrain.model.networks.classifier import Classifier, SpatialMean

nn = gluon.nn


def build_keyword_cnn(num_classes: int, channels: Sequence[int], dropout: float) -> gluon.HybridBlock:
    """Builds the network: two 3x3 convolutions for each of `channels`, the first with stride 2, the mean over time and
    frequency, and the output layer."""
    network = Classifier(num_classes, prefix="keyword_cnn_")
    with network.name_scope():
        features = network.features
        for width in channels:
            for stride in (2, 1):
                features.add(nn.Conv2D(width, 3, stride, padding=1, use_bias=False), nn.BatchNorm())
                features.add(nn.Activation("relu"))
        features.add(SpatialMean())
        if dropout:
            features.add(nn.Dropout(dropout))
    return network
