"""Measures mxtrain from Python and Gluon loops of the same work, in processes of their own."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import tempfile
import time
import warnings
import zlib
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Tuple

import numpy as np

from bench_parts.sizes import (
    BERT_SIZES,
    BERT_VOCAB_SIZE,
    FIELDS,
    GPTS,
    IDS_BATCH,
    IDS_LR,
    NUM_CLASSES,
    UNITS,
    id_batches,
)

warnings.simplefilter("ignore")

Steps = Tuple[Callable[[], Any], Callable[[], Any]]
"""Makes a step; waits for the end of all of them. See turn.py."""


# Networks of images: a loop as an expert writes it with Gluon. The environment is the caller's: nothing here sets
# threads. From mxtrain come the network and the pixels, so that both sides compute the same.


def train_with_gluon(model: str, pixels: int, batch_size: int, block_steps: int, num_devices: int) -> Steps:
    """Batches are on the devices already; the loss and the accuracy are read at the end of a block."""
    from mxtrain.engine.backend import autograd, gluon, mx, nd

    devices = [mx.cpu(number) for number in range(num_devices)]
    network = _build_network(model, pixels)
    network.initialize(mx.init.Xavier(), ctx=devices)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    for block in (network, loss_of):
        block.hybridize(static_alloc=True, static_shape=True)
    trainer = gluon.Trainer(
        network.collect_params(),
        "sgd",
        {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-4},
        kvstore="device" if num_devices > 1 else None,
    )
    stream = itertools.cycle(_make_batches(pixels, batch_size, min(4 * block_steps, 50)))
    losses, hits = list[Any](), list[Any]()

    def step() -> None:
        data, label = next(stream)
        shares = zip(gluon.utils.split_and_load(data, devices), gluon.utils.split_and_load(label, devices))
        with autograd.record():
            found = [(network(x), y) for x, y in shares]
            share_losses = [loss_of(logits, y) for logits, y in found]
        for loss in share_losses:
            loss.backward()
        trainer.step(data.shape[0])
        losses.extend(loss.mean().as_in_context(devices[0]) for loss in share_losses)
        hits.extend((logits.argmax(axis=1) == y).mean().as_in_context(devices[0]) for logits, y in found)

    def end() -> None:
        # The only wait: what a person wants to see.
        shown = nd.concat(*losses, dim=0).asnumpy().mean(), nd.concat(*hits, dim=0).asnumpy().mean()
        print(f"loss {shown[0]:.4f} accuracy {shown[1]:.4f}", flush=True)
        losses.clear()
        hits.clear()
        nd.waitall()

    return step, end


def _build_network(model: str, pixels: int) -> Any:
    """The network that the command line's side trains, by the same code."""
    if model == "resnet20":
        from mxtrain.vision.classification.resnet import ResNet

        return ResNet(depth=20).build(NUM_CLASSES, (3, pixels, pixels))
    from mxtrain.vision.networks.gluoncv import build

    return build("resnet50_v1b", NUM_CLASSES, {})


def _make_batches(pixels: int, batch_size: int, count: int) -> List[Tuple[Any, Any]]:
    """Normalised batches, on the device before anything is timed."""
    from mxtrain.engine.backend import nd
    from mxtrain.vision.classification.synthetic import Synthetic

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


def evaluate(run: str, block_batches: int) -> Steps:
    """Evaluates a run as `mxtrain eval` does; a step is a block."""
    from mxtrain.composing.restored import restore

    restored = restore(run, which="last")
    dataset, description, signature = restored.dataset, restored.description, restored.signature
    from mxtrain.training.loaders import build_loader

    trained = restored.load()
    source = dataset.open().train
    loader = build_loader(description, source, signature, trained.device, limit_batches=block_batches)
    return lambda: print(trained.evaluator.measure(loader), flush=True), lambda: None


def evaluate_with_gluon(model: str, size: int, batch_size: int, count: int, run: str) -> float:
    """A plain loop: hybridized with static memory, loss and accuracy of each batch, which is made when it is its turn.

    The networks are those of GluonCV and GluonNLP; GluonNLP has no GPT-2, of which the network is ours.

    Args:
        size: pixels, or tokens.
        count: batches.
        run: a run whose network and number of tokens are taken for GPT-2.
    """
    from mxnet import gluon, nd

    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    if model == "ssd" or model.startswith(("resnet", "densenet", "mobilenet")):
        from gluoncv.model_zoo import get_model

        names = {"ssd": "ssd_512_mobilenet1.0_voc", "resnet50": "resnet50_v1b", "resnet20": "cifar_resnet20_v1"}
        given = {"pretrained_base": False} if model == "ssd" else {"classes": NUM_CLASSES}
        network = get_model(names[model], **given)
    elif model in BERT_SIZES:
        from bench_parts.gluonnlp_side import build_bert

        network = build_bert(model, size)
    else:
        from mxtrain.composing.restored import restore

        restored = restore(run, which="last")
        network = restored.description.task.build_network(restored.description, restored.signature)
    network.initialize()
    for block in (network, loss_of):
        block.hybridize(static_alloc=True, static_shape=True)
    total = 0.0
    for _ in range(count):
        if model in BERT_SIZES:
            words = nd.random.randint(0, BERT_VOCAB_SIZE, (batch_size, size)).astype("float32")
            inputs = [words, nd.zeros_like(words), nd.full((batch_size,), size)]
        elif model in GPTS:
            words = nd.random.randint(0, GPTS[model].vocab_size, (batch_size, size)).astype("float32")
            inputs = [words, words]
        else:
            inputs = [nd.random.normal(shape=(batch_size, 3, size, size))]
        found = network(*inputs)
        if model == "ssd":
            total += sum(one.sum().asscalar() for one in found)
        elif model in GPTS:
            total += found.mean().asscalar()
        else:
            label = nd.zeros((batch_size,))
            total += loss_of(found, label).mean().asscalar() + (found.argmax(axis=1) == label).mean().asscalar()
    return float(total)


# Tables of embeddings: ids (B, F) to scores (B, 1).


def train_table(kind: str, rows: int) -> Steps:
    """`lazy` or `exact`: mxtrain's step, and what the loader's thread does for it; `gluon` or `gluon_sparse`: Gluon's
    Trainer, with gradients that have all rows or are row_sparse."""
    from mxtrain.data.loading.prefetch import prefetch
    from mxtrain.engine.backend import autograd, gluon, mx, nd
    from mxtrain.kvstore.mxnet_store import MXNetStore
    from mxtrain.metric.meter import Meter
    from mxtrain.model.graph.id_inputs import make_sparse
    from mxtrain.model.networks.embedding_table import EmbeddingTable
    from mxtrain.model.prepare import initialize
    from mxtrain.optimizer.ema import NoAverage
    from mxtrain.optimizer.optimizers import Adam
    from mxtrain.optimizer.updater import Updater
    from mxtrain.parallel.objective import Objective
    from mxtrain.parallel.spec import Single
    from mxtrain.training.network import hybridize
    from mxtrain.training.step import TrainingStep
    from mxtrain.types import Batch

    class Scorer(gluon.HybridBlock):
        def __init__(self, **kwargs: Any):
            super().__init__(**kwargs)
            with self.name_scope():
                if kind == "gluon_sparse":
                    self.table = gluon.nn.Embedding(rows, UNITS, sparse_grad=True)
                else:
                    self.table = EmbeddingTable(rows, UNITS)
                self.out = gluon.nn.Dense(1, in_units=FIELDS * UNITS)

        def hybrid_forward(self, F, id_BF):
            return self.out(self.table(id_BF))

    batches = [Batch((nd.array(i, dtype="int32"),), (nd.array(t),), IDS_BATCH) for i, t in id_batches(rows)]
    network, loss = Scorer(), gluon.loss.SigmoidBCELoss()
    if not kind.startswith("gluon"):
        make_sparse(network, (FIELDS,), 1)
    initialize(network, "xavier", 0, mx.cpu(0))
    network = hybridize(network)
    loss.hybridize(static_alloc=True)
    if kind.startswith("gluon"):
        trainer = gluon.Trainer(network.collect_params(), "adam", {"learning_rate": IDS_LR})
        stream = itertools.cycle(batches)

        def gluon_step() -> None:
            batch = next(stream)
            with autograd.record():
                value = loss(network(*batch.inputs), *batch.targets)
            value.backward()
            trainer.step(IDS_BATCH)

        return gluon_step, nd.waitall
    strategy = Single().build(Objective(network, loss, Meter({}, 1), (FIELDS,), IDS_BATCH), 1)
    weights = {name: strategy.values[name] for name in strategy.trainable}
    updater = Updater(
        Adam(lr=IDS_LR).build(1), weights, dict.fromkeys(weights, (1.0, 1.0)), strategy.rows, lazy=kind == "lazy"
    )
    train = TrainingStep(strategy, MXNetStore("local"), updater, NoAverage(), None, None)
    ahead = prefetch(lambda: map(strategy.look_ahead, itertools.cycle(batches)), 2)
    count = itertools.count(1)
    return lambda: train(next(ahead), IDS_LR, next(count)), nd.waitall


# Texts to tokens.


def _in_new_folder(function: Callable[..., Dict[str, Any]]) -> Callable[..., Dict[str, Any]]:
    """Called in an empty folder; the most memory of the process in MB is in what it returns."""

    def call(*arguments: Any) -> Dict[str, Any]:
        import resource

        os.chdir(tempfile.mkdtemp(dir="."))
        return {**function(*arguments), "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}

    return call


@_in_new_folder
def prepare(path: str, vocab: str) -> Dict[str, Any]:
    """Seconds of each stage."""
    from mxtrain.data.loading.loader import LoaderOptions
    from mxtrain.text.classification.text import MaskedText
    from mxtrain.text.signature import TextSplits
    from mxtrain.text.stored import prepare_tokens

    began = time.perf_counter()
    dataset = MaskedText(train=path, vocab=vocab)
    splits = TextSplits.cast(dataset.open())
    texts_s = time.perf_counter() - began
    config = splits.build_tokenizer_config()
    began = time.perf_counter()
    shards = prepare_tokens(splits.train.shards, 1, config.tokenizer, path)  # type: ignore[attr-defined]
    tokens_s = time.perf_counter() - began
    options = LoaderOptions(batch_size=32, train=True, prefetch=0)
    loader = dataset.build_loader(splits.train, _signature(config), options)
    next(loader.epoch(0))
    return {"texts_s": texts_s, "tokens_s": tokens_s, "tokens": int(shards.offsets("text")[-1])}


def _signature(config: Any) -> Any:
    from mxtrain.text.signature import TextSignature

    return TextSignature((), tokenizer_config=config)


@_in_new_folder
def encode_with_library(path: str, vocab: str) -> Dict[str, Any]:
    """Seconds of encode_batch alone, without reading."""
    import tokenizers

    made = tokenizers.Tokenizer.from_file(vocab)
    took_s, count, size = 0.0, 0, 0
    with open(path, encoding="utf-8") as file:
        texts = (line.rstrip("\n") for line in file if line != "\n")
        while some := list(itertools.islice(texts, 1000)):
            began = time.perf_counter()
            found = made.encode_batch(some)
            took_s += time.perf_counter() - began
            count += sum(len(one) for one in found)
            size += sum(map(len, some))
    return {"tokens_s": took_s, "tokens": count, "characters": size}


@_in_new_folder
def train_one_step(path: str, vocab: str) -> Dict[str, Any]:
    """Seconds from the end of the imports to the end of a run of one step."""
    import mxtrain.training.build
    from mxtrain.cli.dispatch import run

    assert mxtrain.training.build
    began = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):
        code = run(
            [
                "task=masked_language_modeling",
                f"dataset.train={path}",
                f"dataset.vocab={vocab}",
                "trainer.max_steps=1",
                "trainer.max_epochs=null",
                "trainer.limit_val_batches=1",
                "checkpoint=off",
                "hydra.run.dir=run_of_a_step",
                "model.num_layers=1",
                "model.units=32",
                "model.hidden_size=64",
                "model.num_heads=2",
                "lr_scheduler=constant",
                "trainer.test=false",
            ]
        )
    return {"step_s": time.perf_counter() - began, "exit_code": code}


@_in_new_folder
def make_vocabulary(path: str) -> Dict[str, Any]:
    """Writes a vocabulary of byte-level BPE of such texts."""
    from bench_parts.files import paragraphs
    from mxtrain.text.tokenizing.kinds import TextsInMemory, TokenizerSettings, train_tokenizer

    texts = TextsInMemory(list(itertools.islice(paragraphs(1), 20_000)))
    made = train_tokenizer(TokenizerSettings("bpe", size=8000, lowercase=False), texts)
    with open(path, "w", encoding="utf-8") as file:
        file.write(made.text)  # type: ignore[attr-defined]  # of a tokenizer.json
    return {"tokens": made.size}


@_in_new_folder
def read_table(path: str) -> Dict[str, Any]:
    """Seconds from a table to its first batch."""
    from mxtrain.data.loading.loader import LoaderOptions
    from mxtrain.text.classification.text import Text
    from mxtrain.text.signature import TextSplits

    began = time.perf_counter()
    dataset = Text(train=path, test_fraction=0.0)
    splits = TextSplits.cast(dataset.open())
    opened_s = time.perf_counter() - began
    config = splits.build_tokenizer_config()
    vocabulary_s = time.perf_counter() - began
    options = LoaderOptions(batch_size=32, prefetch=0)
    for source in (splits.train, splits.val):
        next(dataset.build_loader(source, _signature(config), options).epoch(0))
    return {"opened_s": opened_s, "vocabulary_s": vocabulary_s, "first_batch_s": time.perf_counter() - began}


def write_corpus(path: str, megabytes: float, rows: int = 0) -> None:
    """A file of paragraphs, or a CSV with so many rows."""
    from bench_parts import files

    files.write_table(Path(path), megabytes, rows) if rows else files.write_text(Path(path), megabytes)


# Beam search.


def _load(run_dir: str) -> Tuple[Any, List[np.ndarray]]:
    """Returns the search with a trained network, and the sources of the test split, short ones first."""
    from mxtrain.composing.restored import restore
    from mxtrain.data.spec import open_splits

    restored = restore(run_dir)
    dataset, description, signature = restored.dataset, restored.description, restored.signature
    from mxtrain.training.loaders import build_loader

    trained = restored.load()
    decode = trained.description.task.build_decode(description, signature, trained.strategy)
    loader = build_loader(description, open_splits(dataset).test, signature, trained.device, in_order=True)
    sources = []
    for batch in loader.epoch(0):
        token_BS, length_B = (array.asnumpy() for array in batch.inputs[:2])
        sources += [tokens[: int(length)] for tokens, length in zip(token_BS, length_B)]
    return decode, sorted(sources, key=len)


def _batches_of(searching: Any, sources: List[np.ndarray], batch_size: int) -> List[Any]:
    """Sources, their lengths, both on the device, and the most tokens of each translation."""
    from mxtrain.engine.backend import nd

    found = []
    for begin in range(0, len(sources), batch_size):
        some = sources[begin : begin + batch_size]
        length_B = np.array([len(tokens) for tokens in some])
        token_BS = np.zeros((len(some), length_B.max()), np.int32)
        for row, tokens in zip(token_BS, some):
            row[: len(tokens)] = tokens
        limit_B = searching.limits.max_lengths(length_B)
        found.append((nd.array(token_BS, dtype="int32"), nd.array(length_B), limit_B))
    return found


def translate(run_dir: str, side: str, batch_size: int, count: int) -> Dict[str, Any]:
    """Sentences per second of `ours`, `gluonnlp` or `gluonnlp_network`, which all translate the same ones in the same
    order, with the same weights; and what each found."""
    searching, sources = _load(run_dir)
    chosen = [sources[index] for index in np.linspace(0, len(sources) - 1, count).astype(int)]
    batches = _batches_of(searching, chosen, batch_size)
    if side == "ours":
        from mxtrain.text.translation.networks.decoding import beam_search

        network = searching.network.current()

        def search(batch: Any) -> List[np.ndarray]:
            found = beam_search(network, batch[:2], batch[2], searching.beam)
            return [token_NT[0, : length_N[0]] for token_NT, length_N in zip(found.token_SNT, found.length_SN)]
    else:
        from bench_parts.gluonnlp_side import searches

        search = searches(searching)[side]
    search(batches[0])  # once for what is made at the first time
    began = time.perf_counter()
    found = [tokens for batch in batches for tokens in search(batch)]
    took_s = time.perf_counter() - began
    hashes = [zlib.crc32(tokens.astype(np.int32).tobytes()) for tokens in found]
    return {"sentences_per_s": len(found) / took_s, "tokens_per_s": sum(map(len, found)) / took_s, "found": hashes}


# Loaders.

BATCH = 128
MEAN, STD = [0.491, 0.482, 0.447], [0.247, 0.243, 0.262]


def read_samples(quick: bool) -> Dict[str, int]:
    """Samples or images per second of each loader, about a minute and a half on two cores."""
    most_s, rng = 0.1 if quick else 8.0, np.random.RandomState(0)
    image_NCHW = rng.randint(0, 256, (1_500 if quick else 50_000, 3, 32, 32), dtype=np.uint8)
    label_N = (np.arange(len(image_NCHW)) % 10).astype(np.int32)
    found = {"loader": _read_with_ours(image_NCHW, label_N, most_s)}
    for workers in (0, 1, 2):
        found[f"gluon_dataloader_{workers}"] = _read_with_gluon(image_NCHW, label_N, workers, most_s)
    with tempfile.TemporaryDirectory() as folder:
        found.update(_read_files(Path(folder), 100 if quick else 512, most_s))
    return found


def _rate(batches: Iterable[Any], count_of: Any, most_s: float, warm_up: int = 3) -> int:
    """Samples per second after the first few batches, until the batches or the time are over."""
    from mxtrain.engine.backend import mx

    total, begin = 0, 0.0
    for number, batch in enumerate(batches):
        if number == warm_up:
            mx.nd.waitall()
            begin = time.perf_counter()
        elif number > warm_up:
            total += count_of(batch)
            if time.perf_counter() - begin > most_s:
                break
    mx.nd.waitall()
    return round(total / (time.perf_counter() - begin))


def _read_with_ours(image_NCHW: np.ndarray, label_N: np.ndarray, most_s: float) -> int:
    from mxtrain.data.loading.loader import LoaderOptions
    from mxtrain.data.loading.sources import MemorySource
    from mxtrain.vision.images.loader import ImageSettings, Loader
    from mxtrain.vision.images.settings import Augment

    loader = Loader(
        MemorySource(image_NCHW, label_N),
        ImageSettings((3, 32, 32), MEAN, STD, Augment(crop_padding=4, flip=True)),
        LoaderOptions(BATCH, train=True, num_classes=10),
    )
    return _rate((batch for epoch in range(6) for batch in loader.epoch(epoch)), lambda batch: batch.size, most_s)


def _read_with_gluon(image_NCHW: np.ndarray, label_N: np.ndarray, workers: int, most_s: float) -> int:
    from gluoncv.data.transforms.block import RandomCrop

    from mxtrain.engine.backend import gluon, mx

    dataset = gluon.data.ArrayDataset(mx.nd.array(image_NCHW.transpose(0, 2, 3, 1), dtype="uint8"), label_N)
    transforms = gluon.data.vision.transforms
    # GluonCV's own train_cifar10.py does the same.
    steps = [RandomCrop(32, pad=4), transforms.RandomFlipLeftRight()]
    steps += [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    dataset = dataset.transform_first(transforms.Compose(steps))
    loader = gluon.data.DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=workers)
    return _rate(loader, lambda batch: len(batch[1]), most_s)


def _read_files(folder: Path, count: int, most_s: float) -> Dict[str, int]:
    """JPEGs of 500 x 375, about as large as ImageNet's, to 224 x 224 with a random crop and flip."""
    from PIL import Image

    from mxtrain.data.loading.loader import LoaderOptions
    from mxtrain.engine.backend import mx
    from mxtrain.vision.classification.image_folder import ImageFolder
    from mxtrain.vision.classification.image_record import ImageRecord
    from mxtrain.vision.images.loader import ImageSettings, Loader
    from mxtrain.vision.images.make_record import make_record

    rng = np.random.RandomState(0)
    for number in range(count):
        target = folder / "images" / f"class{number % 2}"
        target.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(rng.randint(0, 256, (24, 32, 3), dtype=np.uint8))
        small.resize((500, 375), Image.BICUBIC).save(target / f"{number}.jpg", quality=90)
    make_record(str(folder / "images"), str(folder / "packed" / "images"), val_fraction=0.02)
    result = {}
    options = {"batch_size": 64, "val_fraction": 0.02}
    for name, dataset in (
        ("image_folder_224", ImageFolder(root=str(folder / "images"), **options)),
        ("image_record_224", ImageRecord(root=str(folder / "packed"), **options)),
    ):
        splits = dataset.open()
        loader = Loader(
            splits.train,
            ImageSettings(splits.shape, splits.mean, splits.std, dataset.augment),
            LoaderOptions(64, train=True, num_classes=2),
        )
        batches = (batch for epoch in range(8) for batch in loader.epoch(epoch))
        result[name] = _rate(batches, lambda batch: batch.size, most_s)
    iterator = mx.io.ImageRecordUInt8Iter(
        path_imgrec=str(folder / "packed" / "images_train.rec"),
        path_imgidx=str(folder / "packed" / "images_train.idx"),
        data_shape=(3, 224, 224),
        batch_size=64,
        shuffle=True,
        random_resized_crop=True,
        min_random_area=0.25,
        max_random_area=1.0,
        min_aspect_ratio=3 / 4,
        max_aspect_ratio=4 / 3,
        rand_mirror=True,
        preprocess_threads=len(os.sched_getaffinity(0)),
    )
    result["mxnet_iterator_224"] = _rate(_epochs(iterator, 8), lambda batch: 64 - batch.pad, most_s)
    return result


def _epochs(iterator: Any, count: int) -> Iterable[Any]:
    for _ in range(count):
        for batch in iterator:
            batch.data[0].wait_to_read()
            yield batch
        iterator.reset()
