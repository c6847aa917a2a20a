"""Networks of Module train on as Module itself trains them, with the same batches."""

import csv

import numpy as np
import pytest

import mxtrain
from mxtrain.engine.backend import mx

STEPS = 10


def network(**norm):
    sym = mx.sym
    x = sym.Convolution(sym.var("data"), num_filter=4, kernel=(3, 3), name="conv1")
    x = sym.Activation(sym.BatchNorm(x, name="bn1", **norm), act_type="relu")
    return sym.SoftmaxOutput(sym.FullyConnected(sym.Flatten(x), num_hidden=3, name="fc1"), name="softmax")


def module_losses(symbol, images, labels, prefix):
    """The loss of each step of MXNet's own loop, computed from the probabilities that it returns."""
    module = mx.mod.Module(symbol)
    batches = mx.io.NDArrayIter(images, labels.astype("float32"), len(images))
    module.bind(batches.provide_data, batches.provide_label)
    mx.random.seed(0)
    np.random.seed(0)
    module.init_params(mx.init.Xavier())
    module.save_checkpoint(prefix, 0)
    module.init_optimizer(optimizer="sgd", optimizer_params={"learning_rate": 0.5, "momentum": 0.9, "wd": 0.01})
    batch, losses = next(iter(batches)), []
    for _ in range(STEPS):
        module.forward(batch, is_train=True)
        probability = module.get_outputs()[0].asnumpy()
        losses.append(-np.log(probability[np.arange(len(labels)), labels]).mean())
        module.backward()
        module.update()
    return losses, module.get_params()


@pytest.mark.slow
@pytest.mark.parametrize(
    "norm",
    [
        pytest.param({}, marks=pytest.mark.zoo),
        {"use_global_stats": True, "fix_gamma": False},
        {"fix_gamma": False, "eps": 1e-3},
    ],
)
def test_loss_curve_is_that_of_module(tmp_path, norm):
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(96, 1, 6, 6)).astype("float32"), rng.integers(0, 3, 96)
    prefix = str(tmp_path / "old")
    losses, (arguments, states) = module_losses(network(**norm), images, labels, prefix)
    run = mxtrain.train(
        "model=symbol",
        f"model.prefix={prefix}",
        # Module decays weights and the scales of norms.
        'model.param_groups=[{pattern: "*_gamma", wd_mult: 1.0}]',
        "optimizer=sgd",
        "optimizer.lr=0.5",
        "optimizer.momentum=0.9",
        "optimizer.wd=0.01",
        "lr_scheduler=constant",
        f"trainer.max_epochs={STEPS}",
        "trainer.log_interval=1",
        "dataset.batch_size=96",
        "logger=[csv]",
        dataset=((images, labels), (images, labels)),
        dir=str(tmp_path / "run"),
    )
    with open(tmp_path / "run" / "metrics.csv") as file:
        ours = [float(row["loss"]) for row in csv.DictReader(file) if row["split"] == "train"]
    np.testing.assert_allclose(ours, losses, rtol=2e-5)
    assert losses[-1] < 0.6 * losses[0]
    trained = mx.nd.load(f"{run.checkpoint.path}/model.params")
    for name, array in {**arguments, **states}.items():
        if name != "bn1_gamma" or norm.get("fix_gamma") is False:
            np.testing.assert_allclose(trained[name].asnumpy(), array.asnumpy(), rtol=1e-4, atol=1e-5)
