"""One side of the beam search benchmark, in a process of its own; prints JSON.

    python -m bench_parts.beam_search_side RUN ours|gluonnlp|gluonnlp_network BATCH_SIZE SENTENCES

All sides translate the same sentences in the same order, with the same weights. `gluonnlp` is GluonNLP's sampler with
the step of our network, which remembers keys and values; `gluonnlp_network` is GluonNLP alone.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
import zlib
from typing import Any, Callable, List, Sequence, Tuple

import numpy as np

from mxtrain.cli import arguments as command_line
from mxtrain.cli.restored import restore_description, restore_inputs
from mxtrain.dataset.base import open_splits

Batch = Tuple[Any, Any, np.ndarray]
"""Sources, their lengths, both on the device, and the most tokens of each translation."""


def load(run_dir: str) -> Tuple[Any, List[np.ndarray]]:
    """What searches, with a trained network, and the sources of the test split, short ones first."""
    given = command_line.parse([run_dir], reads_checkpoint=True)
    checkpoint, description = restore_description(given, "eval", "best", [])
    dataset, signature = restore_inputs(checkpoint, description, [])
    from mxtrain.trainer.loaders import build_loader
    from mxtrain.trainer.trained import load_trained

    trained = load_trained(checkpoint, description, signature)
    decode = trained.description.task.build_decode_with(description, signature, trained.strategy)
    loader = build_loader(description, open_splits(dataset).test, signature, trained.device, in_order=True)
    sources = []
    for batch in loader.epoch(0):
        token_BS, length_B = (array.asnumpy() for array in batch.inputs[:2])
        sources += [tokens[: int(length)] for tokens, length in zip(token_BS, length_B)]
    return decode, sorted(sources, key=len)


def batches_of(searching: Any, sources: Sequence[np.ndarray], batch_size: int) -> List[Batch]:
    from mxtrain.engine.backend import nd

    found = []
    for begin in range(0, len(sources), batch_size):
        some = sources[begin : begin + batch_size]
        length_B = np.array([len(tokens) for tokens in some])
        token_BS = np.zeros((len(some), length_B.max()), np.int32)
        for row, tokens in zip(token_BS, some):
            row[: len(tokens)] = tokens
        limit_B = searching.limits.of(length_B)
        found.append((nd.array(token_BS, dtype="int32"), nd.array(length_B), limit_B))
    return found


def ours(searching: Any) -> Callable[[Batch], List[np.ndarray]]:
    from mxtrain.model.networks.decoding import beam_search

    network = searching.network.current()

    def search(batch: Batch) -> List[np.ndarray]:
        found = beam_search(network, batch[:2], batch[2], searching.beam)
        return [token_NT[0, : length_N[0]] for token_NT, length_N in zip(found.token_SNT, found.length_SN)]

    return search


def gluonnlp(searching: Any) -> Callable[[Batch], List[np.ndarray]]:
    """GluonNLP's sampler with the same length penalty; it knows one limit for all sentences."""
    from mxtrain.engine.backend import autograd, nd

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from gluonnlp.model import BeamSearchSampler, BeamSearchScorer

    network, beam = searching.network.current(), searching.beam
    scorer = BeamSearchScorer(alpha=beam.length_penalty, K=5)

    def search(batch: Batch) -> List[np.ndarray]:
        with autograd.pause(train_mode=False):
            fixed, moving = network.begin(*batch[:2])
            place = iter(range(1 << 20))

            def decode(token_R: Any, states: List[Any]) -> Tuple[Any, List[Any]]:
                own, others = states[: len(fixed)], states[len(fixed) :]
                log_p, others = network.step(token_R.astype("int32"), next(place), own, others)
                return log_p, [*own, *others]

            sampler = BeamSearchSampler(beam.size, decode, beam.eos, scorer, max_length=int(batch[2].max()))
            bos_B = nd.full((len(batch[2]),), beam.bos)
            samples, _, lengths = (array.asnumpy() for array in sampler(bos_B, [*fixed, *moving]))
        return [token_NT[0, 1 : length_N[0] - 1] for token_NT, length_N in zip(samples, lengths)]

    return search


def gluonnlp_network(searching: Any) -> Callable[[Batch], List[np.ndarray]]:
    """GluonNLP's network with the same weights, its sampler, and the same length penalty."""
    from bench_parts.gluonnlp_translation import translator

    return translator(searching.network.current(), searching.beam)


def main(run_dir: str, side: str, batch_size: str, count: str) -> None:
    searching, sources = load(run_dir)
    chosen = [sources[index] for index in np.linspace(0, len(sources) - 1, int(count)).astype(int)]
    batches = batches_of(searching, chosen, int(batch_size))
    search = {"ours": ours, "gluonnlp": gluonnlp, "gluonnlp_network": gluonnlp_network}[side](searching)
    search(batches[0])  # once for what is made at the first time
    began = time.perf_counter()
    found = [tokens for batch in batches for tokens in search(batch)]
    took_s = time.perf_counter() - began
    hashes = [zlib.crc32(tokens.astype(np.int32).tobytes()) for tokens in found]
    tokens = sum(map(len, found))
    print(json.dumps({"sentences_per_s": len(found) / took_s, "tokens_per_s": tokens / took_s, "found": hashes}))


if __name__ == "__main__":
    main(*sys.argv[1:])
