"""Trains and evaluates with PyTorch, as an expert writes it for CPUs. Needs nothing of mxtrain: it runs in an
environment of its own. The networks have the layers of ours; language models compute their loss themselves, so that it
is compiled, too.

Legend: B batch, S tokens of a source, T tokens of a target or a window, U units.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench_parts.sizes import (
    BERT_SIZES,
    BERT_VOCAB_SIZE,
    BETA2,
    EPSILON,
    FIELDS,
    GPTS,
    IDS_LR,
    LABEL_SMOOTHING,
    LR,
    NUM_CLASSES,
    TRANSFORMERS,
    UNITS,
    WD,
    Sizes,
    id_batches,
)

INITIAL_STD = 0.02


def set_threads() -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    torch.manual_seed(0)


def attend(query_BTU: Tensor, key_BSU: Tensor, value_BSU: Tensor, heads: int, **options: Any) -> Tensor:
    """Attention of several heads; options are those of PyTorch's own operator."""
    parts = (one.unflatten(-1, (heads, -1)).transpose(1, 2) for one in (query_BTU, key_BSU, value_BSU))
    return F.scaled_dot_product_attention(*parts, **options).transpose(1, 2).flatten(2)


class DecoderLayer(nn.Module):
    """A layer of GPT-2."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        units = sizes.units
        self.sizes = sizes
        self.qkv, self.projection = nn.Linear(units, 3 * units), nn.Linear(units, units)
        self.inner, self.outer = nn.Linear(units, sizes.hidden_size), nn.Linear(sizes.hidden_size, units)
        self.norm_attention, self.norm = nn.LayerNorm(units), nn.LayerNorm(units)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x_BTU: Tensor) -> Tensor:
        parts = self.qkv(self.norm_attention(x_BTU)).chunk(3, -1)
        rate = self.sizes.dropout if self.training else 0.0
        context = attend(*parts, self.sizes.num_heads, dropout_p=rate, is_causal=True)
        x_BTU = x_BTU + self.dropout(self.projection(context))
        return x_BTU + self.dropout(self.outer(F.gelu(self.inner(self.norm(x_BTU)), approximate="tanh")))


class Gpt(nn.Module):
    """Tokens and those that follow to the loss; the output layer's weights are the embeddings."""

    def __init__(self, sizes: Sizes, length: int):
        super().__init__()
        self.words, self.places = nn.Embedding(sizes.vocab_size, sizes.units), nn.Embedding(length, sizes.units)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=INITIAL_STD)
        self.dropout, self.norm = nn.Dropout(sizes.dropout), nn.LayerNorm(sizes.units)
        self.layers = nn.ModuleList(DecoderLayer(sizes) for _ in range(sizes.num_layers))

    def forward(self, token_BT: Tensor, label_BT: Tensor) -> Tensor:
        x_BTU = self.dropout(self.words(token_BT) + self.places.weight)
        for layer in self.layers:
            x_BTU = layer(x_BTU)
        logits = F.linear(self.norm(x_BTU), self.words.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), label_BT.flatten())


class TranslatorLayer(nn.Module):
    """A layer of a Transformer's encoder or decoder; norms stand behind the sums, and attention drops nothing."""

    def __init__(self, sizes: Sizes, is_decoder: bool):
        super().__init__()
        units = sizes.units
        self.heads, self.is_decoder = sizes.num_heads, is_decoder
        self.qkv, self.projection = nn.Linear(units, 3 * units), nn.Linear(units, units)
        self.norm_attention, self.norm = nn.LayerNorm(units, 1e-6), nn.LayerNorm(units, 1e-6)
        if is_decoder:
            self.query, self.key_value = nn.Linear(units, units), nn.Linear(units, 2 * units)
            self.cross_projection, self.cross_norm = nn.Linear(units, units), nn.LayerNorm(units, 1e-6)
        self.inner, self.outer = nn.Linear(units, sizes.hidden_size), nn.Linear(sizes.hidden_size, units)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x: Tensor, mask: Tensor, source: Optional[Tensor] = None) -> Tensor:
        options = {"is_causal": True} if self.is_decoder else {"attn_mask": mask}
        context = attend(*self.qkv(x).chunk(3, -1), self.heads, **options)
        x = self.norm_attention(x + self.dropout(self.projection(context)))
        if self.is_decoder:
            context = attend(self.query(x), *self.key_value(source).chunk(2, -1), self.heads, attn_mask=mask)
            x = self.cross_norm(x + self.dropout(self.cross_projection(context)))
        return self.norm(x + self.dropout(self.outer(F.relu(self.inner(x)))))


class Translator(nn.Module):
    """Sources, targets and the tokens that follow in them to the loss. No source is padded, though the network cannot
    know that; one table is that of sources, targets and the output layer."""

    def __init__(self, sizes: Sizes, length: int):
        super().__init__()
        self.units, self.words = sizes.units, nn.Embedding(sizes.vocab_size, sizes.units)
        nn.init.normal_(self.words.weight, std=sizes.units**-0.5)
        self.dropout = nn.Dropout(sizes.dropout)
        self.encoder, self.decoder = (
            nn.ModuleList(TranslatorLayer(sizes, is_decoder) for _ in range(sizes.num_layers))
            for is_decoder in (False, True)
        )
        wave_U = torch.exp(torch.arange(0, sizes.units, 2) * (-math.log(10000.0) / sizes.units))
        angle_TU = torch.arange(length)[:, None] * wave_U
        self.register_buffer("places", torch.stack([angle_TU.sin(), angle_TU.cos()], -1).flatten(1))
        self.register_buffer("ones", torch.ones(1, 1, 1, length, dtype=torch.bool))

    def _embed(self, token_BT: Tensor) -> Tensor:
        return self.dropout(self.words(token_BT) * self.units**0.5 + self.places)

    def forward(self, source_BS: Tensor, token_BT: Tensor, label_BT: Tensor) -> Tensor:
        x_BSU, y_BTU = self._embed(source_BS), self._embed(token_BT)
        for layer in self.encoder:
            x_BSU = layer(x_BSU, self.ones)
        for layer in self.decoder:
            y_BTU = layer(y_BTU, self.ones, x_BSU)
        logits = F.linear(y_BTU, self.words.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), label_BT.flatten(), label_smoothing=LABEL_SMOOTHING)


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
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(inplace=True),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

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
        found = self.projection(attend(*self.qkv(x).chunk(3, -1), self.heads, **options))
        x = self.norm_attention(x + self.dropout(found))
        return self.norm(x + self.dropout(self.outer(F.gelu(self.inner(x)))))


class Bert(nn.Module):
    """A classifier of texts, none of which is padded, though the network cannot know that."""

    def __init__(self, layers: int, units: int, hidden: int, heads: int, tokens: int):
        super().__init__()
        self.words, self.types = nn.Embedding(BERT_VOCAB_SIZE, units), nn.Embedding(2, units)
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


class Ssd(nn.Module):
    """GluonCV's ssd_512_mobilenet1.0: class scores and decoded boxes of all anchors, whose 100 best are summed up to
    one number, without suppression.

    Legend: A anchors, K classes.
    """

    ANCHORS = (4, 6, 6, 6, 4, 4)
    NUM_CLASSES = 20

    def __init__(self) -> None:
        super().__init__()
        layers = list(mobilenet())[:-3]
        # The first map is that of stride 16, before the last two depthwise blocks.
        self.features = nn.ModuleList([nn.Sequential(*layers[:-12]), nn.Sequential(*layers[-12:])])
        channels = [512, 1024]
        for width in (512, 512, 256, 256):
            reduced = [*convolution(channels[-1], width, 1), nn.ReLU(inplace=True)]
            halved = [*convolution(width, width, 3, 2), nn.ReLU(inplace=True)]
            self.features.append(nn.Sequential(*reduced, *halved))
            channels.append(width)
        plan = list(zip(channels, self.ANCHORS))
        self.scores = nn.ModuleList(nn.Conv2d(c, a * (self.NUM_CLASSES + 1), 3, padding=1) for c, a in plan)
        self.offsets = nn.ModuleList(nn.Conv2d(c, a * 4, 3, padding=1) for c, a in plan)

    def forward(self, x: Tensor) -> Tensor:
        scores, offsets = [], []
        for layer, score, offset in zip(self.features, self.scores, self.offsets):
            x = layer(x)
            scores.append(score(x).permute(0, 2, 3, 1).flatten(1))
            offsets.append(offset(x).permute(0, 2, 3, 1).flatten(1))
        score_BAK = torch.cat(scores, 1).unflatten(1, (-1, self.NUM_CLASSES + 1)).float().softmax(-1)
        offset_BA4 = torch.cat(offsets, 1).unflatten(1, (-1, 4)).float()
        centre_BA2, side_BA2 = offset_BA4[..., :2] * 0.1, (offset_BA4[..., 2:] * 0.2).exp()
        box_BA4 = torch.cat([centre_BA2 - side_BA2 / 2, centre_BA2 + side_BA2 / 2], -1)
        best_BN, index_BN = score_BAK[..., 1:].flatten(1).topk(100)
        chosen_BN4 = box_BA4.gather(1, (index_BN // self.NUM_CLASSES)[..., None].expand(-1, -1, 4))
        return best_BN.sum() + chosen_BN4.sum()


def build(name: str, size: int) -> Tuple[nn.Module, bool]:
    """(A classifier, whether it reads images)."""
    small = [*convolution(3, 16, 3), nn.ReLU(inplace=True)]
    if name == "resnet20":
        return resnet((3, 3, 3), 16, False, small), True
    if name == "resnet50":
        return resnet((3, 4, 6, 3), 64, True, stem(64)), True
    if name == "ssd":
        return Ssd(), True
    if name in BERT_SIZES:
        return Bert(*BERT_SIZES[name], tokens=size), False
    return {"mobilenet": mobilenet, "densenet121": densenet121}[name](), True


Batch = Tuple[Sequence[Tensor], Optional[Tensor]]
"""Inputs of the network, and classes; None: it computes the loss itself."""


def prepare(name: str, size: int, batch_size: int, count: int = 8) -> Tuple[nn.Module, Any, List[Batch]]:
    """A network, its optimizer, and so many batches."""
    batches: List[Batch] = []
    if name in GPTS or name in TRANSFORMERS:
        sizes = {**GPTS, **TRANSFORMERS}[name]
        for _ in range(count):
            number = 2 if name in GPTS else 3
            batches.append(([torch.randint(sizes.vocab_size, (batch_size, size)) for _ in range(number)], None))
        if name in GPTS:
            network: nn.Module = Gpt(sizes, size)
            return network, torch.optim.AdamW(network.parameters(), LR, weight_decay=WD, fused=True), batches
        network = Translator(sizes, size)
        return network, torch.optim.Adam(network.parameters(), LR, (0.9, BETA2), EPSILON, fused=True), batches
    network, reads_images = build(name, size)
    for _ in range(count):
        given = torch.randint(BERT_VOCAB_SIZE, (batch_size, size))
        if reads_images:
            given = torch.randn(batch_size, 3, size, size).contiguous(memory_format=torch.channels_last)
        batches.append(([given], None if name == "ssd" else torch.randint(NUM_CLASSES, (batch_size,))))
    if reads_images:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer: Any = torch.optim.SGD(network.parameters(), 0.1, 0.9, weight_decay=1e-4, fused=True)
    else:
        optimizer = torch.optim.AdamW(network.parameters(), 2e-5, weight_decay=0.01, fused=True)
    return network, optimizer, batches


def train(
    name: str, size: int, batch_size: int, dtype: str, way: str, work: str, count: int = 8
) -> Tuple[Callable, Callable]:
    """Blocks of training (`work` is train) or evaluation: channels last, autocast, fused optimizers, batches on hand.

    Args:
        size: pixels of an image, or tokens of a text.
        dtype: float32 or bfloat16.
        way: eager or compile.
        count: batches on hand.
    """
    set_threads()
    network, optimizer, batches = prepare(name, size, batch_size, count)
    trains, cast = work == "train", getattr(torch, dtype)
    network.train(trains)
    call = torch.compile(network) if way == "compile" else network
    stream, found = itertools.cycle(batches), list[Tensor]()

    def step() -> None:
        given, label = next(stream)
        if trains:
            optimizer.zero_grad(set_to_none=True)
        with torch.inference_mode(not trains), torch.autocast("cpu", cast, enabled=cast != torch.float32):
            logits = call(*given)
        with torch.inference_mode(not trains):
            loss = logits if label is None else F.cross_entropy(logits.float(), label)
            if trains:
                loss.backward()
                optimizer.step()
                found.append(loss.detach())
            elif label is None:
                found.append(loss)
            else:
                found.append(torch.stack([loss, (logits.argmax(1) == label).float().mean()]))

    def end() -> None:
        print(torch.stack(found).mean(0).tolist(), flush=True)
        found.clear()

    return step, end


def make_steps(name: str, size: int, batch_size: int, dtype: str, work: str, count: int) -> None:
    """Trains on or evaluates so many batches, eager, two of which are on hand; for measurements of memory."""
    step, end = train(name, size, batch_size, dtype, "eager", work, 2)
    for _ in range(count):
        step()
    end()


def train_table(rows: int) -> Tuple[Callable, Callable]:
    """A table of embeddings as one trains it with PyTorch: sparse=True and SparseAdam."""
    set_threads()
    table, out = nn.Embedding(rows, UNITS, sparse=True), nn.Linear(FIELDS * UNITS, 1)
    nn.init.normal_(table.weight, std=0.01)
    loss = nn.BCEWithLogitsLoss()
    optimizers = torch.optim.SparseAdam(table.parameters(), lr=IDS_LR), torch.optim.Adam(out.parameters(), lr=IDS_LR)
    stream = itertools.cycle([tuple(map(torch.from_numpy, batch)) for batch in id_batches(rows)])

    def step() -> None:
        id_BF, target_B1 = next(stream)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss(out(table(id_BF).flatten(1)), target_B1).backward()
        for optimizer in optimizers:
            optimizer.step()

    return step, lambda: None


# Reinforcement learning.

NUM_ENVS, STEPS, PASSES, GAMMA, LAMBDA, CLIP, VALUE = 8, 32, 10, 0.98, 0.9, 0.2, 0.5
KEPT_EPISODES = 100


def layers(outputs: int, gain: float) -> nn.Sequential:
    made = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))
    for layer, scale in zip((made[0], made[2], made[4]), (2**0.5, 2**0.5, gain)):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return made


def act(counted: int, before: int = 0) -> Dict[str, float]:
    """PPO on CartPole-v1 with the settings of `task=reinforcement_learning`, as CleanRL's ppo.py does it: gymnasium's
    SyncVectorEnv, one Categorical for each step, torch.optim.Adam, gradients clipped to a norm of 0.5.

    Returns:
        Environment steps, seconds of the processor and of the clock that they took, those before not counted, and the
        mean return of the last 100 episodes.
    """
    import gymnasium
    import numpy as np
    from torch.distributions import Categorical

    set_threads()
    policy, value = layers(2, 0.01), layers(1, 1.0)
    parameters = [*policy.parameters(), *value.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3, eps=1e-8)
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    makers = [lambda: gymnasium.make("CartPole-v1")] * NUM_ENVS
    environments = gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode)
    observation, _ = environments.reset(seed=0)
    running, finished = np.zeros(NUM_ENVS), list[float]()
    rollouts = before + counted
    for number in range(rollouts):
        if number == before:
            started = (time.process_time(), time.monotonic())
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (1 - number / rollouts)
        seen: List[torch.Tensor] = []
        taken: List[torch.Tensor] = []
        log_ps: List[torch.Tensor] = []
        values: List[torch.Tensor] = []
        rewards: List[np.ndarray] = []
        ends: List[np.ndarray] = []
        with torch.no_grad():
            for _ in range(STEPS):
                shown = torch.as_tensor(observation, dtype=torch.float32)
                acting = Categorical(logits=policy(shown))
                action = acting.sample()
                seen.append(shown)
                taken.append(action)
                log_ps.append(acting.log_prob(action))
                values.append(value(shown).squeeze(1))
                observation, reward, terminated, truncated, _ = environments.step(action.numpy())
                ended = terminated | truncated
                running += reward
                finished += running[ended].tolist()
                running[ended] = 0
                rewards.append(reward)
                ends.append(ended)
            following = value(torch.as_tensor(observation, dtype=torch.float32)).squeeze(1)
            advantages, advantage = [], torch.zeros(NUM_ENVS)
            for step in reversed(range(STEPS)):
                goes_on = 1.0 - torch.as_tensor(ends[step], dtype=torch.float32)
                error = torch.as_tensor(rewards[step], dtype=torch.float32) + GAMMA * following * goes_on - values[step]
                advantage = error + GAMMA * LAMBDA * goes_on * advantage
                advantages.insert(0, advantage)
                following = values[step]
        observed, acted, old = torch.cat(seen), torch.cat(taken), torch.cat(log_ps)
        gain = torch.cat(advantages)
        target = gain + torch.cat(values)
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        for _ in range(PASSES):
            acting = Categorical(logits=policy(observed))
            ratio = (acting.log_prob(acted) - old).exp()
            clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
            error = (value(observed).squeeze(1) - target).square().mean()
            loss = VALUE * error - torch.min(ratio * gain, clipped * gain).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
    processor, clock = time.process_time() - started[0], time.monotonic() - started[1]
    return {
        "steps": counted * STEPS * NUM_ENVS,
        "processor_s": processor,
        "wall_s": clock,
        "return": float(np.mean(finished[-KEPT_EPISODES:])),
    }
