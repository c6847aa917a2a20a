"""SimCLR-style pre-training on handwritten digits, and a linear probe on a few labels.

    python examples/self_supervised/pretrain.py outputs/simclr [OVERRIDES]

Source: Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations" (2020).

Legend: B batch, C channels, H height, W width, D features, N samples.
"""

from __future__ import annotations

import sys
from typing import Any, Tuple

import numpy as np

import mxtrain

OVERRIDES = ("dataset=digits", "dataset.batch_size=128", "trainer.max_epochs=30", "optimizer.lr=0.002")
TEMPERATURE = 0.2
LABELS_PER_CLASS = 3


def build_network() -> Any:
    """An encoder of images, and the projection that the contrastive loss compares."""
    from mxnet.gluon import nn

    network = nn.HybridSequential()
    encoder, projection = nn.HybridSequential(), nn.HybridSequential()
    for channels in (32, 64):
        encoder.add(nn.Conv2D(channels, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"))
    encoder.add(nn.MaxPool2D(2), nn.Conv2D(64, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"))
    encoder.add(nn.GlobalAvgPool2D(), nn.Flatten())
    projection.add(nn.Dense(64, activation="relu"), nn.Dense(32))
    network.add(encoder, projection)
    return network


def random_view(image_BCHW: Any) -> Any:
    """Each image turned, moved and scaled at random, with other contrast and noise."""
    from mxnet import nd

    size, device, shape = image_BCHW.shape[0], image_BCHW.context, image_BCHW.shape[2:]

    def draw(low: float, high: float) -> Any:
        return nd.random.uniform(low, high, shape=(size,), ctx=device)

    angle_B, scale_B, move_x_B, move_y_B = draw(-0.35, 0.35), draw(0.8, 1.2), draw(-0.3, 0.3), draw(-0.3, 0.3)
    cos_B, sin_B = scale_B * nd.cos(angle_B), scale_B * nd.sin(angle_B)
    affine_B6 = nd.stack(cos_B, -sin_B, move_x_B, sin_B, cos_B, move_y_B, axis=1)
    grid = nd.GridGenerator(affine_B6, transform_type="affine", target_shape=shape)
    view_BCHW = nd.BilinearSampler(image_BCHW, grid) * draw(0.6, 1.4).reshape((-1, 1, 1, 1))
    return view_BCHW + nd.random.normal(0, 0.1, shape=image_BCHW.shape, ctx=device)


def contrastive_loss(network: Any, batch: Any) -> Any:
    """NT-Xent, (B,): two views of an image are to be closer to each other than to all other views."""
    from mxnet import nd

    views = nd.concat(random_view(batch.inputs[0]), random_view(batch.inputs[0]), dim=0)
    feature_ND = nd.L2Normalization(network(views))
    score_NN = nd.dot(feature_ND, feature_ND, transpose_b=True) / TEMPERATURE
    count = len(score_NN)
    score_NN = score_NN - 1e4 * nd.eye(count, ctx=score_NN.context)  # a view is not compared with itself
    partner_N = (nd.arange(count, ctx=score_NN.context) + batch.size) % count
    loss_N = -nd.pick(nd.log_softmax(score_NN), partner_N)
    return loss_N.reshape((2, -1)).mean(axis=0)


def pretrain(*overrides: str, dir: str) -> mxtrain.Session:
    """Trains without labels; the same call continues an interrupted run."""
    with mxtrain.session(*OVERRIDES, *overrides, task="custom", model=build_network(), dir=dir) as s:
        for batch in s.train_batches():
            loss = s.step(batch, contrastive_loss)
            if s.ends_epoch and s.epoch % 10 == 0:
                print(f"epoch {s.epoch}: {float(loss):.3f}, validation {s.evaluate(contrastive_loss)['loss']:.3f}")
    return s


def probe(encoder: Any, train: Tuple[np.ndarray, np.ndarray], test: Tuple[np.ndarray, np.ndarray]) -> float:
    """Accuracy of a logistic regression on the features of an encoder, from a few labels of each class."""
    from mxnet import nd
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    image_NCHW, label_N = train
    few = np.concatenate([np.flatnonzero(label_N == k)[:LABELS_PER_CLASS] for k in range(10)])
    found, test_found = (encoder(nd.array(images)).asnumpy() for images in (image_NCHW[few], test[0]))
    scaler = StandardScaler().fit(found)
    model = LogisticRegression(max_iter=1000).fit(scaler.transform(found), label_N[few])
    return float(model.score(scaler.transform(test_found), test[1]))


def labelled(run: mxtrain.Run, split: str) -> Tuple[np.ndarray, np.ndarray]:
    """All images and labels of a split, as they enter the network."""
    batches = list(run.batches(split))  # type: ignore[arg-type]
    return np.concatenate([b["input"] for b in batches]), np.concatenate([b["target"] for b in batches]).astype(int)


def main(dir: str, *overrides: str) -> Tuple[float, float]:
    """Pre-trains, and returns the accuracies of the probe on trained and on random features."""
    s = pretrain(*overrides, dir=dir)
    run = s.load()
    train, test = labelled(run, "train"), labelled(run, "test")
    untrained = build_network()
    untrained.initialize()
    found = probe(run.network[0], train, test), probe(untrained[0], train, test)
    print(f"accuracy with {LABELS_PER_CLASS} labels of each class: {found[0]:.3f}, on random features {found[1]:.3f}")
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
