"""Trains RecBole's SASRec on a .inter file and measures it by RecBole's evaluator. Runs where RecBole is installed,
without mxtrain."""

from __future__ import annotations

import logging
import os
import time
import warnings
from typing import Any, Dict, List

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation
    from recbole.model.sequential_recommender import SASRec
    from recbole.trainer import Trainer
    from recbole.utils import init_seed


class ClockedTrainer(Trainer):  # type: ignore[misc]  # of a package without types
    """Notes the seconds and the processor seconds of each epoch."""

    def __init__(self, config: Any, model: Any):
        super().__init__(config, model)
        self.clock: List[Any] = []

    def _train_epoch(self, *arguments: Any, **options: Any) -> Any:
        began = (time.perf_counter(), time.process_time())
        loss = super()._train_epoch(*arguments, **options)
        self.clock.append((time.perf_counter() - began[0], time.process_time() - began[1]))
        return loss


def train(path: str, seed: int, epochs: int, batch_size: int, lr: float, sizes: Dict[str, Any]) -> Dict[str, float]:
    """Returns the speed of training, without the first epoch if there are others, the number of training samples, and
    HR@10 and NDCG@10 of the last item of each user among all items.

    Args:
        path: folder of the .inter file, which has the same name.
        seed: of weights, order and dropout.
        epochs: epochs, whose last weights are measured.
        batch_size: next items of a batch.
        lr: learning rate of Adam.
        sizes: settings of SASRec.
    """
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    warnings.simplefilter("ignore")
    folder, name = os.path.split(path)
    config = Config(
        model="SASRec",
        dataset=name,
        config_dict={
            **sizes,
            "data_path": folder,
            "load_col": {"inter": ["user_id", "item_id", "timestamp"]},
            "USER_ID_FIELD": "user_id",
            "ITEM_ID_FIELD": "item_id",
            "TIME_FIELD": "timestamp",
            "eval_args": {"split": {"LS": "valid_and_test"}, "order": "TO", "group_by": "user", "mode": "full"},
            "loss_type": "CE",
            "train_neg_sample_args": None,
            "metrics": ["Hit", "NDCG"],
            "topk": [10],
            "valid_metric": "NDCG@10",
            "learning_rate": lr,
            "epochs": epochs,
            "train_batch_size": batch_size,
            "eval_batch_size": 1024,
            "seed": seed,
            "use_gpu": False,
            "show_progress": False,
            "checkpoint_dir": "saved",
        },
    )
    init_seed(seed, config["reproducibility"])
    logging.getLogger().setLevel(logging.ERROR)
    dataset = create_dataset(config)
    batches, _, test = data_preparation(config, dataset)
    trainer = ClockedTrainer(config, SASRec(config, batches.dataset))
    trainer.fit(batches, None, verbose=False, saved=False, show_progress=False)
    measured = trainer.evaluate(test, load_best_model=False, show_progress=False)
    counted = trainer.clock[1:] or trainer.clock
    samples = len(batches.dataset)
    wall_s, cpu_s = (sum(one) for one in zip(*counted))
    return {
        "work_per_s": len(counted) * samples / wall_s,
        "work_per_cpu_s": len(counted) * samples / cpu_s,
        "samples": samples,
        "hr": float(measured["hit@10"]),
        "ndcg": float(measured["ndcg@10"]),
    }
