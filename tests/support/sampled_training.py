"""Shared by the tests of runs of networks that sample: one step of training on given boxes."""

import numpy as np

from mxtrain.model.parameters import distinct_parameters


def parts_of(description):
    """Signature, network and loss of a run."""
    from mxtrain.data.spec import open_splits
    from mxtrain.engine.backend import mx
    from mxtrain.training.network import build_network
    from mxtrain.training.objective import build_loss

    signature = description.dataset.infer_signature(open_splits(description.dataset), description.model)
    network = build_network(description, signature, mx.cpu())
    return signature, network, build_loss(description, signature, training=True)[0]


def train_on(description, boxes, index_B):
    """Loss of each sample, and gradients by parameter, as training computes them."""
    from mxtrain.engine.backend import autograd, nd
    from mxtrain.types import Batch

    signature, network, block = parts_of(description)
    task = description.task
    targets = task.build_encode(description, signature, training=True)(boxes)
    image = np.random.RandomState(0).uniform(-1, 1, (9, *signature.shape))[index_B]
    batch = Batch((nd.array(image),), tuple(map(nd.array, targets)), len(boxes), index_B=np.array(index_B))
    batch = task.build_collate(description, signature, training=True)(batch, 3)
    with autograd.record():
        loss_B = block(*network(*batch.inputs), *batch.targets)
    loss_B.backward()
    parameters = distinct_parameters(network)
    return loss_B.asnumpy(), {name: p.grad().asnumpy() for name, p in parameters.items() if p.grad_req != "null"}
