"""scripts/bench: runs parts of the benchmark and writes what they found."""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Dict, List

from bench_parts import (
    checks,
    distillation,
    distributed,
    exports,
    faults,
    forecasting,
    kill_sweep,
    memory,
    object_stores,
    parts,
    planning,
    pruning,
    publish,
    ray_faults,
    recompute,
    replay,
    restarts,
    serving,
    serving_peers,
    sharded_optimizer,
    slow_links,
    task_races,
    tuning,
    uneven,
    vision_races,
)
from bench_parts.harness import ROOT, Options, Part, ProcessFailed, say

IN_TURNS = (
    "All sides are started once and train in turns, a block of steps each (scripts/bench_parts/harness.py); start-up "
    "and the first two blocks are left out, and no epoch ends within a measurement. Ours is `python -m mxtrain` with "
    "every default callback and logger, its data through the loader."
)
STOPPED = (
    "A side is stopped (SIGSTOP) while it is not its turn, so that nothing is loaded ahead outside of what is timed. "
    "Images are scikit-learn's photographs with drawn ellipses, in PASCAL VOC's layout; both sides decode, change "
    "and resize them anew in each step."
)
TORCH = (
    "PyTorch's sides: scripts/bench_parts/torch_side.py: channels last, scaled_dot_product_attention, autocast, fused "
    "optimizers, batches on hand; of eager and torch.compile, the one that was faster in a short trial. As many "
    "threads as there are cores."
)
ONE_THREAD_EACH = (
    "Each side is a process of one thread, as often as there are seeds, in turn. The samples of training are counted "
    "over the time without start-up, validation and what is done at the first time (ours: the first 50 steps; theirs: "
    "the first epoch), in seconds and in processor seconds of all threads. The mean of a score over the seeds may be "
    "worse than the other side's by one deviation of the seeds, the larger of both."
)
REPLAY_RACE = (
    "The same sizes of networks, batches, buffer, exploration, target networks, Adam and learning rates, one thread "
    "each. The first 1,000 steps have random actions. Ours is `python -m mxtrain` with its rows and curves; theirs is "
    "scripts/bench_parts/sb3_side.py, which logs nothing.",
    "Steps per second leave out random steps, validations and the start of the process. Both sides validate eight "
    "times with 20 episodes, and test the best weights with 100 episodes.",
)
SEEDS = "`python -m mxtrain` with trainer.seed=0 to 4, in turn, process start included."

PARTS: Dict[str, Part] = {
    "default": Part(
        "the default run: wall time and accuracy of five seeds (3 minutes)",
        partial(parts.default, overrides=[], metric="accuracy", least=0.985, most_s=60.0),
        [SEEDS, "The digits dataset holds out 270 validation and 270 test samples: one sample is 0.0037."],
    ),
    "segmentation_default": Part(
        "the default of task=segmentation: wall time and mean IoU (13 minutes)",
        partial(parts.default, overrides=["task=segmentation"], metric="mean IoU", least=0.80, most_s=180.0),
        [SEEDS, "300 validation scenes, of digits and halves of photographs that training does not see."],
    ),
    "distill": Part(
        "distillation with 100 labels and 1,247 samples without, five seeds (2 minutes)",
        distillation.measure,
        [
            "scikit-learn's digits as 64 numbers; each seed draws 450 test samples and, of the other 1,347, 100 that "
            "have a label. Teacher: 256-256 hidden units, dropout 0.3; student: 16. All train for 800 steps of 50 "
            "samples, Adam, learning rate 0.01, cosine; the last weights count. The labels of the samples without are "
            "wrong on purpose. One test sample is 0.0022."
        ],
    ),
    "prune": Part(
        "channel pruning against the small network from scratch, three seeds (15 minutes)",
        pruning.measure,
        [
            "scikit-learn's digits, the default settings without early stopping, 12 epochs of LeNet and 40 of the "
            "ResNet; callback.prune_channels.share=0.5, multiple_of=8. The last weights are measured on the 540 "
            "samples of the validation and test splits: one sample is 0.0019. The small network has the widths that "
            "`slim` prints."
        ],
    ),
    "runner": Part(
        "the runner against a hand-written Gluon loop (7 minutes)",
        parts.runner,
        [
            IN_TURNS,
            "The loop (train_with_gluon in scripts/bench_parts/own_side.py) has its batches on the device "
            "already, never waits for it and reads loss and accuracy at the same steps. The same code builds both "
            "networks; same batch size, optimizer and environment variables.",
        ],
    ),
    "gluoncv": Part(
        "GluonCV's train_cifar10.py against us (15 minutes; needs --gluoncv-script)",
        parts.gluoncv,
        [
            "Made-up images in CIFAR-10's files; crop and flip, NAG. The script runs as it is shipped, in its hybrid "
            "mode; only the check that the files are official is replaced (scripts/bench_parts/gluoncv_side.py). Its "
            "time is what it logs; ours is from the end of a validation to the end of the next, saving and logging "
            "included. A value is the median of a run's epochs but the first."
        ],
        parts.needs_script,
    ),
    "gluoncv_workers": Part(
        "GluonCV's scripts as two workers against us (20 minutes; needs --gluoncv-script)",
        parts.gluoncv_workers,
        [
            "Two workers on one machine, one thread and (theirs) one loading process each, the same network, batch and "
            "images of 32 pixels, NAG. A value is the median of a run's epochs but the first. As they are shipped, "
            "neither script runs here: scripts/bench_parts/gluoncv_side.py says what is replaced, the store of "
            "gluon.Trainer by dist_sync among it; all else is theirs. Each worker of train_cifar10.py goes through all "
            "images: its epoch is twice ours, validation included. train_horovod.py times training alone, and so do "
            "our rows."
        ],
        lambda options: parts.needs_script(options, parts.HOROVOD_SCRIPT),
    ),
    "detection_default": Part(
        "the default of task=detection: wall time and VOC AP (13 minutes)",
        partial(parts.default, overrides=["task=detection"], metric="VOC AP", least=0.95, most_s=180.0),
        [SEEDS, "300 validation scenes, of digits and halves of photographs that training does not see."],
    ),
    "detection_race": Part(
        "detectors against what GluonCV's scripts for them do (12 minutes; needs GluonCV)",
        parts.detection_race,
        [
            IN_TURNS,
            STOPPED,
            "GluonCV's: what its scripts train_ssd.py, train_yolo3.py --no-random-shape, train_center_net.py and "
            "train_faster_rcnn.py custom-model do in a step, with its datasets, transforms, targets, losses and "
            "metrics (scripts/bench_parts/gluoncv_side.py), with two loading processes and the variables that mxtrain "
            "sets for itself; a further side has MXNet's defaults and four. Weights are initialised, since pretrained "
            "ones are a download. Of the Faster R-CNN both leave the first convolution, the first stage and all batch "
            "norms as they are. Our images are changed as for SSD also where the network is a CenterNet, which GluonCV "
            "trains on warped ones.",
        ],
    ),
    "segmentation": Part(
        "segmentation against GluonCV's scripts/segmentation/train.py (6 minutes; needs --gluoncv-script)",
        parts.segmentation,
        [
            IN_TURNS,
            STOPPED,
            "SGD with momentum and the polynomial schedule, auxiliary loss of weight 0.5, float32. GluonCV's: "
            "scripts/segmentation/train.py with --no-cuda --aux --workers 2 (its 16 would crowd two cores), with what "
            "scripts/bench_parts/gluoncv_side.py says replaced. It does not hybridize its network. So a second process "
            "runs it hybridized and with the variables that mxtrain sets for itself; the target is not about that one.",
        ],
        lambda options: parts.needs_script(options, parts.SEGMENTATION_SCRIPT),
    ),
    "loader": Part(
        "samples/s of the loaders (5 minutes)",
        parts.loader,
        ["50,000 images of 3 x 32 x 32 in batches of 128; 512 JPEG files in batches of 64. Nothing is trained."],
    ),
    "beam_search": Part(
        "beam search against GluonNLP's sampler and one sentence at a time (5 minutes; needs GluonNLP)",
        parts.beam_search,
        [
            "Sentences of the test split of task=translation with model.norm_first=false, short ones first, beams of "
            "4, alpha 0.6. GluonNLP's network has the trained weights and is used as its translation script does: its "
            "decoder reads the whole prefix again at each step. GluonNLP's sampler is also measured with the step of "
            "mxtrain's network, which remembers keys and values, so that only the searches differ."
        ],
    ),
    "cli": Part(
        "wall time of --help, --cfg job and a mistake (1 minute)",
        checks.cli,
        ["Wall time of the process, command to exit; `python -X importtime` says what was imported."],
    ),
    "start": Part(
        "first visible line and first step after Enter (2 minutes; --before FOLDER compares)",
        checks.start,
        [
            f"`python -m mxtrain {' '.join(checks.START)}` on a pseudo-terminal, until the first character that is no "
            "space is shown, and until the row of the first step is in metrics.jsonl; then it is killed."
        ],
    ),
    "bits": Part(
        "weights of ten runs, to the bit (3 minutes; --before FOLDER compares)",
        checks.bits,
        [
            "Each run once, with seed 0, in each checkout: SHA-256 of the weights in canonical form, and the loss of "
            "the last training step. The bits depend on the processor, so both are taken on the same machine."
        ],
    ),
    "checkpoint": Part(
        "what checkpoints cost (6 minutes)",
        parts.checkpoint,
        [
            IN_TURNS,
            "`checkpoint.every_steps=50` and no checkpoints, `dataset=synthetic`, 50 (LeNet: 250) steps in a "
            "block, which begins with a save, and ends when all is computed.",
        ],
    ),
    "placements": Part(
        "replicas and stages against one device, and their memory (8 minutes)",
        parts.placements,
        [
            IN_TURNS,
            "Every CPU device computes with one thread. The hand-written loop is Gluon's own way: "
            "split_and_load, one forward and backward per device, gluon.Trainer with kvstore=device. What two cores "
            "allow at all is shown by two processes that train at the same time and exchange nothing; the samples/s "
            "are those of one of them. A pipeline of p stages and m microbatches keeps each device busy for m/(m+p-1) "
            "of the time at best. Peak memory is that of a run of four steps.",
        ],
    ),
    "tune": Part(
        "mxtrain tune: ASHA beside a grid (20 minutes)",
        tuning.tune,
        [
            "A grid of 3 optimizers and 9 learning rates, 27 epochs, trainer.seed=0 to 4 with as many orders of the "
            "trials. The grid is trained whole; the pruner of `pruner=asha reduction=2 min_epochs=3` (rungs of 3, 6, "
            "12 and 24 epochs) then goes through its trials and reads their values at the rungs. tabular maximizes the "
            "area under the ROC curve. Its log loss on 85 validation rows is shown as well: there the second best "
            "trial of the grid is already 0.8 to 21 % worse than the best, so only the best trial itself counts."
        ],
    ),
    "short_runs": Part(
        "trials of three epochs: trials a minute, start, two workers beside one (5 minutes; --before FOLDER compares)",
        tuning.short_runs,
        [
            "`mxtrain tune`, 12 trials of `task=classification` (LeNet) with 3 epochs. A trial starts with the line "
            "that names it, and ends its start with the first step; the first trial, which also starts the fork "
            "server, is left out of what is said of later ones. Bytecode is compiled before. Two workers share 8 "
            "trials of `model=mlp` with 30 epochs and one thread each, their start included.",
        ],
    ),
    "verify": Part(
        "verify over placements and networks (25 minutes)",
        checks.verify,
        [
            "`python -m mxtrain verify`, 3 steps, the last one's batch smaller and odd: largest difference of any "
            "gradient or parameter over the largest value of that tensor, in float64. Beside that, in float32, every "
            "bit must be equal where sums have the same order as on one device. mobilenet is GluonCV's mobilenet0.5 at "
            "64 px, densenet its densenet121 at 224 px, resnet and lenet ours on the default data, the user's network "
            "that of examples/own_code."
        ],
    ),
    "placement_accuracy": Part(
        "accuracy of placements, five seeds (15 minutes)",
        parts.placement_accuracy,
        [SEEDS, "model=resnet on the default data. One validation or test sample is 0.0037."],
    ),
    "plan": Part(
        "predictions of `plan` against runs of 30 placements (20 minutes; --records, --minutes and --only divide it)",
        planning.planned,
        [
            "In each turn `plan` measures anew, and each placement is trained once: at least 24 steps and 1.5 s after "
            "the first ten; the mean of their times, and the peak of the process (VmHWM). No placement of the table is "
            "one that `plan` measures, and the model was developed with other networks (an MLP of 2 x 2048 units and a "
            "ResNet-14). An error is the median over turns of predicted / measured - 1."
        ],
    ),
    "plan_workers": Part(
        "predictions of `plan` against 2, 4 and 8 workers over throttled links (20 minutes; root; divided like plan)",
        planning.planned_workers,
        [
            "Each worker is in a network namespace of its own, with a link slowed down by tbf in both directions, and "
            "has one thread; all share this machine's cores (`plan shared=true`). In each turn `plan` measures two "
            "workers over loopback, and each number of workers is trained once over each link: 24 steps after the "
            "first ten. An error is the median over turns of predicted / measured - 1."
        ],
        distributed.needs_hosts,
    ),
    "precision": Part(
        "bfloat16 against float32: accuracy of five seeds (20 minutes)",
        partial(
            parts.precision,
            metric="validation accuracy",
            cases={
                "lenet": ("model=lenet", 270),
                "resnet": ("model=resnet", 270),
                "bert": ("model=bert", 217),
            },
        ),
        [SEEDS, "The default data: handwritten digits, or passages of Python's reference by chapter."],
    ),
    "detection_precision": Part(
        "bfloat16 against float32: VOC AP and time of five seeds of task=detection (25 minutes)",
        partial(parts.precision, metric="validation VOC AP", cases={"detection": ("task=detection", 300)}),
        [SEEDS, "300 validation scenes. The speed is that of training alone."],
    ),
    "race": Part(
        "training against PyTorch, float32 and bfloat16 (40 minutes; needs --torch-python)",
        parts.race,
        [
            IN_TURNS,
            TORCH,
            "A process is fast or slow as a whole, so all but ResNet-50's are started anew, two to four times. Images: "
            "SGD with momentum and weight decay, 10 classes. Texts: AdamW, 10 classes, a vocabulary of 30522, all "
            "texts of full length, though the networks mask padding; dropout 0.1. GluonNLP: its BERT and optimizer "
            "(scripts/bench_parts/gluonnlp_side.py), hybridized with static_alloc.",
            *([] if parts.HAS_GLUONNLP else [parts.NO_GLUONNLP]),
        ],
        parts.needs_torch,
    ),
    "language_race": Part(
        "GPT-2, Transformer and LSTM against PyTorch and GluonNLP (12 minutes; needs --torch-python or GluonNLP)",
        parts.language_race,
        [
            IN_TURNS,
            TORCH,
            "Tokens are random words; all texts have full length, though the Transformer masks padding. Tokens of a "
            "translation are those of its target; its source has as many. GPT-2 small: 12 layers, 768 units, 12 heads, "
            "a vocabulary of 50257, tied, dropout 0.1 (of attention, too), AdamW. Transformer-base: 6 + 6 layers, 512 "
            "units, 2048 hidden, 8 heads, a joint vocabulary of 8000, one table, dropout 0.1, label smoothing 0.1, "
            "Adam. LSTM: GluonNLP's standard_lstm_lm_650 (2 layers, dropout 0.5, tied) with the size of WikiText-2's "
            "vocabulary, 33278, windows of 35 tokens, SGD, gradients clipped together to 0.25.",
            "GluonNLP's: scripts/bench_parts/gluonnlp_side.py: the networks, losses and optimizers of its scripts "
            "train_transformer.py and word_language_model.py, hybridized with static_alloc, in the environment that "
            "mxtrain sets for itself; a further side has MXNet's defaults. Its Transformer drops attention weights, "
            "too, ours and PyTorch's do not. Between its LSTM layers MXNet's operator drops nothing on a CPU, ours "
            "drops half.",
            *([] if parts.HAS_GLUONNLP else [parts.NO_GLUONNLP]),
        ],
        parts.needs_torch_or_gluonnlp,
    ),
    "forecasting_race": Part(
        "DeepAR against GluonTS's, three seeds (10 minutes; needs --torch-python, gluonts[torch])",
        forecasting.measure,
        [
            ONE_THREAD_EACH,
            "40 generated series of 1,344 hours (dataset=time_series writes the same), a day is predicted from a "
            "week, batches of 64, Adam, 0.003, 4 epochs, the item as category. Ours is `python -m mxtrain "
            "task=forecasting model=deepar`. GluonTS: scripts/bench_parts/gluonts_side.py, its defaults for the rest: "
            "a constant rate, the weights of the lowest training loss, no validation. Ours has its defaults, too: a "
            "cosine schedule, and the weights of the lowest CRPS in validation.",
            "CRPS: mean weighted quantile loss at 0.1 to 0.9 of the last day of each series.",
        ],
        parts.needs_torch,
    ),
    "sequential_race": Part(
        "SASRec against RecBole's, three seeds (7 minutes; needs --torch-python, recbole)",
        task_races.sequential,
        [
            ONE_THREAD_EACH,
            "1,500 generated users of 100 items (dataset=item_sequences, with 5 to 20 items of each user), as "
            "RecBole's .inter file for both. 2 layers of 64 units, 2 heads, 256 hidden units, dropout 0.2, histories "
            "of 20 items; softmax over all items, Adam, 0.003, batches of 128, 6 epochs. The last item of each user "
            "is ranked among all items. RecBole: scripts/bench_parts/recbole_side.py, its trainer and evaluator "
            "without validation.",
        ],
        parts.needs_torch,
    ),
    "multi_label_race": Part(
        "several labels of images against PyTorch, three seeds (5 minutes; needs --torch-python)",
        task_races.multi_label,
        [
            ONE_THREAD_EACH,
            "4,000 images of 16 x 16 with up to four digits (dataset=digit_sets), not augmented; a residual network "
            "of depth 20, binary cross entropy, Adam, 0.003, batches of 64, 6 epochs. PyTorch: "
            "scripts/bench_parts/torch_tasks_side.py, channels last, eager, images in memory. mAP: scikit-learn, for "
            "both.",
        ],
        parts.needs_torch,
    ),
    "video_race": Part(
        "classification of videos against PyTorch, three seeds (10 minutes; needs --torch-python)",
        vision_races.video,
        [
            ONE_THREAD_EACH,
            "800 training and 400 test videos of 12 frames of 32 x 32 (AVI, MJPEG), a digit of scikit-learn that moves "
            "over noise, the digits of the splits apart; a temporal segment network of ResNet-18 on 4 frames, dropout "
            "0.5, Adam, 0.0005, batches of 16, 6 epochs, not augmented. Ours is model=gluoncv_video, which decodes the "
            "files in each epoch; PyTorch: scripts/bench_parts/torch_vision_side.py, channels last, eager, decoded "
            "frames in memory.",
        ],
        parts.needs_torch,
    ),
    "volume_race": Part(
        "segmentation of slices of volumes against PyTorch, three seeds (5 minutes; needs --torch-python)",
        vision_races.volumes,
        [
            ONE_THREAD_EACH,
            "640 slices of 40 generated NIfTI volumes of 64 x 64 x 16 noisy voxels, with ellipsoids and tubes that are "
            "equally bright; 320 test slices of 20 others. The network of model=fpn, cross entropy of each pixel, "
            "Adam, 0.003, batches of 16, 6 epochs, not augmented. Ours reads the packed files; PyTorch: "
            "scripts/bench_parts/torch_vision_side.py, channels last, eager, slices in memory. Mean IoU: NumPy, for "
            "both.",
        ],
        parts.needs_torch,
    ),
    "regression_race": Part(
        "regression of a table against PyTorch, three seeds (4 minutes; needs --torch-python)",
        task_races.regression,
        [
            ONE_THREAD_EACH,
            "20,000 rows of scikit-learn's make_friedman1 with ten features and noise of deviation 1, below which no "
            "RMSE gets, as CSV files for both; dense layers of 128 and 64 units, squared error, Adam, 0.003, batches "
            "of 128, 8 epochs. PyTorch: scripts/bench_parts/torch_tasks_side.py, eager, rows in memory. RMSE: "
            "scikit-learn, for both; its gradient-boosted trees with their defaults are a yardstick of the error "
            "alone.",
        ],
        parts.needs_torch,
    ),
    "summarization_race": Part(
        "summaries against nn.Transformer, three seeds (8 minutes; needs --torch-python)",
        task_races.summarization,
        [
            ONE_THREAD_EACH,
            "3,000 generated reports (dataset=match_reports). 2 + 2 layers of 128 units, 4 heads, layer norms first, "
            "one table of embeddings, Adam, 0.0025 after 100 steps and then falling to 0, batches of 32 pairs of "
            "about the same length, 3 epochs. Tokens are those of the summaries. PyTorch: nn.Transformer in "
            "scripts/bench_parts/torch_tasks_side.py, eager. Both write the most probable token at each place; "
            "ROUGE-L is that of metric=rouge_l, for both.",
        ],
        parts.needs_torch,
    ),
    "sparse": Part(
        "tables of embeddings against PyTorch's sparse ones and Gluon's dense (10 minutes; needs --torch-python)",
        parts.sparse,
        [
            "A table of rows x 16, 1024 samples of 8 ids a step (8192 ids, each as likely as another), a dense layer "
            "behind it, sigmoid cross entropy, Adam. All sides get the same batches, which are on hand; ours looks for "
            "distinct ids in the loader's thread (mxtrain's step, without the command line around).",
            "PyTorch: nn.Embedding(sparse=True) with SparseAdam, whose updates are lazy, as ours are with "
            "optimizer.lazy_update=true; measured where --torch-python was given. Exact updates are those of the dense "
            "run, to the bit. Gluon: a hybridized loop with gluon.Trainer; with sparse_grad=True its gradients are "
            "row_sparse and its updates lazy. As many threads as there are cores.",
        ],
    ),
    "reinforcement": Part(
        "reinforcement learning against PyTorch, and CartPole solved from five seeds (8 minutes; needs --torch-python)",
        parts.reinforcement,
        [
            "`task=reinforcement_learning`, and a PyTorch loop with the same network (2 x 64), 8 environments, "
            "roll-outs of 32 steps, 10 passes of 256 samples, Adam and clipping (act in "
            "scripts/bench_parts/torch_side.py): 120 roll-outs, behind 20 that are not counted, each time in a process "
            "of its own. Ours is the command as users type it, with its rows and curves; theirs writes nothing. "
            "Processor time is that of all threads."
        ],
    ),
    "dqn_race": Part(
        "DQN against stable-baselines3's, three seeds (5 minutes; needs --torch-python, stable-baselines3)",
        partial(replay.measure, name="DQN"),
        [
            "CartPole-v1, 33,000 environment steps and 8,000 optimizer steps. Both sides have the variant of "
            "stable-baselines3: Huber's loss, clipped gradients and no double DQN.",
            *REPLAY_RACE,
        ],
        parts.needs_torch,
    ),
    "sac_race": Part(
        "SAC against stable-baselines3's, three seeds (10 minutes; needs --torch-python, stable-baselines3)",
        partial(replay.measure, name="SAC"),
        ["Pendulum-v1, 17,000 environment steps and 8,000 optimizer steps.", *REPLAY_RACE],
        parts.needs_torch,
    ),
    "inference": Part(
        "evaluation against PyTorch, float32 and bfloat16 (15 minutes; needs --torch-python)",
        parts.inference,
        [
            TORCH,
            "Ours: what `python -m mxtrain eval` measures, loss and accuracy, with its data through the loader. "
            "Networks, batches and texts are those of training's race; PyTorch's side is in inference mode.",
        ],
        parts.needs_torch,
    ),
    "memory": Part(
        "peak memory of eval, predict and training beside a Gluon loop and PyTorch (25 minutes; needs --torch-python)",
        memory.measure,
        [
            "Each side is a process of its own. Peaks are the kernel's VmHWM; the second figure is less by the "
            "growth of the resident memory during imports, late ones included. Other work on the machine does not "
            "change these figures. With --records, processes that are in the file are not measured again, so that "
            "--only can measure one network after the other.",
            "Ours: three batches by `python -m mxtrain eval` and `predict` with all that they write, and five steps of "
            "training with every default callback and logger, before validation and checkpoint. Gluon's loop: the "
            "network of GluonCV or GluonNLP (GPT-2: ours), hybridized with static memory, three batches one after the "
            "other, loss and accuracy, in float32, with which both precisions are compared. PyTorch: "
            "scripts/bench_parts/torch_side.py, eager (torch.compile needs more), three batches, two of them on hand, "
            "autocast; its SSD suppresses no boxes.",
        ],
        parts.needs_torch,
    ),
    "serve": Part(
        "the server under load: batching, latency, memory, restarts, a plain onnxruntime loop (12 minutes)",
        serving.serve,
        [
            "`python -m mxtrain serve`, clients and the plain loop share the machine's cores. Each client has a "
            "connection of its own and sends one sample as a binary tensor. Sides take turns. In the restart, a client "
            "sends each request once, to a replica whose /v2/health/ready said yes at most 50 ms before."
        ],
    ),
    "serving_peers": Part(
        "the server beside LitServe, BentoML, MLServer and Ray Serve (15 minutes; needs --peers for the others)",
        serving_peers.measure,
        [
            "The same model.onnx, threads of onnxruntime, requests and clients for all servers, with all cores of the "
            "machine for server and clients together. Each turn starts one server anew, warms it, loads it with 1, 8 "
            "and 64 clients that ask as soon as they are answered, and then with arrivals at random at 50 and 80 % of "
            "the requests a second that its own 64 clients got. JSON unless stated otherwise; the numbers of images "
            "have three decimals. All batch up to 32 samples and wait 2 ms at most (BentoML: as it tunes itself). "
            "Settings: LitServe fast_queue, one HTTP process and one that computes; BentoML two workers, one for "
            "BERT; MLServer parallel_workers=0; Ray Serve RAY_SERVE_THROUGHPUT_OPTIMIZED=1, two replicas, one for "
            "BERT; mxtrain one process. Memory is that of all processes of a server (PSS). Sources: "
            "scripts/bench_parts/peer_servers/."
        ],
    ),
    "soak": Part(
        "200 starts of two workers and two servers, whose weights must be right (20 minutes)",
        checks.soak,
        [
            "Each start trains three steps with two workers and two servers over all keys' first pull and push; its "
            "weights must be those of two replicas in one process, to the bit."
        ],
    ),
    "workers": Part(
        "several processes: starts and throughput (12 minutes)",
        parts.workers,
        [
            IN_TURNS,
            "All processes on this machine, over loopback. Start-up: from the command to the end of the "
            "first step, on the default data with an MLP, one server. Throughput: two workers with one thread each "
            "against one process with one thread.",
        ],
    ),
    "faults": Part(
        "35 faults at random moments, of processes, network, disk and data: 700 runs (3 hours; root)",
        faults.measure,
        [
            "Two workers on this machine (dist_sync: a server and a scheduler as well), two such runs side by side, an "
            "MLP on the default data, 200 steps of a few ms, a checkpoint every 20 steps; the fault at a random step "
            "from 20 to 120. Where the fault is one of the network, each worker is in a network namespace of its own, "
            "with an sshd, and cluster.launcher=ssh. Time-outs are the default ones (cluster.heartbeat_timeout=5), but "
            "for cluster.start_timeout=10 where no worker comes.",
            "Noticed: from the fault to the supervisor's word, or, where the run has to end, to its end; no figure "
            "where nothing had to be given up. As far as before: from the fault (so with the 5 or 60 s of the "
            "partition) to the end of the step after the last one before it, or to the first step where it had not "
            "begun, or (lost packets, a host lost for good) to the end of the run. While the disk is full training "
            "goes on, and rows wait in memory.",
            "Right: the weights are those of the undisturbed run to the bit, all rows of metrics.jsonl are there, "
            "once, and no process, socket or port is left. With horovod the other worker goes on alone when worker 1 "
            "of this machine is lost, and the last bits change with the number of workers: there, losses are compared "
            "(1e-2) instead of bits. Where the run has to end, its exit code and the cause it names are checked, and "
            "the same command then goes on to those weights. A full disk on worker 1 means nothing: it writes no file "
            "but its log.",
        ],
    ),
    "tables": Part(
        "tables on parameter servers: memory of a worker, links with a delay (15 minutes; the latter as root)",
        distributed.tables,
        [
            "memory: rows x (16 + 1) numbers of DeepFM, Adam with lazy updates, 8 ids a sample, each as likely as "
            "another, batches of 1024. With gradients of all rows Adam is as it is, and a quarter of the steps are "
            "made. One thread in each process. The worker with its tables on servers is held to 1 GiB by a control "
            "group where that can be (it says so); peaks are the kernel's VmHWM.",
            "links: four workers and two servers on four hosts (network namespaces); a packet between two of them is "
            "on its way for so many milliseconds (a process in user space holds it back); the same number of epochs, "
            "three seeds. samples/s without validations and checkpoints; s from the first step to the last with them. "
            "AUC is that of the validation rows.",
        ],
    ),
    "compression": Part(
        "bytes on the wire by compressor, and accuracy of three seeds (15 minutes)",
        distributed.compression,
        [
            "Two workers and one server, with kvstore=dist_sync unless stated otherwise. Bytes: scheduler, server and "
            "workers communicate over TCP in their own network namespace. The kernel counts the bytes on its loopback "
            "interface in a run, and in a run of half as many steps; the difference divided by the difference of steps "
            "is the traffic of a step. It includes gradients, counts, acknowledgements and headers of all processes, "
            "in both directions. Accuracy: the default network and data; one sample is 0.0037."
        ],
        distributed.needs_own_network,
    ),
    "corpora": Part(
        "1 GB of text to tokens: speed, memory, second start (12 minutes; --before FOLDER compares tables)",
        parts.corpora,
        [
            "Texts of Python's library and reference with a tenth of the words exchanged; byte-level BPE of 8,000 "
            "tokens. Ours reads the stored texts, encodes, and writes shards with checksums; the library only encodes."
        ],
    ),
    "ray_faults": Part(
        "100 kills on a Ray cluster, with data in an object store that answers 503 (an hour; needs ray and moto)",
        ray_faults.measure,
        [
            "A Ray cluster of three raylets on this machine; two workers (dist_sync: a server and a scheduler as well; "
            "horovod with kvstore.elastic=false) read JPEG records from moto's S3 server, which answers 503 SlowDown "
            "for two of ten seconds, and upload a checkpoint every 50 steps. Each run is killed up to eight times "
            "(SIGKILL), up to eight seconds after the last kill or two seconds after the first step since, at "
            "any moment, during a save, or during an upload; start: before such a step. A killed raylet is replaced by "
            "another node. After the loss of the supervisor the same command is repeated, every other time in an empty "
            "run directory. Weights and rows "
            "must be those of the unbroken run on this machine that reads from the disk, to the bit, and no process, "
            "actor, socket or temporary file may be left."
        ],
        ray_faults.why_not,
    ),
    "object_stores": Part(
        "training from an object store with 20 ms of latency (5 minutes)",
        object_stores.measure,
        [
            "A server that waits 20 ms before each answer, in a process on the same cores, whose "
            "work is counted against the store. A small MLP on JPEG records of 25 kB in random order, of which "
            "decoding is most of the work; cold: an empty cache; warm: the second run with it. Process start, and "
            "reading the labels, are left out of samples/s."
        ],
    ),
    "restarts": Part(
        "restart after a process was killed, as always and by standbys from memory (25 minutes)",
        restarts.measure,
        [
            "Workers on this machine (dist_sync: 2, a server and a scheduler; horovod: 3), an MLP on the default "
            "data, steps of 5 to 20 ms, a checkpoint every 100 steps; warm: cluster.standby=true and "
            "cluster.memory_steps=10. A process is killed 12 s after the first steps, or when its standby has loaded "
            "everything. As far as before: from the word of the supervisor to the end of the step after the last one "
            "before. Weights and rows must be those of the unbroken run to the bit, and no process or socket may be "
            "left. Horovod as always goes on with two workers when worker 1 is lost: there, losses are compared "
            "(1e-2) instead of bits."
        ],
    ),
    "slow_links": Part(
        "local SGD and all-reduce on links of 1 Gbit/s and 10 ms, and accuracy (70 minutes; root)",
        slow_links.measure,
        [
            "speed: four workers, one thread each, on four hosts (network namespaces) that share this machine's cores; "
            "a process in user space delays each packet by 10 ms and limits what each host sends and receives to "
            "1 Gbit/s. One server and the scheduler beside worker 0 (dist_sync). samples/s of the batches of all "
            "workers. Local SGD is timed over a whole interval with one synchronisation; computation alone is an "
            "interval without one, and its ratio is the limit of any exchange on these cores. The target holds if the "
            "limit is at least 4.",
            "hierarchy: two workers on each of two such hosts, with kvstore.hierarchical and without, in turn.",
            "rings: seconds in which four hosts sum the gradients of ResNet-50 with Horovod, without computation.",
            "accuracy: digits, an MLP of 2 x 128 units, 30 epochs, four workers, five seeds; the target is a loss "
            "of at most one deviation of the seeds. One validation sample is 0.0037.",
            "`--only`, `--records` and `--minutes` take the measurements in pieces.",
        ],
        slow_links.needs_hosts,
    ),
    "uneven": Part(
        "two workers, one at half speed (10 minutes)",
        uneven.measure,
        [
            "Two workers and a server, one thread each, on two cores; samples/s of whole epochs of 1,257 images, from "
            "the beginning of the second to that of the last, with a validation of one batch after each.",
            "ResNet-20 of half the width, a batch of 64: the slow worker is stopped (SIGSTOP) after each ms of "
            "processor time for as long, so it computes half of the time and waits no longer than the other one.",
            "sleep: a small network that sleeps 2 ms for each sample, on the slow worker 4 ms, a batch of 60; its "
            "figures depend less on other work on the machine.",
            "The ideal is the throughput of two whole workers with the same store, times the speed of the two workers "
            "relative to two whole ones, as measured with each of them alone.",
        ],
    ),
    "recompute": Part(
        "activation recomputation: memory and time of a step (30 minutes; --records, --minutes and --only divide it)",
        recompute.measure,
        [
            "Each run is a process of its own, in turn; float32, AdamW. Peak memory is the kernel's VmHWM after the "
            "last step, and once more less the memory that the process had before the first step, which holds the "
            "weights and the state of the optimizer. The time of a step is the mean of a run's steps but the first."
        ],
    ),
    "sharded_optimizer": Part(
        "optimizer state divided among two workers: memory of a worker and time of a step (6 minutes)",
        sharded_optimizer.measure,
        [
            "kvstore=horovod on one machine, one thread each, AdamW, float32; runs in turn. Peak memory is the "
            "kernel's VmHWM of the larger worker, read every 0.2 s. The time of a step is the mean of a run's steps "
            "but the first."
        ],
    ),
    "links": Part(
        "two workers over throttled links, each store and compressor (35 minutes; root)",
        distributed.links,
        [
            "Two workers, one thread each, each in a network namespace of its own; links slowed down by tbf in both "
            "directions; started by cluster.launcher=ssh. One server and the scheduler beside worker 0 (dist_sync, "
            "p3). samples/s: over 24 or 6 steps after the first six, one run each; one worker alone is measured before "
            "and after the three links of a store. The table says how many times one worker alone two are; 2 is the "
            "limit, and what two processes reach on two cores that exchange nothing stands under placements."
        ],
        distributed.needs_hosts,
    ),
    "export": Part(
        "exported networks: onnxruntime against MXNet, int8 against float32, replicas (25 minutes)",
        exports.measure,
        [
            "One thread, processor time of the process; the engines take turns call by call in one process, with the "
            "same sample; the first two calls do not count. MXNet: as `eval` runs it (hybridized, static memory, with "
            "the variables that mxtrain sets), and the graph that MXNet's fusion for oneDNN makes. Weights of networks "
            "that are only timed come from one step of training; ranges of int8 from 16 samples.",
            "Metrics: runs to the end, whole test split, `export quantize=...`. int8 depends on the processor: with "
            "VNNI it is faster than without.",
            "Replicas: Ray Serve's HTTP server, JSON, eight clients on the same machine, which take a part of its "
            "cores; one thread for each replica.",
        ],
        exports.why_not,
    ),
    "kill_sweep": Part(
        "100 kills, one at each call of a save, and what becomes of the runs (minutes, also with --quick)",
        kill_sweep.measure,
        [
            "Small runs with everything on that changes numbers (shuffling, augmentation, dropout, Adam, schedule, "
            "moving average, accumulation, early stopping) are killed with SIGKILL and resumed; the final weights and "
            "all rows are compared with those of a run that was never killed. On one device a run is killed at each "
            "call of a save, under the other placements at every twentieth."
        ],
    ),
}


def main(arguments: List[str]) -> int:
    """Measure the parts that were named, or all."""
    given = _parse(arguments)
    # Ends like ctrl-c, so that measured processes end, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    out = ROOT / "docs"
    if given.out or given.quick:
        out = Path(given.out or tempfile.mkdtemp(prefix="mxtrain-bench-"))
    failed = []
    for name in given.parts or list(PARTS):
        fields = {key: value for key, value in vars(given).items() if key not in ("parts", "out", "work")}
        reason = PARTS[name].why_not(Options(work=Path(), **fields))
        if reason:
            say(f"{name}: left out, {reason}")
            failed += [name] if name in given.parts else []
            continue
        say(f"{name}: {PARTS[name].text}")
        try:
            publish.write_result(name, _measure(name, fields, given.work), out)
        except (ProcessFailed, ValueError, subprocess.TimeoutExpired) as error:
            say(f"{name}: {error}")
            failed.append(name)
        publish.write_page(out, list(PARTS))
    print(out / "benchmarks" / "README.md")
    return 1 if failed else 0


def _measure(name: str, fields: Dict[str, Any], work: str) -> Dict[str, Any]:
    machine, started = publish.describe_machine(), time.monotonic()
    if machine["load_1min"] > 0.5 and not fields["quick"]:
        say(f"{name}: the load is {machine['load_1min']}: something else is running, the figures will be worth less")
    with tempfile.TemporaryDirectory(prefix="mxtrain-bench-", dir=work) as folder:
        found = PARTS[name](Options(work=Path(folder), **fields))
    if machine["load_1min"] > 0.5:
        found.notes.append(
            f"Other processes used the cores as well (load {machine['load_1min']} at the start): seconds of the "
            "processor and ratios say more than seconds."
        )
    return {
        "part": name,
        "taken": time.strftime("%Y-%m-%d"),
        "quick": fields["quick"],
        "minutes": round((time.monotonic() - started) / 60, 1),
        "machine": machine,
        **found.to_json(),
    }


def _parse(arguments: List[str]) -> argparse.Namespace:
    width = max(map(len, PARTS))
    texts = "\n".join(f"  {name:{width}}  {part.text}" for name, part in PARTS.items())
    parser = argparse.ArgumentParser(
        "scripts/bench",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Measure mxtrain on this machine, with nothing else running.",
        epilog=f"parts:\n{texts}",
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="all when none is named")
    parser.add_argument(
        "--quick", action="store_true", help="tiny versions, written to a new folder unless --out is given"
    )
    parser.add_argument(
        "--out",
        default="",
        help="folder of benchmarks/, in which what is not measured stays as it is (docs)",
    )
    parser.add_argument("--work", default=None, help="folder for what the runs write (the system's temporary one)")
    parser.add_argument(
        "--gluoncv-script",
        default=os.environ.get(parts.SCRIPT_VARIABLE, ""),
        help="GluonCV's scripts/classification/cifar/train_cifar10.py",
    )
    parser.add_argument("--torch-python", default="", help="a Python in whose environment PyTorch is installed")
    parser.add_argument(
        "--peers",
        default="",
        help="serving_peers: a folder of environments litserve, bentoml, mlserver and ray, with onnxruntime in each",
    )
    parser.add_argument(
        "--records",
        type=Path,
        default=None,
        help="faults, ray_faults, memory, recompute, restarts, serving_peers, slow_links, uneven, plan, plan_workers: "
        "a file for each run as it ends; runs that it already holds count",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        help="the parts of --records but memory: begin no further run after that",
    )
    parser.add_argument(
        "--before", default="", help="start, short_runs: another checkout, which is measured in turns with this one"
    )
    parser.add_argument(
        "--turns",
        type=int,
        default=0,
        help="blocks of each side of segmentation, detection_race, language_race, sparse and reinforcement "
        "(8, 5, 4 to 8, 5); seeds of forecasting_race, sequential_race, multi_label_race, regression_race, "
        "summarization_race, dqn_race and sac_race (3)",
    )
    parser.add_argument("--steps", type=int, default=0, help="the same: steps of a block (1 to 10, by network)")
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="language_race, sparse, tables, export, memory, restarts, serving_peers, slow_links, uneven, short_runs, "
        "plan, plan_workers: what has this in its name",
    )
    options = parser.parse_args(arguments)
    if min(options.turns, options.steps) < 0:
        parser.error("--turns and --steps: type 1 or more, or leave them out")
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {', '.join(unknown)}; parts: {', '.join(PARTS)}")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
