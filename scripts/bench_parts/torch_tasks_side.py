"""Training loops of tasks with PyTorch. Needs nothing of mxtrain: it runs in an environment of its own. Arrays are in
memory, and a batch is a choice of rows by an index; Adam is fused. Networks have the layers of ours and the initial
weights of PyTorch.

Legend: N samples, B batch, S tokens of a document, T tokens of a summary, U units.
"""

from __future__ import annotations

import math
import time
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

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


def shuffled_by_size(size_N: Tensor, batch_size: int, batches_per_pool: int = 16) -> Iterator[Tensor]:
    """Rows of the batches of an epoch; those of a batch have about the same size, as in mxtrain's loaders of texts."""
    pools = torch.randperm(len(size_N)).split(batch_size * batches_per_pool)
    batches = [rows for pool in pools for rows in pool[size_N[pool].argsort()].split(batch_size)]
    return iter([batches[number] for number in torch.randperm(len(batches)).tolist()])


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
        if epoch < 2:  # the clock starts again with the second epoch
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


# Summaries: documents to short texts.


class Summarizer(nn.Module):
    """nn.Transformer with layer norms before each part, sinusoidal positions, and one table of embeddings for
    documents, summaries and the output layer."""

    def __init__(self, vocab_size: int, layers: int, units: int, hidden: int, heads: int, longest: int):
        super().__init__()
        self.units, self.words = units, nn.Embedding(vocab_size, units)
        nn.init.normal_(self.words.weight, std=units**-0.5)
        self.body = nn.Transformer(
            units, heads, layers, layers, hidden, dropout=0.0, layer_norm_eps=1e-6, batch_first=True, norm_first=True
        )
        wave_U = torch.exp(torch.arange(0, units, 2) * (-math.log(10000.0) / units))
        angle_TU = torch.arange(longest)[:, None] * wave_U
        self.register_buffer("places", torch.stack([angle_TU.sin(), angle_TU.cos()], -1).flatten(1))
        self.register_buffer("hidden", torch.ones(longest, longest, dtype=torch.bool).triu(1))

    def embed(self, token_BT: Tensor) -> Tensor:
        return self.words(token_BT) * self.units**0.5 + self.places[: token_BT.shape[1]]

    def encode(self, source_BS: Tensor, is_padding_BS: Tensor) -> Tensor:
        return self.body.encoder(self.embed(source_BS), src_key_padding_mask=is_padding_BS)

    def decode(self, token_BT: Tensor, memory_BSU: Tensor, is_padding_BS: Tensor) -> Tensor:
        """Scores of the next tokens, (B, T, V)."""
        length = token_BT.shape[1]
        found_BTU = self.body.decoder(
            self.embed(token_BT),
            memory_BSU,
            tgt_mask=self.hidden[:length, :length],
            tgt_is_causal=True,
            memory_key_padding_mask=is_padding_BS,
        )
        return F.linear(found_BTU, self.words.weight)

    def forward(self, source_BS: Tensor, token_BT: Tensor, is_padding_BS: Tensor) -> Tensor:
        return self.decode(token_BT, self.encode(source_BS, is_padding_BS), is_padding_BS)


Texts = Tuple[Tensor, Tensor, Tensor, Tensor]
"""Documents, their lengths, summaries, and the next tokens of these."""


def read_texts(arrays: Any, split: str) -> Texts:
    source_NS, length_N, token_NT, label_NT = (torch.from_numpy(arrays[f"{split}_input{n}"]) for n in range(4))
    return source_NS.long().clamp(min=0), length_N.long(), token_NT.long().clamp(min=0), label_NT.long()


def train_summaries(
    path: str, out: str, seed: int, epochs: int, batch_size: int, lr: float, warmup: int, sizes: Dict[str, int]
) -> Speeds:
    """Trains with cross entropy and a rate that rises for `warmup` steps and then falls to the end, and writes the
    summaries of the test documents, the most probable token at each place.

    Args:
        path: train_input0 to train_input3, and test_input0 to test_input3: documents (N, S), lengths (N,), summaries
            (N, T), next tokens (N, T), padded with -1.
        out: file for the summaries, rows of tokens padded with -1.
        sizes: of the network: layers, units, hidden, heads, vocab_size; bos, eos, the special tokens; longest, tokens
            of a summary.
    """
    start(seed)
    arrays = np.load(path)
    source_NS, length_N, token_NT, label_NT = read_texts(arrays, "train")
    longest = max(source_NS.shape[1], sizes["longest"]) + 1
    network = Summarizer(*(sizes[n] for n in ("vocab_size", "layers", "units", "hidden", "heads")), longest)
    optimizer, total = adam(network, lr), epochs * -(-len(source_NS) // batch_size)

    def factor(step: int) -> float:
        return (step + 1) / warmup if step < warmup else max(1 - (step - warmup) / max(total - warmup, 1), 0.0)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    size_N = (label_NT >= 0).sum(1)

    def loss_of(rows: Tensor) -> Tensor:
        # As long as the longest of the batch.
        long, short = int(length_N[rows].max()), int(size_N[rows].max())
        is_padding_BS = torch.arange(long) >= length_N[rows][:, None]
        logits_BTV = network(source_NS[rows, :long], token_NT[rows, :short], is_padding_BS)
        return F.cross_entropy(logits_BTV.flatten(0, 1), label_NT[rows, :short].flatten(), ignore_index=-1)

    speeds = fit(
        network,
        optimizer,
        epochs,
        lambda: shuffled_by_size(torch.maximum(length_N, size_N), batch_size),
        loss_of,
        int(size_N.sum()),
        schedule.step,
    )
    np.save(out, summarize(network, read_texts(arrays, "test"), sizes))
    return speeds


def summarize(network: Summarizer, texts: Texts, sizes: Dict[str, int]) -> np.ndarray:
    """Returns the most probable token at each place, rows padded with -1."""
    source_NS, length_N = texts[:2]
    found: List[Tensor] = []
    with torch.inference_mode():
        for source_BS, length_B in zip(source_NS.split(256), length_N.split(256)):
            is_padding_BS = torch.arange(source_BS.shape[1]) >= length_B[:, None]
            memory_BSU = network.encode(source_BS, is_padding_BS)
            token_BT = torch.full((len(source_BS), 1), sizes["bos"])
            is_over_B = torch.zeros(len(source_BS), dtype=torch.bool)
            kept_BT = torch.full((len(source_BS), sizes["longest"]), -1)
            for place in range(sizes["longest"]):
                next_B = network.decode(token_BT, memory_BSU, is_padding_BS)[:, -1].argmax(-1)
                is_over_B |= next_B == sizes["eos"]
                if is_over_B.all():
                    break
                kept_BT[~is_over_B, place] = next_B[~is_over_B]
                token_BT = torch.cat([token_BT, next_B[:, None]], 1)
            found.append(kept_BT)
    return torch.cat(found).numpy()
