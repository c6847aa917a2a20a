"""Training loops of tasks with PyTorch. Needs nothing of mxtrain: it runs in an environment of its own. Arrays are in
memory, and a batch is a choice of rows by an index; Adam is fused. Networks have the layers of ours and the initial
weights of PyTorch.

Legend: N samples, B batch, K classes, F features, C columns.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Iterator, List, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench_parts.torch_side import convolution, resnet, set_threads

Speeds = Dict[str, float]
"""`work_per_s` and `work_per_cpu_s`, see seeded_runs.py."""


def start(seed: int) -> None:
    set_threads()
    torch.manual_seed(seed)


def shuffled(count: int, batch_size: int) -> Iterator[Tensor]:
    """Rows of the batches of an epoch."""
    return iter(torch.randperm(count).split(batch_size))


def fit(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    epochs: int,
    batches: Callable[[], Iterator[Tensor]],
    loss_of: Callable[[Tensor], Tensor],
    work_of_epoch: float,
    after_step: Callable[[], None] = lambda: None,
) -> Speeds:
    """Trains, and returns the speed without the first epoch, if there are others.

    Args:
        batches: makes the batches of an epoch, as rows.
        loss_of: function of the rows of a batch.
        work_of_epoch: what is counted of an epoch.
        after_step: is called after each step.
    """
    network.train()
    for epoch in range(epochs):
        if epoch < 2:
            began, counted = (time.perf_counter(), time.process_time()), epochs - epoch
        for rows in batches():
            optimizer.zero_grad(set_to_none=True)
            loss_of(rows).backward()
            optimizer.step()
            after_step()
    work = counted * work_of_epoch
    network.eval()
    return {
        "work_per_s": work / (time.perf_counter() - began[0]),
        "work_per_cpu_s": work / (time.process_time() - began[1]),
    }


def adam(network: nn.Module, lr: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(network.parameters(), lr, fused=True)


# Several labels: images to sets of classes.


def train_sets(path: str, out: str, seed: int, epochs: int, batch_size: int, lr: float) -> Speeds:
    """Trains a residual network of depth 20 with binary cross entropy, and writes the scores of the test samples.

    Args:
        path: train_input (N, C, H, W), train_target (N, K) and test_input.
        out: file for the scores, (N, K).
    """
    start(seed)
    arrays = np.load(path)
    image_NCHW = torch.from_numpy(arrays["train_input"]).contiguous(memory_format=torch.channels_last)
    target_NK = torch.from_numpy(arrays["train_target"]).float()
    stem = [*convolution(image_NCHW.shape[1], 16, 3), nn.ReLU(inplace=True)]
    network: Any = resnet((3, 3, 3), 16, False, stem).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    speeds = fit(
        network,
        adam(network, lr),
        epochs,
        lambda: shuffled(len(image_NCHW), batch_size),
        lambda rows: F.binary_cross_entropy_with_logits(network(image_NCHW[rows]), target_NK[rows]),
        len(image_NCHW),
    )
    with torch.inference_mode():
        scores = [network(part) for part in torch.from_numpy(arrays["test_input"]).split(256)]
    np.save(out, torch.cat(scores).numpy())
    return speeds


# Regression: rows of a table to numbers.


def train_numbers(
    train: str, test: str, out: str, seed: int, epochs: int, batch_size: int, lr: float, hidden: Sequence[int]
) -> Speeds:
    """Trains dense layers with half the squared error, and writes the numbers predicted for the test rows.

    Args:
        train, test: CSV files with a line of names; the last column is the target.
        out: file for the predictions, (N,).
        hidden: units of the hidden layers.
    """
    start(seed)
    train_NC, test_NC = (np.loadtxt(path, delimiter=",", skiprows=1) for path in (train, test))
    mean_C, std_C = train_NC.mean(0), train_NC.std(0)
    row_NC, test_row_NC = (torch.from_numpy((rows - mean_C) / std_C).float() for rows in (train_NC, test_NC))
    x_NF, y_N1 = row_NC[:, :-1].contiguous(), row_NC[:, -1:].contiguous()
    layers: List[nn.Module] = []
    width = x_NF.shape[1]
    for units in hidden:
        layers += [nn.Linear(width, units), nn.ReLU(inplace=True)]
        width = units
    network = nn.Sequential(*layers, nn.Linear(width, 1))
    speeds = fit(
        network,
        adam(network, lr),
        epochs,
        lambda: shuffled(len(x_NF), batch_size),
        lambda rows: 0.5 * F.mse_loss(network(x_NF[rows]), y_N1[rows]),
        len(x_NF),
    )
    with torch.inference_mode():
        found_N = network(test_row_NC[:, :-1]).squeeze(1).double().numpy()
    np.save(out, found_N * std_C[-1] + mean_C[-1])
    return speeds
