"""Training and evaluation as an expert writes them with PyTorch on CPUs, to compare ours with.

python -m bench_parts.torch_loop NETWORK SIZE BATCH_SIZE BLOCK_STEPS float32|bfloat16 eager|compile train|eval
                                                                                                 see turn.py

SIZE is pixels of an image, or tokens of a text. Channels last, autocast, fused optimizers, batches on hand before
anything is timed; the networks have the layers of ours. Needs nothing of mxtrain: it runs in an environment of its own.
"""

from __future__ import annotations

import os
import sys
from itertools import count
from typing import Any, List, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench_parts import torch_language
from bench_parts.bert_sizes import BERT_SIZES, NUM_CLASSES, VOCAB_SIZE
from bench_parts.language_sizes import GPTS, TRANSFORMERS
from bench_parts.turn import Turns


def convolution(channels_in: int, channels: int, size: int, stride: int = 1, groups: int = 1) -> List[nn.Module]:
    """A convolution and its batch norm."""
    layer = nn.Conv2d(channels_in, channels, size, stride, size // 2, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(channels)]


class Residual(nn.Module):
    """A residual block, the stride of a bottleneck in its 3x3 convolution."""

    def __init__(self, channels_in: int, width: int, stride: int, bottleneck: bool):
        super().__init__()
        channels = 4 * width if bottleneck else width
        plan = [(width, 3, stride), (width, 3, 1)]
        if bottleneck:
            plan = [(width, 1, 1), (width, 3, stride), (channels, 1, 1)]
        layers: List[nn.Module] = []
        before = channels_in
        for after, size, step in plan:
            layers += [*convolution(before, after, size, step), nn.ReLU(inplace=True)]
            before = after
        self.body = nn.Sequential(*layers[:-1])
        changes = stride != 1 or channels_in != channels
        self.shortcut = nn.Sequential(*convolution(channels_in, channels, 1, stride)) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


def stem(channels: int) -> List[nn.Module]:
    """The first layers for large images."""
    return [*convolution(3, channels, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]


def head(channels: int) -> List[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, NUM_CLASSES)]


def resnet(blocks: Sequence[int], width: int, bottleneck: bool, first: List[nn.Module]) -> nn.Module:
    layers, channels = list(first), width
    for stage, number in enumerate(blocks):
        for index in range(number):
            layers.append(Residual(channels, width << stage, 2 if stage and not index else 1, bottleneck))
            channels = (width << stage) * (4 if bottleneck else 1)
    return nn.Sequential(*layers, *head(channels))


def mobilenet() -> nn.Module:
    """Version 1, width 1."""
    layers, before = [*convolution(3, 32, 3, 2), nn.ReLU(inplace=True)], 32
    plan = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    for channels, stride in plan:
        layers += [*convolution(before, before, 3, stride, groups=before), nn.ReLU(inplace=True)]
        layers += [*convolution(before, channels, 1), nn.ReLU(inplace=True)]
        before = channels
    return nn.Sequential(*layers, *head(before))


class Dense(nn.Module):
    """A layer of a densely connected block."""

    def __init__(self, channels: int, growth: int = 32):
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.Conv2d(channels, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth), nn.ReLU(inplace=True), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


def densenet121() -> nn.Module:
    layers, channels = stem(64), 64
    for number in (6, 12, 24, 16):
        layers += [Dense(channels + 32 * index) for index in range(number)]
        channels += 32 * number
        layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
        if number != 16:
            layers += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            channels //= 2
    return nn.Sequential(*layers, *head(channels))


class Transformer(nn.Module):
    """A layer of BERT."""

    def __init__(self, units: int, hidden: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv, self.projection = nn.Linear(units, 3 * units), nn.Linear(units, units)
        self.inner, self.outer = nn.Linear(units, hidden), nn.Linear(hidden, units)
        self.norm_attention, self.norm = nn.LayerNorm(units, 1e-12), nn.LayerNorm(units, 1e-12)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        options = {"attn_mask": mask, "dropout_p": 0.1 if self.training else 0.0}
        found = self.projection(torch_language.attend(*self.qkv(x).chunk(3, -1), self.heads, **options))
        x = self.norm_attention(x + self.dropout(found))
        return self.norm(x + self.dropout(self.outer(F.gelu(self.inner(x)))))


class Bert(nn.Module):
    """A classifier of texts, none of which is padded, though the network cannot know that."""

    def __init__(self, layers: int, units: int, hidden: int, heads: int, tokens: int):
        super().__init__()
        self.words, self.types = nn.Embedding(VOCAB_SIZE, units), nn.Embedding(2, units)
        self.places = nn.Parameter(torch.randn(tokens, units) * 0.02)
        self.norm, self.dropout = nn.LayerNorm(units, 1e-12), nn.Dropout(0.1)
        self.layers = nn.ModuleList(Transformer(units, hidden, heads) for _ in range(layers))
        self.pooler, self.classifier = nn.Linear(units, units), nn.Linear(units, NUM_CLASSES)
        self.register_buffer("ones", torch.ones(1, 1, 1, tokens, dtype=torch.bool))

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.types(torch.zeros_like(words)) + self.places
        x = self.dropout(self.norm(x))
        for layer in self.layers:
            x = layer(x, self.ones)
        return self.classifier(self.dropout(torch.tanh(self.pooler(x[:, 0]))))


def build(name: str, size: int) -> Tuple[nn.Module, bool]:
    """(the network, whether it reads images)."""
    small = [*convolution(3, 16, 3), nn.ReLU(inplace=True)]
    if name == "resnet20":
        return resnet((3, 3, 3), 16, False, small), True
    if name == "resnet50":
        return resnet((3, 4, 6, 3), 64, True, stem(64)), True
    if name in BERT_SIZES:
        return Bert(*BERT_SIZES[name], tokens=size), False
    return {"mobilenet": mobilenet, "densenet121": densenet121}[name](), True


Batch = Tuple[Sequence[Tensor], Optional[Tensor]]
"""What the network is given, and classes; None: it computes the loss itself."""


def prepare(name: str, size: int, batch_size: int) -> Tuple[nn.Module, Any, List[Batch]]:
    """A network, its optimizer, and batches."""
    batches: List[Batch] = []
    if name in GPTS or name in TRANSFORMERS:
        batches += [(torch_language.batch_of(name, size, batch_size), None) for _ in range(8)]
        return (*torch_language.build(name, size), batches)
    network, reads_images = build(name, size)
    for _ in range(8):
        given = torch.randint(VOCAB_SIZE, (batch_size, size))
        if reads_images:
            given = torch.randn(batch_size, 3, size, size).contiguous(memory_format=torch.channels_last)
        batches.append(([given], torch.randint(NUM_CLASSES, (batch_size,))))
    if reads_images:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer: Any = torch.optim.SGD(network.parameters(), 0.1, 0.9, weight_decay=1e-4, fused=True)
    else:
        optimizer = torch.optim.AdamW(network.parameters(), 2e-5, weight_decay=0.01, fused=True)
    return network, optimizer, batches


def main(arguments: List[str]) -> None:
    name, size, batch_size, block_steps = arguments[0], *map(int, arguments[1:4])
    dtype, way = getattr(torch, arguments[4]), arguments[5]
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    network, optimizer, batches = prepare(name, size, batch_size)
    trains = arguments[6] == "train"
    network.train(trains)
    call = torch.compile(network) if way == "compile" else network
    turns = Turns()
    found: List[Tensor] = []
    for number in count(1):
        given, label = batches[number % len(batches)]
        if trains:
            optimizer.zero_grad(set_to_none=True)
        with torch.inference_mode(not trains), torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            logits = call(*given)
        with torch.inference_mode(not trains):
            loss = logits if label is None else F.cross_entropy(logits.float(), label)
            if trains:
                loss.backward()
                optimizer.step()
                found.append(loss.detach())
            else:
                found.append(torch.stack([loss, (logits.argmax(1) == label).float().mean()]))
        if number % block_steps == 0:
            print(f"step {number}: {torch.stack(found).mean(0).tolist()}", flush=True)
            found = []
            turns.next()


if __name__ == "__main__":
    main(sys.argv[1:])
