"""Every kind of mistake: exit 2, what was given, what is allowed, the nearest spelling, the file; nothing written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from mxtrain.cluster.spec import Cluster
from mxtrain.config import rules
from mxtrain.errors import ConfigError
from mxtrain.runtime import Runtime

# (arguments, what the message holds)
MISTAKES = [
    ("trian", ["no command 'trian'", "'train'", "doctor"]),
    ("resume outputs/x", ["no command 'resume'", "The command that started a run continues it"]),
    ("test outputs/x", ["no command 'test'", "eval RUN split=test"]),
    (
        "logger=comet",
        ["logger=comet: there is no such option. It is an example: copy examples/trackers/comet_tracker.py"],
    ),
    (
        "logger=cometml",
        ["examples/trackers/comet_tracker.py and conf/logger/comet.yaml beside it", "--config-dir conf"],
    ),
    ("logger=neptune", ["logger=neptune: there is no such option", "logger=tensorboard", "trackers.md"]),
    ("callback=early", ["callback=early: there is no such option", "type early_stopping=OPTION"]),
    ("callback=checkpoint", ["type checkpoint=OPTION"]),
    ("debug=quick", ["debug=quick: there is no such option", "Did you mean 'fast'?"]),
    ("modle = lenet", ["no spaces around =: write modle=lenet"]),
    ("model =lenet", ["no spaces around =: write model=lenet"]),
    ("checkpoint.resume=yes", ["checkpoint.resume=yes", "auto", "never", "path of a run"]),
    ("--cfgg job", ["no flag '--cfgg'", "'--cfg'", "--multirun"]),
    ("--cfg jobb", ["'jobb'", "'job', 'hydra', 'all'"]),
    ("--config-dir", ["--config-dir", "expected one argument"]),
    ("--config-dir nowhere", ["--config-dir", "nowhere", "no such folder"]),
    ("--config-name mine", ["--config-name", "--config-dir DIR", "experiment=NAME"]),
    ("--config-path mine", ["--config-path", "--config-dir DIR"]),
    ("--experimental-rerun x", ["hydra.run.dir=DIR"]),
    ("-m --cfg job", ["--cfg and --multirun exclude each other"]),
    ("--resolve", ["--resolve goes with --cfg"]),
    ("--cfg job --package optimiser", ["--package optimiser"]),
    ("--shell-completion install=tcsh", ["bash, zsh, fish"]),
    ("modle=lenet", ["no group 'modle'", "'model'", "optimizer", "conf/"]),
    ("model=lenett", ["model=lenett", "'lenet'", "model can be: actor_critic, bert, bilstm, ", "conf/model/"]),
    ("model=resnet18_v1", ["model=resnet18_v1", "model.name=resnet18_v1"]),
    ("metric=[accuracy,f2]", ["metric=f2", "metric can be: accuracy, "]),
    ("hydra/launcher=jobblib", ["'joblib'", "basic"]),
    (
        "trainer.mx_epochs=3",
        ["'trainer.mx_epochs'", "'trainer.max_epochs'", "log_interval", "conf/trainer/default.yaml"],
    ),
    ("trainr.max_epochs=3", ["no group 'trainr'", "'trainer.max_epochs'"]),
    ("trainer.epochs=3", ["'trainer.max_epochs'"]),
    ("epochs=3", ["'trainer.max_epochs'"]),
    ("lr=0.1", ["'optimizer.lr'"]),
    ("batch_size=32", ["'dataset.batch_size'"]),
    ("task=forecasting model.channels=8", ["there is no 'model.channels'. model takes: weights, "]),
    ("dataset.max_epoch=3", ["Did you mean 'trainer.max_epochs'?"]),
    ("trainr.epoch=3", ["Did you mean 'trainer.max_epochs'?"]),
    ("model.bs=3", ["there is no 'model.bs'. model takes: "]),
    ("optimizer.learning_rate=1", ["'optimizer.lr'", "conf/optimizer/adam.yaml"]),
    ("optimizer.momentum=0.9", ["It belongs to optimizer=", "nag", "sgd"]),
    ("trainer.batch_size=3", ["'dataset.batch_size'"]),
    ("model.nam=resnet18_v1", ["'model.nam'. Did you mean 'model.name'? It belongs to model=gluoncv|gluoncv_video. "]),
    ("dataset.rot=photos", ["'dataset.rot'. Did you mean 'dataset.root'? It belongs to dataset=audio_folder|cifar10|"]),
    ("task=tabular dataset.train=a.csv", ["'dataset.train'. It belongs to dataset=criteo|feature_table|libsvm."]),
    ("trainer.validate_every=1", ["Did you mean 'trainer.val_interval'?"]),
    ("dataset.id=CartPole-v1", ["there is no 'dataset.id'. It belongs to dataset=gymnasium, for another task."]),
    ("task=detection dataset.image_sizes=[64,96]", ["image_size'? It belongs to dataset=", "|coco|cvat|image_list|"]),
    (
        "task=detection dataset.augment.mixup=1",
        ["It belongs to dataset=", "|coco|cvat|image_list|", ". dataset.augment takes"],
    ),
    ("dataset.augment.mix_up=1", ["Did you mean 'dataset.augment.mixup'?"]),
    ("task=detection dataset=voc dataset.classes=[1,a]", ["dataset.classes=[1, a]: these are names", '["1E5","no"]']),
    ("dataset=voc model=mask_rcnn", ["Type task=instance_segmentation, or model=centernet_fpn."]),
    ("dataset.augment.flp=true", ["'dataset.augment.flip'", "crop_padding"]),
    ("hydra.run.dirr=x", ["'hydra.run.dir'"]),
    ("model=centernet", ["error: model=centernet is now model=centernet_fpn.\n"]),
    ("model=center_net", ["model=center_net is now model=gluoncv_centernet."]),
    ("dataset=tabular", ["dataset=tabular is now dataset=number_table."]),
    ("metric=mse", ["metric=mse is now metric=probability_mse. Or did you mean metric=mean_squared_error?"]),
    ("metric=[accuracy,perplexity]", ["perplexity is now metric=class_perplexity. Or did you mean metric=token_perpl"]),
    ("trainer.max_epochs=abc", ["trainer.max_epochs=abc", "valid integer", "conf/trainer/default.yaml"]),
    ("trainer.max_epochs=-1", ["trainer.max_epochs=-1", "greater than 0", "conf/trainer/default.yaml"]),
    ("optimizer.lr=", ["optimizer.lr=", "valid number"]),
    ("trainer.val_interval_unit=epoch", ["'epochs'", "'steps'"]),
    ("parallel.devices=tpu", ["parallel.devices=tpu", "auto"]),
    ("parallel.recompute=true", ["parallel.recompute=true", "'off' or 'auto' or a valid integer"]),
    ("gradient_checkpointing=true", ["'parallel.recompute'"]),
    ("parallel.recompute=2 parallel.batch_norm=global", ["recompute=2 with batch_norm=global", "per_device"]),
    ("model.channels=[1,a]", ["model.channels.1=a", "conf/model/lenet.yaml"]),
    ("model.name=resnt18_v1", ["'resnt18_v1'", "'resnet18_v1'", "conf/model/gluoncv.yaml"]),
    ("+new.key=1", ["no group 'new'", "model, dataset"]),
    ("+trainer.max_epoch=3", ["'trainer.max_epochs'", "conf/trainer/default.yaml"]),
    ("++trainer.max_epoch=3", ["'trainer.max_epochs'"]),
    ("+model=lenet", ["write model=lenet"]),
    ("+experiment=x", ["write experiment=x"]),
    ("task=translation model=lstm", ["is for language_modeling", "Type model=transformer."]),
    ("~model", ["~model", "needed", "model can be: actor_critic, bert, bilstm, "]),
    ("~trainer.max_epochs", ["~trainer.max_epochs", "Give it a value"]),
    ("~modle", ["no group 'modle'", "'model'"]),
    ("~logger.tensorbord", ["'logger.tensorboard'"]),
    ("model", ["no command 'model'"]),
    ("optimizer.lr 0.1", ["write optimizer.lr=0.1"]),
    ("model=[lenet", ["a bracket is not closed"]),
    ("optimizer.lr='0.1", ["a quote is not closed"]),
    ("optimizer.lr=0.1,0.2", ["Add -m", "[0.1,0.2]"]),
    ("optimizer.lr=choice(1,2)", ["Add -m"]),
    ("model._target_=nowhere.Net", ["model._target_=nowhere.Net", "no module 'nowhere'"]),
    ("model._target_=mxtrain.vision.classification.lenet.LeNett", ["no 'LeNett'", "'LeNet'"]),
    ("model._target_=mxtrain.optimizer.optimizers.Adam", ["model._target_", "is no Model"]),
    ("trainer.monitor=val/acuracy", ["trainer.monitor=val/acuracy", "'val/accuracy'", "train/loss"]),
    ("early_stopping.monitor=val/f1", ["early_stopping.monitor=val/f1", "metric=[accuracy,f1]"]),
    ("trainer.max_epochs=null", ["nothing limits the run", "trainer.max_steps"]),
    ("dataset.batch_size=2 trainer.grad_accumulation=4", ["trainer.grad_accumulation=4", "dataset.batch_size=2"]),
    ("logger=[] metric=[]", ["trainer.monitor=val/accuracy", "val/loss"]),
    ("-m optimizer.lr=0.1,x,y", ["optimizer.lr=x", "optimizer.lr=y"]),
    ("-m model=lenet,mlpp", ["model=mlpp", "'mlp'"]),
    ("debug=true", ["debug=true: there is no such option", "'fast'", "fast, overfit"]),
    ("dataset=pascal_voc", ["dataset=pascal_voc: there is no such option", "Did you mean 'voc'?"]),
    ("experiment=3", ["experiment=3: there is no such option", "fine_tune"]),
    ("optimizer=null", ["optimizer=null: there is no such option", "sgd"]),
    ("metric=.5", ["metric=0.5: there is no such option", "accuracy"]),
    ("metric=[1]", ["metric=1: there is no such option"]),
    ("metric=[null]", ["metric=[]"]),
    ("amp=[{a:1}]", ["amp={a: 1}: there is no such option", "bfloat16, float16, off"]),
    ("logger=none", ["To have none: logger=[]"]),
    ("debug=none", ["leave debug out"]),
    ("amp=fp16", ["'float16'"]),
    ("task=rl", ["'reinforcement_learning'"]),
    ("model=ncf", ["'neumf'"]),
    ("amp=none", ["'off'"]),
    ("checkpoint=none", ["'off'"]),
    ("lr_scheduler=none", ["'constant'"]),
    ("model=resnet50", ["model.name=resnet50_v1b"]),
    ("model=[lenet,mlp]", ["-m model=lenet,mlp"]),
    ("model=[mlp]", ["without brackets: model=mlp"]),
    ("--lr 0.1", ["no flag '--lr'", "optimizer.lr=0.1"]),
    ("--max-epochs=3", ["trainer.max_epochs=3"]),
    ("--dataset voc", ["without dashes: dataset=voc"]),
    ("--data-shape=300", ["without dashes: dataset.image_size=300"]),
    ("--lr-decay-epoch=160,200", ["lr_scheduler.milestones="]),
    ("metric=mAP", ["Did you mean 'voc_ap'"]),
    ("dataset=voc dataset.classes=cat", ["should be a valid list. Type dataset.classes=[cat]."]),
    ("task=language_modeling dataset.seq_len=32", ["'dataset.max_length'"]),
    ("task=language_modeling dataset.bptt=32", ["'dataset.max_length'"]),
    ("--num-train-epochs=3", ["trainer.max_epochs=3"]),
    ("--accumulate-grad-batches=2", ["trainer.grad_accumulation=2"]),
    ("model.pretrained=true", ["'model.weights'"]),
    ("parallel.devices=gpu:0", ["parallel.devices=gpu:0", "a kind and a number of devices", "CUDA_VISIBLE_DEVICES"]),
    ("dataset.image_size=[0,3]", ["dataset.image_size.0=0: should be greater than 0"]),
    ("model.channels.x=1", ["no 'model.channels.x'"]),
    ("optimizer.lr=int(x)", ["optimizer.lr=int(x) is no override"]),
    ("optimizer.lr=1e39", ["optimizer.lr=1e+39", "32-bit float", "conf/optimizer/adam.yaml"]),
    ("optimizer.epsilon=1e-46", ["optimizer.epsilon=1e-46", "32-bit float"]),
    ("optimizer.wd=nan", ["optimizer.wd=nan", "finite"]),
    ("lr_scheduler=step lr_scheduler.period=1e400", ["lr_scheduler.period=inf", "finite"]),
    ("model=mlp model.hidden=[3000000000]", ["model.hidden.0=3000000000", "less than or equal to 2147483647"]),
    ("runtime.cpu_temp_copy=2147483648", ["runtime.cpu_temp_copy=2147483648", "256"]),
    ("hydra.run.dir='a${x}'", ["hydra.run.dir=a${x}", "'x' not found", "hydra.run.dir=runs/mine"]),
    ("hydra.run.dir=", ["hydra.run.dir=", "no name of a folder"]),
    ("hydra.run.dir=null", ["hydra.run.dir"]),
    ("hydra.run.dir=" + "a" * 300, ["too long for a file system"]),
    ("hydra.run.dir=" + "a/" * 2500, ["too long for a file system"]),
    ("hydra.job_logging.root.level=x", ["Unknown level: 'x'", "--cfg hydra"]),
    ("hydra.job_logging=???", ["hydra.job_logging"]),
    ("hydra=3", ["cannot be composed"]),
    ("callback.default.x='${'", ["cannot be composed", "callback.default.x='${'"]),
    ("logger=csv logger.csv.file_name=${oc.env:HOME}", ["logger.csv.file_name", "inside the run directory"]),
    ("logger=csv logger.csv.file_name=..", ["logger.csv.file_name=..", "inside the run directory"]),
    ("logger=csv logger.csv.file_name=status.json", ["status.json", "something else"]),
    ("logger=csv logger.csv.file_name=previous", ["previous", "something else"]),
    ("logger=csv logger.csv.file_name=timeline.json", ["timeline.json", "something else"]),
    ("logger=[default,csv] logger.csv.file_name=metrics.jsonl", ["logger.jsonl", "Choose another"]),
    ("model._target_=os.sep", ["model._target_=os.sep: is no class or function"]),
    ("++metric=[1]", ["metric"]),
    ("++trainer=5", ["trainer=5"]),
    ("explain trainer.mx", ["'trainer.max_epochs'", "'trainer.max_steps'"]),
    ("explain qqqq", ["no group 'qqqq'"]),
    ("explain", ["explain takes one setting"]),
    ("eval", ["eval takes a run directory or a checkpoint"]),
    ("eval nowhere", ["nowhere"]),
]


ALIKE = (
    "logger=cometml",
    "callback=checkpoint",
    "debug=quick",
    "model =lenet",
    "--config-path mine",
    "trainr.max_epochs=3",
    "trainer.epochs=3",
    "batch_size=32",
    "dataset.rot=photos",
    "task=tabular dataset.train=a.csv",
    "trainer.validate_every=1",
    "dataset.augment.mix_up=1",
    "model=center_net",
    "dataset=tabular",
    "metric=[accuracy,perplexity]",
    "++trainer.max_epoch=3",
    "+experiment=x",
    "task=translation model=lstm",
    "optimizer.lr=choice(1,2)",
    "dataset=pascal_voc",
    "experiment=3",
    "metric=.5",
    "metric=[1]",
    "task=rl",
    "model=ncf",
    "amp=none",
    "checkpoint=none",
    "model=resnet50",
    "--lr-decay-epoch=160,200",
    "task=language_modeling dataset.bptt=32",
    "--num-train-epochs=3",
    "--accumulate-grad-batches=2",
    "model.pretrained=true",
    "dataset.image_size=[0,3]",
    "lr_scheduler=step lr_scheduler.period=1e400",
    "hydra.run.dir=null",
    "hydra.job_logging=???",
    "logger=csv logger.csv.file_name=previous",
    "logger=csv logger.csv.file_name=timeline.json",
    "++trainer=5",
    "explain qqqq",
)
"""Mistakes that are similar to others in the list, and are tested with `--zoo` only."""


@pytest.mark.zoo_cases(*ALIKE)
@pytest.mark.slow
@pytest.mark.parametrize("arguments, parts", MISTAKES, ids=[arguments for arguments, _ in MISTAKES])
def test_wrong_value_is_reported_with_its_name(refused, arguments: str, parts: list) -> None:
    said = refused(*arguments.split())
    assert [part for part in parts if part not in said] == [], said


def test_several_options_of_a_group_are_a_sweep_unless_the_group_is_a_list(refused) -> None:
    said = refused("model=lenet,mlp")
    assert "Add -m" in said and "model=[" not in said and "text with commas" not in said
    said = refused("metric=accuracy,f1")
    assert "Add -m" in said and "write metric=[accuracy,f1]." in said
    said = refused("model.channels=8,16")
    assert "write a list as model.channels=[8,16]" in said


@pytest.mark.slow
@pytest.mark.parametrize("name", ["runtime.threads", "runtime.cpu_workers", "runtime.env.OMP_NUM_THREADS"])
def test_more_threads_than_the_cores_can_run_are_refused(refused, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(rules, "usable_cores", lambda: 2)
    given = f"+{name}" if "env" in name else name
    said = refused(f"{given}=9")
    assert f"{name}=9: this process may use 2 cores" in said and f"Type {name}=2." in said
    assert name in refused(f"{given}=1000")


def test_environment_variables_match(refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "usable_cores", lambda: 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "9")
    said = refused()
    assert "OMP_NUM_THREADS=9: this process" in said and "Type runtime.threads=2, or unset it." in said
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    near = SimpleNamespace(runtime=Runtime(threads=8), cluster=Cluster())
    rules.check_cores(near)
    # On other hosts there may be more cores.
    far = SimpleNamespace(runtime=Runtime(threads=9), cluster=Cluster(launcher="ssh", hostfile="hosts"))
    rules.check_cores(far)
    monkeypatch.setenv("MXTRAIN_WORKER", "1")
    with pytest.raises(ConfigError, match="runtime.threads=9"):
        rules.check_cores(far)


@pytest.mark.parametrize(
    "variable, said",
    [
        ("MXNET_CPU_WORKER_NTHREADS=0", "must be a whole number from 1 on. Unset it (env -u MXNET_CPU_WORKER_NTHREADS"),
        ("MXNET_OMP_MAX_THREADS=abc", "MXNET_OMP_MAX_THREADS=abc in the environment"),
        ("MXNET_CPU_TEMP_COPY=0", "from 1 on"),
        ("MXNET_EXEC_INPLACE_GRAD_SUM_CAP=-1", "from 0 on"),
        ("MXNET_KVSTORE_BIGARRAY_BOUND=9999999999", "MXNET_KVSTORE_BIGARRAY_BOUND=9999999999"),
        ("MXNET_ENGINE_TYPE=naive", "one of ThreadedEnginePerDevice, "),
    ],
)
def test_variables_that_hang_or_abort_mxnet_are_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, said: str
) -> None:
    def check(**env: object) -> None:
        rules.check_mxnet_variables(SimpleNamespace(runtime=Runtime(env=env)))  # type: ignore[arg-type]

    name, _, value = variable.partition("=")
    given = {name: int(value)} if value.isdecimal() and len(value) < 6 else {name: value}
    with pytest.raises(ConfigError, match=f"runtime.env.{variable}: must be .*Leave it out"):
        check(**given)
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        check()
    assert said in str(caught.value)
    for right in ("", "NaiveEngine" if "ENGINE" in name else "2"):
        monkeypatch.setenv(name, right)
        check()


@pytest.mark.parametrize("name, lowest", [("MXNET_CPU_WORKER_NTHREADS", 1), ("MXNET_OMP_MAX_THREADS", 0)])
def test_lowest_numbers_of_variables_of_mxnet(name: str, lowest: int) -> None:
    rules.check_mxnet_variables(SimpleNamespace(runtime=Runtime(env={name: lowest})))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"from {lowest} on"):
        rules.check_mxnet_variables(SimpleNamespace(runtime=Runtime(env={name: lowest - 1})))  # type: ignore[arg-type]


@pytest.mark.slow
def test_variable_that_hangs_mxnet_is_refused_by_the_command_line(refused, monkeypatch) -> None:
    monkeypatch.setenv("MXNET_CPU_PRIORITY_NTHREADS", "0")
    assert "MXNET_CPU_PRIORITY_NTHREADS=0 in the environment" in refused()


@pytest.mark.slow
def test_all_mistakes_are_listed_once_and_indented(refused) -> None:
    said = refused("optimizer.lr=-1", "trainr.max_epochs=3", "model=foo", "trainer.seed=x").splitlines()
    assert len(said) == 4
    assert said[0].startswith("error: ") and all(line.startswith("       ") for line in said[1:])
    for part in ("trainr", "model=foo", "optimizer.lr=-1", "trainer.seed=x"):
        assert sum(part in line for line in said) == 1


@pytest.mark.slow
def test_unknown_option_has_no_errors_about_dependent_settings(refused) -> None:
    said = refused("kvstore=dist", "cluster.workers=2")
    assert "Did you mean 'dist_sync'" in said and "stays within one process" not in said
    assert refused("cluster.servers=0").count("cluster.servers=0") == 1


@pytest.mark.zoo_cases("trainer.mx_epochs=3", "model=foo")
@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["trainer.mx_epochs=3", "optimizer.lr=-1", "model=foo", "-m optimizer.lr=1,x"])
def test_mistakes_are_answered_without_mxnet(mxtrain, arguments: str) -> None:
    mxtrain.refused(*arguments.split())


# The user's own files.


def write(folder: Path, files: dict) -> str:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder)


PRESET = "# @package _global_\n"


@pytest.mark.parametrize(
    "text, parts",
    [
        ("trainer:\n  mx_epochs: 3\n", ["'trainer.mx_epochs'", "'trainer.max_epochs'", "mine.yaml:3"]),
        ("trainer:\n  seed: 1\n  max_epochs: x\n", ["trainer.max_epochs=x", "mine.yaml:4"]),
        ("trianer:\n  max_epochs: 3\n", ["no group 'trianer'", "'trainer'", "mine.yaml:2"]),
        ("defaults:\n  - override /model: lenett\n", ["mine.yaml", "model=lenett", "'lenet'"]),
        ("defaults:\n  - override /model: centernet\n", ["mine.yaml", "model=centernet is now model=centernet_fpn."]),
        ("defaults:\n  - override /modle: lenet\n", ["mine.yaml", "'modle'", "'model'"]),
        ("trainer:\n  max_epochs: [3\n", ["mine.yaml:4", "not YAML"]),
        ("trainer:\n  max_epochs: ${trainer.sed}\n", ["trainer.max_epochs", "trainer.sed"]),
    ],
)
def test_a_mistake_in_a_preset_names_its_file(refused, tmp_path: Path, text: str, parts: list) -> None:
    folder = write(tmp_path / "own", {"experiment/mine.yaml": PRESET + text})
    said = refused("--config-dir", folder, "experiment=mine")
    assert [part for part in parts if part not in said] == [], said


@pytest.mark.slow
def test_preset_without_global_package_names_the_missing_line(refused, tmp_path: Path) -> None:
    folder = write(tmp_path / "own", {"experiment/mine.yaml": "optimizer:\n  lr: 0.1\n"})
    said = refused("--config-dir", folder, "experiment=mine")
    assert "mine.yaml" in said and "'# @package _global_'" in said


@pytest.mark.parametrize("content", [b"5\n", b"# Gr\xfc\xdfe\nx: 1\n"])
def test_a_file_that_hydra_cannot_read_is_named_or_refused(refused, tmp_path: Path, content: bytes) -> None:
    folder = write(tmp_path / "own", {"experiment/mine.yaml": ""})
    (tmp_path / "own/experiment/mine.yaml").write_bytes(content)
    assert "cannot be composed" in refused("--config-dir", folder, "experiment=mine")


def test_a_run_directory_that_is_a_file_is_refused(refused, tmp_path: Path) -> None:
    write(tmp_path / "cwd", {"taken": "text"})
    assert "this is a file, and no folder" in refused("hydra.run.dir=taken")


def test_presets_can_be_undone(tmp_path: Path) -> None:
    from mxtrain.composing.composer import Composer

    with Composer() as composer:
        assert composer.compose(["debug=fast", "debug=null", "experiment=null"]).config["trainer"]["max_epochs"] == 30


def test_a_file_with_the_name_of_one_of_ours_is_refused(refused, tmp_path: Path) -> None:
    folder = write(tmp_path / "own", {"model/lenet.yaml": "_target_: x.Y\n"})
    assert "model/lenet.yaml" in refused("--config-dir", folder)


@pytest.mark.slow
def test_option_files_list_their_aliases(refused, tmp_path: Path) -> None:
    text = b"# A network.\n# Also called: vgg_like, convnet.\n# \xfc\n_target_: x.Y\n"
    folder = write(tmp_path / "own", {"model/zz_mine.yaml": ""})
    (tmp_path / "own/model/zz_mine.yaml").write_bytes(text)
    assert "Did you mean 'zz_mine'?" in refused("--config-dir", folder, "model=convnet")
    assert "'zz_mine'" not in refused("--config-dir", folder, "model=_target_")


OWN_CODE = "def network(num_classes, depth, width=8):\n    raise RuntimeError('never built')\n"


@pytest.mark.parametrize(
    "arguments, parts",
    [
        ("model=mine", ["model.depth must be given", "num_classes, depth, width"]),
        ("model=mine model.depth=2 model.widht=3", ["'model.widht'", "'model.width'", "model/mine.yaml"]),
        ("model=mine ++model.depth=2 ++model.widht=3", ["'model.widht'", "'width'"]),
    ],
)
def test_wrong_arguments_of_a_users_function(refused, tmp_path: Path, arguments: str, parts: list) -> None:
    module = f"own_{tmp_path.name.strip('_').replace('-', '_')}"
    write(tmp_path / "cwd", {f"{module}.py": OWN_CODE})
    folder = write(tmp_path / "own", {"model/mine.yaml": f"_target_: {module}.network\nwidth: 8\n"})
    said = refused("--config-dir", folder, *arguments.split())
    assert [part for part in parts if part not in said] == [], said
