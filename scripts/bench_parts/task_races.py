"""Tasks of mxtrain beside the same networks in other frameworks; see seeded_runs.py. The last weights are measured on
all sides."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from bench_parts.harness import ENDS_WELL, Measured, Options, ProcessFailed, ask, status_of, train, tuned_environment
from bench_parts.parts import STEADY
from bench_parts.seeded_runs import OURS, Score, ask_theirs, compare_runs, train_ours


def epochs_of(number: int) -> List[str]:
    """Overrides for so many epochs, whose last weights are measured."""
    return [*STEADY, f"trainer.max_epochs={number}", f"trainer.val_interval={number}"]


def ask_ours(options: Options, function: str, *arguments: Any) -> Any:
    """Returns the result of a function of task_arrays.py."""
    return ask(f"task_arrays:{function}", *arguments, environment=tuned_environment(), folder=options.work)


def write_arrays(options: Options, overrides: Sequence[str]) -> Path:
    """Writes all samples of the data that a run has; returns the archive."""
    path, folder = options.work / "arrays.npz", options.work / "one_step"
    short = ("trainer.max_steps=1", "trainer.limit_val_batches=1", "trainer.test=false")
    run_dir = train([*overrides, *short], folder, ENDS_WELL)
    ask_ours(options, "write_arrays", run_dir, path)
    return path


def new_file(options: Options) -> Path:
    """The name of a file of NumPy in a folder of its own."""
    return Path(tempfile.mkdtemp(dir=options.work)) / "found.npy"


# Sequential recommendation.

RECBOLE = "RecBole"
MOST_ITEMS = 20
"""Items of a user at most; RecBole pads all histories to this length."""


def write_interactions(path: Path, num_users: int, num_items: int, length: Tuple[int, int]) -> int:
    """Writes the generated sequences of dataset=item_sequences as RecBole's .inter file; returns the number of training
    samples, which leave out the first item of each user and the last two."""
    from mxtrain.data.checking.problems import STRICT
    from mxtrain.recommendation.item_sequences import ItemSequences

    made = ItemSequences(num_users=num_users, num_items=num_items, length=list(length)).read(STRICT)
    assert made.time_P is not None
    lines = ["user_id:token\titem_id:token\ttimestamp:float"]
    for user, item, seconds in zip(made.user_P, made.item_P, made.time_P):
        lines.append(f"{made.catalog.users[user]}\t{made.catalog.items[item]}\t{seconds:g}")
    path.write_text("\n".join(lines) + "\n")
    return len(lines) - 1 - 3 * num_users


def sequential(options: Options) -> Measured:
    """SASRec and RecBole's, the last item of each user left out."""
    folder = options.work / "items"
    folder.mkdir()
    users, items, batch_size, epochs, units = (40, 20, 16, 1, 8) if options.quick else (1500, 100, 128, 6, 64)
    samples = write_interactions(folder / "items.inter", users, items, (5, MOST_ITEMS))
    lr, dropout = 0.003, 0.2

    def ours(seed: int) -> Dict[str, float]:
        run_dir, speeds = train_ours(
            options,
            [
                "task=sequential_recommendation",
                "dataset=recbole",
                f"dataset.root={folder}",
                f"dataset.max_history={MOST_ITEMS}",
                f"dataset.batch_size={batch_size}",
                f"model.units={units}",
                f"model.hidden_size={4 * units}",
                f"model.dropout={dropout}",
                f"optimizer.lr={lr}",
                *epochs_of(epochs),
            ],
            seed,
            samples,
        )
        metrics = status_of(run_dir)["metrics"]
        return {**speeds, "hr": metrics["test/hr_at_k"], "ndcg": metrics["test/ndcg_at_k"]}

    def theirs(seed: int) -> Dict[str, float]:
        sizes = {
            "n_layers": 2,
            "n_heads": 2,
            "hidden_size": units,
            "inner_size": 4 * units,
            "hidden_dropout_prob": dropout,
            "attn_dropout_prob": dropout,
            "MAX_ITEM_LIST_LENGTH": MOST_ITEMS,
        }
        told: Dict[str, Any] = ask_theirs(options, "recbole_side:train", folder, seed, epochs, batch_size, lr, sizes)
        if told.pop("samples") != samples:
            raise ProcessFailed(f"RecBole trains on other samples than the {samples} of mxtrain")
        return told

    scores = [
        Score("hr", "HR@10 of the last items", "fraction", 1),
        Score("ndcg", "NDCG@10 of the last items", "fraction", 1),
    ]
    found = compare_runs(options, {OURS: ours, RECBOLE: theirs}, scores, "samples", 1.0)
    found.details = {"users": users, "items": items, "training samples": samples, "epochs": epochs}
    return found


# Several labels.

TORCH = "PyTorch"


def multi_label(options: Options) -> Measured:
    """A residual network on images of digits, and the same in PyTorch; mAP of both by scikit-learn."""
    from sklearn.metrics import average_precision_score

    count, batch_size, epochs = (64, 4, 1) if options.quick else (4000, 64, 6)
    lr = 0.003
    given = [
        "task=multi_label",
        "dataset=digit_sets",
        f"dataset.num_train={count}",
        f"dataset.num_val={32 if options.quick else 800}",
        f"dataset.batch_size={batch_size}",
        "dataset.augment.crop_padding=0",
        "model=resnet",
        "model.depth=20",
        f"optimizer.lr={lr}",
        *epochs_of(epochs),
    ]
    path = write_arrays(options, given)
    target_NK = np.load(path)["test_target"]

    def precision(scores: Path) -> float:
        return float(average_precision_score(target_NK, np.load(scores), average="macro"))

    def ours(seed: int) -> Dict[str, float]:
        run_dir, speeds = train_ours(options, given, seed, count)
        scores = new_file(options)
        ask_ours(options, "write_scores", run_dir, path, scores)
        return {**speeds, "map": precision(scores)}

    def theirs(seed: int) -> Dict[str, float]:
        scores = new_file(options)
        speeds = ask_theirs(options, "torch_tasks_side:train_sets", path, scores, seed, epochs, batch_size, lr)
        return {**speeds, "map": precision(scores)}

    score = Score("map", "mAP of the test images", "fraction", 1)
    found = compare_runs(options, {OURS: ours, TORCH: theirs}, [score], "samples", 1.0)
    found.details = {"training images": count, "test images": len(target_NK), "epochs": epochs}
    return found


# Regression.

TREES = "scikit-learn's HistGradientBoostingRegressor"


def write_friedman(path: Path, count: int, seed: int) -> np.ndarray:
    """Writes samples of Friedman's first function with noise of deviation 1 as a table; returns its targets."""
    from sklearn.datasets import make_friedman1

    x_NF, y_N = make_friedman1(count, n_features=10, noise=1.0, random_state=seed)
    names = [*(f"x{number}" for number in range(x_NF.shape[1])), "y"]
    rows = (",".join(f"{value:.6f}" for value in row) for row in np.column_stack([x_NF, y_N]))
    path.write_text("\n".join([",".join(names), *rows]) + "\n")
    return y_N


def regression(options: Options) -> Measured:
    """Dense layers on a table, and the same in PyTorch; RMSE of both by scikit-learn."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.metrics import mean_squared_error

    counts = (300, 100, 100) if options.quick else (20000, 2000, 10000)
    tables = {name: options.work / f"{name}.csv" for name in ("train", "val", "test")}
    targets = {
        name: write_friedman(path, count, number)
        for number, ((name, path), count) in enumerate(zip(tables.items(), counts))
    }
    epochs, batch_size = (1, 16) if options.quick else (8, 128)
    lr, hidden = 0.003, [128, 64]

    def error(values: np.ndarray) -> float:
        return float(mean_squared_error(targets["test"], values)) ** 0.5

    def ours(seed: int) -> Dict[str, float]:
        run_dir, speeds = train_ours(
            options,
            [
                "task=regression",
                "dataset=feature_table",
                *(f"dataset.{name}={path}" for name, path in tables.items()),
                "dataset.target=y",
                f"dataset.batch_size={batch_size}",
                "model=mlp",
                f"model.hidden={hidden}".replace(" ", ""),
                f"optimizer.lr={lr}",
                *epochs_of(epochs),
            ],
            seed,
            counts[0],
        )
        values = new_file(options)
        ask_ours(options, "write_values", run_dir, tables["test"], values)
        return {**speeds, "rmse": error(np.load(values))}

    def theirs(seed: int) -> Dict[str, float]:
        values = new_file(options)
        given = (tables["train"], tables["test"], values, seed, epochs, batch_size, lr, hidden)
        speeds = ask_theirs(options, "torch_tasks_side:train_numbers", *given)
        return {**speeds, "rmse": error(np.load(values))}

    def trees(seed: int) -> Dict[str, float]:
        train_NC, test_NC = (np.loadtxt(tables[name], delimiter=",", skiprows=1) for name in ("train", "test"))
        model = HistGradientBoostingRegressor(random_state=seed).fit(train_NC[:, :-1], train_NC[:, -1])
        return {"rmse": error(model.predict(test_NC[:, :-1]))}

    score = Score("rmse", "RMSE of the test rows", "unit of the target", -1)
    found = compare_runs(options, {OURS: ours, TORCH: theirs, TREES: trees}, [score], "samples", 1.0)
    found.details = {"training rows": counts[0], "test rows": counts[2], "epochs": epochs}
    return found


# Summaries.


def summarization(options: Options) -> Measured:
    """The Transformer and nn.Transformer on generated reports; ROUGE-L of the most probable token at each place."""
    count, batch_size, epochs, layers, units = (200, 8, 1, 1, 16) if options.quick else (3000, 32, 3, 2, 128)
    lr, warmup, heads, longest = 0.0025, 100, 4, 48
    given = [
        "task=summarization",
        "task.beam_size=1",
        f"task.max_length_offset={longest}",
        "dataset=match_reports",
        f"dataset.num_train={count}",
        *(f"dataset.num_{split}={20 if options.quick else 300}" for split in ("val", "test")),
        f"dataset.batch_size={batch_size}",
        f"model.num_layers={layers}",
        f"model.units={units}",
        f"model.hidden_size={4 * units}",
        f"model.num_heads={heads}",
        f"optimizer.lr={lr}",
        f"lr_scheduler.warmup={warmup}",
        "early_stopping=off",
        f"trainer.max_epochs={epochs}",
        f"trainer.val_interval={epochs}",
    ]
    path = write_arrays(options, given)
    arrays = np.load(path)
    tokens = int((arrays["train_input3"] >= 0).sum())
    about = ask_ours(options, "special_tokens", options.work / "one_step" / "run")
    sizes = {"layers": layers, "units": units, "hidden": 4 * units, "heads": heads, "longest": longest, **about}

    def ours(seed: int) -> Dict[str, float]:
        run_dir, speeds = train_ours(options, given, seed, tokens)
        return {**speeds, "rouge": status_of(run_dir)["metrics"]["test/rouge_l"]}

    def theirs(seed: int) -> Dict[str, float]:
        texts = new_file(options)
        arguments = (path, texts, seed, epochs, batch_size, lr, warmup, sizes)
        speeds = ask_theirs(options, "torch_tasks_side:train_summaries", *arguments)
        rouge = ask_ours(options, "rouge_of_tokens", options.work / "one_step" / "run", texts)
        return {**speeds, "rouge": rouge}

    score = Score("rouge", "ROUGE-L of the test summaries", "fraction", 1)
    found = compare_runs(options, {OURS: ours, TORCH: theirs}, [score], "tokens", 1.0)
    found.details = {"training pairs": count, "tokens of their summaries": tokens, "epochs": epochs}
    return found
