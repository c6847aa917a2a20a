"""One side of the corpora benchmark, in a process of its own; prints JSON.

    python -m bench_parts.corpus_side prepare FILE TOKENIZER      texts to tokens, and the first batch
    python -m bench_parts.corpus_side library FILE TOKENIZER      `encode_batch` of tokenizers alone
    python -m bench_parts.corpus_side step FILE TOKENIZER         imports, then a run of one step
    python -m bench_parts.corpus_side train FILE                  a vocabulary of such texts
    python -m bench_parts.corpus_side table FILE                  a table to the first batch, vocabulary included
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import sys
import tempfile
import time
from typing import Any, Dict

BATCH = 1000
"""Texts that the library is given at a time."""


def prepare(path: str, vocab: str) -> Dict[str, Any]:
    """Seconds of each stage."""
    from mxtrain.dataset.language.stored import prepare_tokens
    from mxtrain.dataset.text import MaskedText

    began = time.perf_counter()
    dataset = MaskedText(train=path, vocab=vocab)
    splits = dataset.open()
    texts_s = time.perf_counter() - began
    assert splits.build_tokenizer_config is not None
    config = splits.build_tokenizer_config()
    began = time.perf_counter()
    shards = prepare_tokens(splits.train.shards, 1, config.tokenizer, path)  # type: ignore[attr-defined]
    tokens_s = time.perf_counter() - began
    loader = dataset.build_loader(
        splits.train, _signature(config), num_classes=0, batch_size=32, train=True, prefetch=0
    )  # fmt: skip
    next(loader.epoch(0))
    return {"texts_s": texts_s, "tokens_s": tokens_s, "tokens": int(shards.begin("text")[-1])}


def _signature(config: Any) -> Any:
    from mxtrain.dataset.signature import Signature

    return Signature((), tokenizer_config=config)


def library(path: str, vocab: str) -> Dict[str, Any]:
    """Seconds of encode_batch alone, without reading."""
    import tokenizers

    made = tokenizers.Tokenizer.from_file(vocab)
    took_s, count, size = 0.0, 0, 0
    with open(path, encoding="utf-8") as file:
        texts = (line.rstrip("\n") for line in file if line != "\n")
        while some := list(itertools.islice(texts, BATCH)):
            began = time.perf_counter()
            found = made.encode_batch(some)
            took_s += time.perf_counter() - began
            count += sum(len(one) for one in found)
            size += sum(map(len, some))
    return {"tokens_s": took_s, "tokens": count, "characters": size}


def step(path: str, vocab: str) -> Dict[str, Any]:
    """Seconds from the end of the imports to the end of a run of one step."""
    import mxtrain.build
    from mxtrain.cli.dispatch import run

    assert mxtrain.build
    began = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):
        code = run([
            "task=masked_language_modeling", f"dataset.train={path}", f"dataset.vocab={vocab}", "trainer.max_steps=1",
            "trainer.max_epochs=null", "trainer.limit_val_batches=1", "checkpoint=off", "hydra.run.dir=run_of_a_step",
            "model.num_layers=1", "model.units=32", "model.hidden_size=64", "model.num_heads=2",
            "lr_scheduler=constant", "trainer.test=false",
        ])  # fmt: skip
    return {"step_s": time.perf_counter() - began, "exit_code": code}


def train(path: str) -> Dict[str, Any]:
    """Writes a vocabulary of byte-level BPE of such texts."""
    from bench_parts.corpus_files import paragraphs
    from mxtrain.dataset.language.tokenizing.kinds import TextsInMemory, TokenizerSettings, train_tokenizer

    texts = TextsInMemory(list(itertools.islice(paragraphs(1), 20_000)))
    made = train_tokenizer(TokenizerSettings("bpe", size=8000, lowercase=False), texts)
    with open(path, "w", encoding="utf-8") as file:
        file.write(made.text)  # type: ignore[attr-defined]  # of a tokenizer.json
    return {"tokens": made.size}


def table(path: str) -> Dict[str, Any]:
    """Seconds from a table to its first batch."""
    from mxtrain.dataset.text import Text

    began = time.perf_counter()
    dataset = Text(train=path, test_fraction=0.0)
    splits = dataset.open()
    opened_s = time.perf_counter() - began
    assert splits.build_tokenizer_config is not None
    config = splits.build_tokenizer_config()
    vocabulary_s = time.perf_counter() - began
    options = {"num_classes": 2, "batch_size": 32, "prefetch": 0}
    for source in (splits.train, splits.val):
        next(dataset.build_loader(source, _signature(config), **options).epoch(0))
    return {"opened_s": opened_s, "vocabulary_s": vocabulary_s, "first_batch_s": time.perf_counter() - began}


if __name__ == "__main__":
    os.chdir(tempfile.mkdtemp(dir="."))
    sides = {"prepare": prepare, "library": library, "step": step, "train": train, "table": table}
    found = sides[sys.argv[1]](*sys.argv[2:])
    print(json.dumps({**found, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
