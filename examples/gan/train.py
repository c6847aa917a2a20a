"""A generative adversarial network on handwritten digits.

    python examples/gan/train.py outputs/gan [OVERRIDES]

Source: Goodfellow et al., "Generative Adversarial Networks" (2014), with the loss that does not saturate.

Legend: B batch, Z noise, P pixels, N samples.
"""

from __future__ import annotations

import sys
from typing import Any, Tuple

import numpy as np

import mxtrain

OVERRIDES = (
    "dataset=digits",
    "dataset.augment.crop_padding=0",
    "dataset.batch_size=64",
    "trainer.max_epochs=30",
    "lr_scheduler=constant",
)
Z, P = 16, 64


def build_networks() -> Any:
    """Generator and discriminator, each with the shape of one sample of its input."""
    from mxnet.gluon import nn

    generator, discriminator = nn.HybridSequential(), nn.HybridSequential()
    generator.add(nn.Dense(128, activation="relu"), nn.BatchNorm(), nn.Dense(128, activation="relu"), nn.Dense(P))
    discriminator.add(nn.Dense(128), nn.LeakyReLU(0.2), nn.Dense(128), nn.LeakyReLU(0.2), nn.Dense(1))
    return {"discriminator": (discriminator, (P,)), "generator": (generator, (Z,))}


def noise(batch: Any) -> Any:
    """Returns the generator's input, (B, Z). The session seeds it by the step, so that a resumed run draws the same."""
    from mxnet import nd

    return nd.random.normal(shape=(batch.size, Z), ctx=batch.inputs[0].context)


def discriminator_loss(networks: Any, batch: Any) -> Any:
    """-log D(x) - log(1 - D(G(z))), (B,)."""
    from mxnet import nd

    real_B = networks.discriminator(batch.inputs[0].flatten()).reshape((-1,))
    fake_B = networks.discriminator(networks.generator(noise(batch)).detach()).reshape((-1,))
    return nd.Activation(-real_B, "softrelu") + nd.Activation(fake_B, "softrelu")


def generator_loss(networks: Any, batch: Any) -> Any:
    """-log D(G(z)), (B,)."""
    from mxnet import nd

    return nd.Activation(-networks.discriminator(networks.generator(noise(batch))).reshape((-1,)), "softrelu")


def train(*overrides: str, dir: str) -> mxtrain.Session:
    """Trains; the same call continues an interrupted run."""
    import mxnet as mx

    optimizer = {"discriminator": mx.optimizer.Adam(1e-3, beta1=0.5), "generator": mx.optimizer.Adam(1e-3, beta1=0.5)}
    with mxtrain.session(
        *OVERRIDES, *overrides, task="custom", model=build_networks(), optimizer=optimizer, dir=dir
    ) as s:
        for batch in s.train_batches():
            found = s.step(batch, discriminator_loss, network="discriminator")
            fooled = s.step(batch, generator_loss, network="generator")
            if s.ends_epoch and s.epoch % 10 == 0:
                print(f"epoch {s.epoch}: discriminator {float(found):.3f}, generator {float(fooled):.3f}")
    return s


def frechet_distance(real_NP: np.ndarray, fake_NP: np.ndarray) -> float:
    """|m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)): the distance of two normal distributions with these moments.

    Source: Dowson and Landau (1982); the distance of Heusel et al. (2017) on pixels instead of features.
    """
    covariances = [np.cov(array.astype(np.float64), rowvar=False) for array in (real_NP, fake_NP)]
    eigenvalues = np.linalg.eigvals(covariances[0] @ covariances[1])
    root_trace = np.sqrt(np.clip(eigenvalues.real, 0, None)).sum()
    means = [array.mean(axis=0, dtype=np.float64) for array in (real_NP, fake_NP)]
    return float(((means[0] - means[1]) ** 2).sum() + np.trace(sum(covariances)) - 2 * root_trace)


def main(dir: str, *overrides: str) -> Tuple[float, float]:
    """Trains, and returns the distances of generated from test images, with the trained and an untrained generator."""
    from mxnet import init, nd

    run = train(*overrides, dir=dir).load()
    real_NP = np.concatenate([batch["input"].reshape(-1, P) for batch in run.batches("test")])
    untrained = build_networks()["generator"][0]
    untrained.initialize(init.Xavier())
    z_NZ = nd.array(np.random.default_rng(0).normal(size=(2000, Z)))
    found = [frechet_distance(real_NP, one(z_NZ).asnumpy()) for one in (run.network.generator, untrained)]
    print(f"Frechet distance of generated from test images: {found[0]:.2f}, untrained {found[1]:.2f}")
    return found[0], found[1]


if __name__ == "__main__":
    main(*sys.argv[1:])
