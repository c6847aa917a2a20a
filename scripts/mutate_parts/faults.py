"""Faults that were once made on purpose, where parts of the program are joined, and that no test noticed.

Each must make one of its tests fail: `scripts/mutate faults`. tests/test_mutate.py says when a line is no longer there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

RUNS = "tests/reference/test_numbers.py"
LOSSES = ("tests/loss/test_losses.py",)
SCALING = ("tests/amp/test_scaling.py",)
SNAPSHOT = ("tests/training/test_snapshot.py",)
WEIGHTS = ("tests/training/test_exact_weights.py",)
STEP = ("tests/training/test_step.py",)


@dataclass(frozen=True)
class Fault:
    """One change of the program.

    Attributes:
        old: text that `file` holds once; `new` takes its place.
        tests: of which one must fail, as pytest takes them.
    """

    name: str
    file: str
    old: str
    new: str
    tests: Tuple[str, ...] = (RUNS, "-m", "not zoo")


FAULTS = [
    # What a step and a run are made of.
    Fault("the step forgets the moving average", "mxtrain/training/step.py", "        self.average.update(step)\n", ""),
    Fault(
        "validation takes live weights",
        "mxtrain/training/validation.py",
        "        with self._step.average.applied():\n            try:\n",
        "        if True:\n            try:\n",
    ),
    Fault(
        "the test split and eval take live weights",
        "mxtrain/checkpoint/average.py",
        "checkpoint.arrays(EMA if EMA in checkpoint.stems else MODEL)",
        "checkpoint.arrays(MODEL)",
    ),
    Fault(
        "the test split takes live weights where none were kept",
        "mxtrain/training/run_finalizer.py",
        "with self._step.average.applied() if best is None else nullcontext():",
        "with nullcontext():",
    ),
    Fault(
        "eval takes live weights",
        "mxtrain/training/trained.py",
        "= merge(weights_to_use(checkpoint)",
        '= merge(checkpoint.arrays("model")',
    ),
    Fault(
        "training goes on from the average",
        "mxtrain/optimizer/ema.py",
        "        finally:\n            self._write(live)\n",
        "        finally:\n            del live\n",
    ),
    Fault(
        "a checkpoint's model is its average",
        "mxtrain/training/snapshot.py",
        '{"model": step.strategy.values}\n',
        '{"model": step.average.arrays or step.strategy.values}\n',
    ),
    Fault(
        "a step's rate is the next step's",
        "mxtrain/training/runner.py",
        "before_step(state, self._plan.lr(state.step)), state.epoch + 1",
        "before_step(state, self._plan.lr(state.step + 1)), state.epoch + 1",
    ),
    Fault(
        "a row's rate is the next step's",
        "mxtrain/training/runner.py",
        "Entry(state.step, epoch, batch.global_size, lr, sums, self._step.grad_norm)",
        "Entry(state.step, epoch, batch.global_size, self._plan.lr(state.step), sums, self._step.grad_norm)",
    ),
    Fault(
        "rows count epochs from 0",
        "mxtrain/training/runner.py",
        "self._plan.lr(state.step)), state.epoch + 1",
        "self._plan.lr(state.step)), state.epoch",
    ),
    # What a description says.
    Fault(
        "clip_global_norm is ignored",
        "mxtrain/training/build.py",
        "        trainer.clip_global_norm,\n",
        "        None,\n",
    ),
    Fault(
        "lr_mult and wd_mult are ignored",
        "mxtrain/training/build.py",
        "multipliers = parameter_multipliers(description.model, network)",
        "multipliers = dict.fromkeys(strategy.values, (1.0, 1.0))",
    ),
    Fault(
        "lr_mult is ignored",
        "mxtrain/optimizer/updater.py",
        "optimizer.lr_mult = {i: multipliers[name][0] for",
        "optimizer.lr_mult = {i: 1.0 for",
    ),
    Fault(
        "wd_mult is ignored",
        "mxtrain/optimizer/updater.py",
        "optimizer.wd_mult = {i: multipliers[name][1] for",
        "optimizer.wd_mult = {i: 1.0 for",
    ),
    Fault(
        "labels are not smoothed in training",
        "mxtrain/task/classification.py",
        "description.loss.build(self.num_classes(signature), training)",
        "description.loss.build(self.num_classes(signature), False)",
    ),
    Fault(
        "labels are smoothed in evaluation",
        "mxtrain/task/classification.py",
        "description.loss.build(self.num_classes(signature), training)",
        "description.loss.build(self.num_classes(signature), True)",
    ),
    Fault(
        "the test split is measured on the validation samples",
        "mxtrain/training/loaders.py",
        "test=build_loader(description, splits.test, signature",
        "test=build_loader(description, splits.val, signature",
    ),
    Fault(
        "a run neither shuffles nor augments",
        "mxtrain/training/loaders.py",
        "train = build_loader(description, splits.train, signature, device, train=True, sampler=sampler, **shared)",
        "train = build_loader(description, splits.train, signature, device, sampler=sampler, **shared)",
    ),
    Fault(
        "a run does not augment",
        "mxtrain/vision/images/dataset.py",
        '"augment": self.augment}',
        '"augment": type(self.augment)()}',
        ("tests/training/test_build.py",),
    ),
    Fault(
        "shown samples have logits",
        "mxtrain/task/classification.py",
        'nd.softmax(outputs[0].astype("float32"))',
        'outputs[0].astype("float32")',
    ),
    # Losses and sums.
    Fault(
        "KL divergence of logits taken for logarithms",
        "mxtrain/loss/losses.py",
        "KLDivLoss(from_logits=False)",
        "KLDivLoss(from_logits=True)",
        LOSSES,
    ),
    Fault(
        "logistic labels of 0 and 1",
        "mxtrain/loss/losses.py",
        'LogisticLoss(label_format="signed")',
        'LogisticLoss(label_format="binary")',
        LOSSES,
    ),
    Fault(
        "squared hinge without signs",
        "mxtrain/loss/losses.py",
        'gluon_name: ClassVar[str] = "SquaredHingeLoss"\n    signed_target: ClassVar[bool] = True',
        'gluon_name: ClassVar[str] = "SquaredHingeLoss"\n    signed_target: ClassVar[bool] = False',
        LOSSES,
    ),
    Fault(
        "signs the wrong way round",
        "mxtrain/loss/blocks.py",
        "target_BK = 2 * target_BK - 1",
        "target_BK = 1 - 2 * target_BK",
        LOSSES,
    ),
    Fault(
        "an evaluation forgets all but its last 64 batches",
        "mxtrain/training/evaluate.py",
        "if len(vectors) == VECTORS_PER_READ:\n                    sums += ",
        "if len(vectors) == VECTORS_PER_READ:\n                    sums = ",
    ),
    Fault(
        "an evaluation is a mean over unequal batches",
        "mxtrain/training/evaluate.py",
        "vectors.append(self._meter.require_width(self._meter(*losses, *outputs, *batch.targets)))",
        "vectors.append(self._meter(*losses, *outputs, *batch.targets) * (256 / batch.size))",
    ),
    Fault(
        "a mean over weights is left a mean over samples",
        "mxtrain/training/step.py",
        "        factor = None if weight is None else division_by_weight(weight, num_samples)\n",
        "        factor = None\n",
        WEIGHTS,
    ),
    Fault(
        "half of the weight is divided by",
        "mxtrain/metric/meter.py",
        "if self.least_weight else sums[1:2]",
        "if self.least_weight else sums[1:2] / 2",
        WEIGHTS,
    ),
    Fault(
        "a sample that two workers have measured counts twice",
        "mxtrain/metric/host.py",
        "return rows[is_first]",
        "return rows",
        ("tests/metric/test_host.py",),
    ),
    Fault(
        "a batch's gradient is a mean over unequal shares",
        "mxtrain/parallel/executor.py",
        "loss_B.backward(self.head_gradient(loss_B, batch.size, global_batch_size))",
        "loss_B.backward(self.head_gradient(loss_B, batch.size, batch.size * len(self.devices)))",
    ),
    Fault(
        "replicas without samples count in moving statistics",
        "mxtrain/parallel/statistics.py",
        "return min(largest, self._num_replicas)",
        "return self._num_replicas",
    ),
    Fault(
        "workers without samples count in moving statistics",
        "mxtrain/parallel/statistics.py",
        "share = 1.0 / sum(self._num_active(global_size, worker, num_parts) for worker in range(world.size))",
        "share = 1.0 / world.size",
    ),
    Fault(
        "a worker without samples leaves the last gradients",
        "mxtrain/parallel/grid.py",
        "active = 0 if adds or not parts else len(parts[0])",
        "active = 0 if adds else len(parts[0]) if parts else 1",
        STEP,
    ),
    # What must be the same, or come back.
    Fault(
        "the loss scale is not restored",
        "mxtrain/amp/scaling.py",
        "            self.restore(values)\n",
        "            pass\n",
        SNAPSHOT,
    ),
    Fault(
        "the loss scale grows without end",
        "mxtrain/amp/scaling.py",
        "min(self.scale * 2, self._largest)",
        "self.scale * 2",
        SCALING,
    ),
    Fault(
        "the loss scale falls without end",
        "mxtrain/amp/scaling.py",
        "max(self.scale / 2, self._smallest)",
        "self.scale / 2",
        SCALING,
    ),
    Fault(
        "each worker's optimizer draws its own",
        "mxtrain/training/step.py",
        "self.seed_random(step)  # an optimizer",
        "self.seed_random(step, world.rank)  # an optimizer",
        STEP,
    ),
    Fault(
        "nobody compares the workers' weights",
        "mxtrain/training/snapshot.py",
        "    if world.size == 1:\n        return\n    digest =",
        "    if world.size:\n        return\n    digest =",
        SNAPSHOT,
    ),
    Fault(
        "weights are compared by their sum",
        "mxtrain/training/snapshot.py",
        "digest = np.frombuffer(bytes.fromhex(canonical_sha256(parameters)), np.uint8).astype(np.float64)",
        "digest = np.array([sum(np.sort(a.ravel()).sum() for a in parameters.values())]).astype(np.float32)",
        SNAPSHOT,
    ),
    Fault(
        "weights are compared with their mean",
        "mxtrain/training/snapshot.py",
        "own = np.concatenate([[1.0], digest, digest**2])",
        "own = np.concatenate([[1.0], digest])",
        SNAPSHOT,
    ),
    Fault(
        "the remainder of a split goes to the wrong class",
        "mxtrain/data/loading/splitting.py",
        "np.argsort(-(exact_K - count_K)[open_K], kind=",
        "np.argsort((exact_K - count_K)[open_K], kind=",
        ("tests/data/test_formats.py",),
    ),
]
