"""A training loop as an expert writes it with Gluon, to compare the runner with.

python -m bench_parts.hand_loop MODEL PIXELS BATCH_SIZE BLOCK_STEPS NUM_DEVICES      takes turns: see turns.py

The environment is the caller's: nothing here sets threads. From mxtrain come the network and the pixels, so that both
sides compute the same; from there on it is Gluon alone.
"""

from __future__ import annotations

import sys
import warnings
from itertools import count
from typing import Any, List, Tuple

warnings.simplefilter("ignore")

from bench_parts.turns import Turns  # noqa: E402
from mxtrain.engine.backend import autograd, gluon, mx, nd  # noqa: E402

NUM_CLASSES = 10


def build_network(model: str, pixels: int) -> Any:
    """The network that `runner.MODELS` names, by the same code."""
    if model == "resnet20":
        from mxtrain.model.resnet import ResNet

        return ResNet(depth=20).build(NUM_CLASSES, (3, pixels, pixels))
    from mxtrain.model.networks.gluoncv import build

    return build("resnet50_v1b", NUM_CLASSES, {})


def make_batches(pixels: int, batch_size: int, count: int) -> List[Tuple[Any, Any]]:
    """Normalised batches, on the device before anything is timed."""
    from mxtrain.dataset.synthetic import Synthetic

    samples = Synthetic(
        shape=[3, pixels, pixels], num_samples=int(count * batch_size / 0.8) + 10, batch_size=batch_size
    ).open()
    image_NCHW, label_N = samples.train.image_NCHW, samples.train.label_N
    batches = []
    for number in range(count):
        part = slice(number * batch_size, (number + 1) * batch_size)
        data = (image_NCHW[part] / 255.0 - 0.5) / 0.25
        batches.append((nd.array(data, dtype="float32"), nd.array(label_N[part], dtype="float32")))
    nd.waitall()
    return batches


def train(network: Any, batches: List[Tuple[Any, Any]], block_steps: int, num_devices: int) -> None:
    """Trains in blocks of so many steps, without end."""
    devices = [mx.cpu(number) for number in range(num_devices)]
    network.initialize(mx.init.Xavier(), ctx=devices)
    network.hybridize(static_alloc=True, static_shape=True)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    loss_of.hybridize(static_alloc=True, static_shape=True)
    trainer = gluon.Trainer(
        network.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-4},
        kvstore="device" if num_devices > 1 else None,
    )  # fmt: skip
    turns = Turns()
    losses: List[Any] = []
    hits: List[Any] = []
    for number in count(1):
        data, label = batches[number % len(batches)]
        shares = zip(gluon.utils.split_and_load(data, devices), gluon.utils.split_and_load(label, devices))
        with autograd.record():
            found = [(network(x), y) for x, y in shares]
            share_losses = [loss_of(logits, y) for logits, y in found]
        for loss in share_losses:
            loss.backward()
        trainer.step(data.shape[0])
        losses += [loss.mean().as_in_context(devices[0]) for loss in share_losses]
        hits += [(logits.argmax(axis=1) == y).mean().as_in_context(devices[0]) for logits, y in found]
        if number % block_steps == 0:
            # The only wait: what a person wants to see.
            shown = nd.concat(*losses, dim=0).asnumpy().mean(), nd.concat(*hits, dim=0).asnumpy().mean()
            print(f"step {number}: loss {shown[0]:.4f} accuracy {shown[1]:.4f}", flush=True)
            losses, hits = [], []
            nd.waitall()
            turns.next()


def main(arguments: List[str]) -> None:
    model, pixels, batch_size, block_steps, num_devices = arguments[0], *map(int, arguments[1:6])
    batches = make_batches(pixels, batch_size, min(4 * block_steps, 50))
    train(build_network(model, pixels), batches, block_steps, num_devices)


if __name__ == "__main__":
    main(sys.argv[1:])
