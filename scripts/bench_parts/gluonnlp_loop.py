"""A training loop with GluonNLP's own networks, as its scripts have it, to compare with. BERT's is that of
scripts/bert/finetune_classifier.py; for others see gluonnlp_language.py.

python -m bench_parts.gluonnlp_loop NETWORK TOKENS BATCH_SIZE BLOCK_STEPS      takes turns: see turn.py

The environment is the caller's: nothing here sets threads. Batches are on the device before anything is timed.
"""

from __future__ import annotations

import sys
import warnings
from itertools import count
from typing import Any, List

warnings.simplefilter("ignore")

from gluonnlp.model.bert import BERTClassifier, BERTEncoder, BERTModel  # noqa: E402

from bench_parts.bert_sizes import BERT_SIZES, NUM_CLASSES, VOCAB_SIZE  # noqa: E402
from bench_parts.gluonnlp_language import Training, prepare_lstm, prepare_transformer, tokens_of  # noqa: E402
from bench_parts.language_sizes import LSTMS, TRANSFORMERS  # noqa: E402
from bench_parts.turn import Turns  # noqa: E402
from mxtrain.engine.backend import autograd, gluon, mx, nd  # noqa: E402  # old MXNet on new numpy


def build(name: str, tokens: int) -> Any:
    layers, units, hidden, heads = BERT_SIZES[name]
    encoder = BERTEncoder(
        num_layers=layers, units=units, hidden_size=hidden, num_heads=heads, max_length=tokens, dropout=0.1
    )  # fmt: skip
    bert = BERTModel(
        encoder, vocab_size=VOCAB_SIZE, token_type_vocab_size=2, units=units, embed_size=units, use_pooler=True,
        use_decoder=False, use_classifier=False,
    )  # fmt: skip
    return BERTClassifier(bert, NUM_CLASSES, dropout=0.1)


def prepare_bert(name: str, tokens: int, batch_size: int) -> Training:
    """Classification."""
    network = build(name, tokens)
    network.initialize(mx.init.Normal(0.02))
    network.hybridize(static_alloc=True)
    loss_of_scores = gluon.loss.SoftmaxCELoss()
    loss_of_scores.hybridize(static_alloc=True)
    trainer = gluon.Trainer(network.collect_params(), "bertadam", {"learning_rate": 2e-5, "wd": 0.01}, kvstore=None)

    def loss_of(words: Any, types: Any, lengths: Any, label: Any) -> Any:
        return loss_of_scores(network(words, types, lengths), label).mean()

    batches = []
    for _ in range(8):
        words = tokens_of(VOCAB_SIZE, batch_size, tokens)
        label = tokens_of(NUM_CLASSES, batch_size)
        batches.append([words, nd.zeros_like(words), nd.full((batch_size,), tokens), label])
    return Training(loss_of, trainer, batches)


def main(arguments: List[str]) -> None:
    name, tokens, batch_size, block_steps = arguments[0], *map(int, arguments[1:4])
    prepare = prepare_transformer if name in TRANSFORMERS else prepare_lstm if name in LSTMS else prepare_bert
    training = prepare(name, tokens, batch_size)
    turns = Turns()
    losses: List[Any] = []
    for number in count(1):
        with autograd.record():
            loss = training.loss_of(*training.batches[number % len(training.batches)])
        loss.backward()
        training.step()
        losses.append(loss)
        if number % block_steps == 0:
            print(f"step {number}: loss {nd.stack(*losses).mean().asscalar():.4f}", flush=True)
            losses = []
            nd.waitall()
            turns.next()


if __name__ == "__main__":
    main(sys.argv[1:])
