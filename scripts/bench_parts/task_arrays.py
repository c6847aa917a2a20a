"""Arrays of a run's data and results of its network, as other frameworks and scikit-learn read them, in processes of
their own."""

from __future__ import annotations

from typing import Any, Dict, List

import numpy as np


def write_arrays(run_dir: str, path: str) -> None:
    """Writes all training and test samples of a run, in order, as an archive of NumPy: train_input, test_target, and
    so on. Arrays of texts are padded at the end with -1."""
    import mxtrain

    run = mxtrain.load(run_dir, which="last")
    arrays: Dict[str, np.ndarray] = {}
    for split in ("train", "test"):
        parts: Dict[str, List[np.ndarray]] = {}
        for batch in run.batches(split):  # type: ignore[arg-type]
            for name, array in batch.items():
                parts.setdefault(f"{split}_{name}", []).append(array)
        order = np.argsort(np.concatenate(parts.pop(f"{split}_index")))
        for name, blocks in parts.items():
            arrays[name] = _joined(blocks)[order]
    np.savez(path, **arrays)  # type: ignore[arg-type]


def _joined(blocks: List[np.ndarray]) -> np.ndarray:
    if blocks[0].ndim != 2:
        return np.concatenate(blocks)
    width = max(block.shape[1] for block in blocks)
    padded = (np.pad(block, ((0, 0), (0, width - block.shape[1])), constant_values=-1) for block in blocks)
    return np.concatenate(list(padded))


def write_scores(run_dir: str, path: str, out: str) -> None:
    """Writes the outputs of a run's network for the test_input of `write_arrays`."""
    import mxtrain
    from mxtrain.engine.backend import nd

    network = mxtrain.load(run_dir, which="last").network
    inputs = np.load(path)["test_input"]
    scores = [network(nd.array(inputs[begin : begin + 256])).asnumpy() for begin in range(0, len(inputs), 256)]
    np.save(out, np.concatenate(scores))


def write_values(run_dir: str, table: str, out: str) -> None:
    """Writes the numbers that a run predicts for the rows of a table."""
    import mxtrain

    rows: Any = mxtrain.load(run_dir, which="last").predict(table)
    np.save(out, np.array([row["value"] for row in rows]))


def rouge_of_tokens(run_dir: str, tokens: str) -> float:
    """Returns the ROUGE-L of summaries of the test split, which are rows of tokens padded with -1 (`tokens`, a file of
    NumPy), with the vocabulary of a run."""
    from mxtrain.composing.restored import restore
    from mxtrain.data.spec import open_splits
    from mxtrain.metric.rouge import Rouge

    restored = restore(run_dir, which="last")
    tokenizer = restored.signature.target_tokenizer_config.tokenizer  # type: ignore[attr-defined]
    pairs = open_splits(restored.dataset).test.pairs  # type: ignore[union-attr]
    metric, found = Rouge(variant="L"), np.load(tokens)
    assert len(found) == len(pairs)
    values = [
        metric.of_sums(list(metric.count(tokenizer.decode(row[row >= 0].tolist()), pair[1])), 1)
        for row, pair in zip(found, pairs)
    ]
    return float(np.mean(values))


def special_tokens(run_dir: str) -> Dict[str, int]:
    """Returns the size of the vocabulary of a run, and the tokens that begin and end a text."""
    from mxtrain.composing.restored import restore

    tokenizer = restore(run_dir, which="last").signature.target_tokenizer_config.tokenizer  # type: ignore[attr-defined]
    return {"vocab_size": tokenizer.size, "bos": tokenizer.special.bos, "eos": tokenizer.special.eos}
