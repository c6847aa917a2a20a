"""Lists the commands: the module that runs each, and its usage text."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Dict, List


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        module: its `run(arguments)` returns the exit code.
        usage: what follows its name.
        settings: the name of the `Spec` in `module` with the settings of its own, or "".
        examples: of what can follow `python -m mxtrain`.
        helps_itself: whether it answers --help.
        subcommands: words that may follow its name; none = no such word.
    """

    module: str
    usage: str = ""
    settings: str = ""
    examples: tuple = ()
    helps_itself: bool = False
    subcommands: tuple = ()


COMMANDS: Dict[str, Command] = {
    "train": Command("mxtrain.cli.train", helps_itself=True),
    "eval": Command(
        "mxtrain.cli.evaluate",
        "RUN|CHECKPOINT [--config-dir DIR | --trust-code] [setting=value ...] [group.field=value ...]",
        "EvalSettings",
        ("eval outputs/2030-01-31/12-00-00-abcd", "eval RUN split=val which=last", "eval RUN dataset.root=FOLDER"),
    ),
    "predict": Command(
        "mxtrain.cli.predict",
        "RUN|CHECKPOINT FILE|FOLDER... [--config-dir DIR | --trust-code] [setting=value ...] [group.field=value ...]",
        "PredictSettings",
        (
            "predict RUN photo.jpg",
            "predict RUN photos/ output=predictions.csv top_k=5",
            "predict RUN table.csv",
            "predict RUN all",
        ),
    ),
    "export": Command(
        "mxtrain.cli.export",
        "RUN|CHECKPOINT [--config-dir DIR | --trust-code] [setting=value ...] [group.field=value ...] | check FOLDER",
        "ExportSettings",
        (
            "export RUN",
            "export RUN quantize=int8 max_loss=0.005",
            "export RUN for=triton name=digits",
            "export check FOLDER",
        ),
    ),
    "serve": Command(
        "mxtrain.cli.serve",
        "FOLDER|RUN|NAME=FOLDER... [setting=value ...]",
        "ServeSettings",
        ("serve exported/digits", "serve digits=exported/a letters=exported/b port=9000", "serve RUN max_batch=64"),
    ),
    "average": Command(
        "mxtrain.cli.average",
        "RUN [last=N] | RUN RUN... soup=greedy|uniform [--config-dir DIR | --trust-code] [setting=value ...] "
        "[group.field=value ...]",
        "AverageSettings",
        ("average RUN last=5", "average runs/1 runs/2 runs/3 soup=greedy", "eval runs/1/averaged/greedy-soup"),
    ),
    "slim": Command(
        "mxtrain.cli.slim",
        "RUN|CHECKPOINT [--config-dir DIR | --trust-code] [setting=value ...]",
        "SlimSettings",
        ("slim RUN", "slim RUN out=FOLDER which=last", "eval RUN/slim"),
    ),
    "push": Command(
        "mxtrain.cli.push",
        "RUN tracker=NAME [--config-dir DIR] [logger.NAME.field=value ...]",
        "PushSettings",
        (
            "push RUN tracker=mlflow",
            "push RUN tracker=mlflow logger.mlflow.uri=http://host:5000",
            "push RUN tracker=wandb",
        ),
    ),
    "verify": Command(
        "mxtrain.cli.verify",
        "[setting=value ...] [group=option ...] [group.field=value ...]",
        "VerifySettings",
        ("verify parallel=hybrid model=resnet", "verify parallel=data parallel.devices=cpu:3 steps=5"),
    ),
    "reproduce": Command(
        "mxtrain.cli.reproduce",
        "RUN [--config-dir DIR | --trust-code] [setting=value ...] [group=option ...] [group.field=value ...]",
        "ReproduceSettings",
        (
            "reproduce outputs/2030-01-31/12-00-00-abcd",
            "reproduce RUN strict=true dir=outputs/again",
            "reproduce RUN dataset.root=FOLDER tolerance=1e-3",
        ),
    ),
    "replay": Command(
        "mxtrain.cli.replay",
        "BUNDLE [--config-dir DIR | --trust-code] [setting=value ...] [group.field=value ...]",
        "ReplaySettings",
        ("replay outputs/2030-01-31/12-00-00-abcd/replay/step-00000120", "replay BUNDLE output=statistics.json"),
    ),
    "score": Command(
        "mxtrain.cli.score",
        "[EXPERIMENT] [setting=value ...] [group.field=value ...]",
        "ScoreSettings",
        ("score", "score digits_lenet", "score cifar10_resnet20 dataset.root=FOLDER dir=outputs/resnet20"),
    ),
    "lr_find": Command(
        "mxtrain.cli.lr_find",
        "[setting=value ...] [group=option ...] [group.field=value ...]",
        "LrFindSettings",
        ("lr_find model=resnet optimizer=sgd", "lr_find start=1e-5 end=1 steps=200 output=lr_find_resnet"),
    ),
    "tune": Command(
        "mxtrain.cli.tune",
        "STUDY [setting=value ...] [group.field=RANGE ...] [group.field=value ...] | worker STUDY | show STUDY",
        "TuneSettings",
        (
            "tune studies/lr 'optimizer.lr=log(1e-4,1e-1)' n_trials=30 pruner=asha",
            "tune studies/all 'model=choice(mlp,lenet)' 'optimizer.lr=log(1e-4,1e-1)' sampler=random",
            "tune worker studies/lr",
            "tune show studies/lr",
        ),
        subcommands=("worker", "show"),
    ),
    "runs": Command(
        "mxtrain.cli.runs",
        "[FOLDER...] [setting=value ...]",
        "RunsOptions",
        (
            "runs",
            "runs studies/lr sort=best columns=optimizer.lr",
            "runs where='task=classification and best>0.9'",
            "runs where='state=failed,killed' where='age<2d' format=json",
        ),
    ),
    "diff": Command(
        "mxtrain.cli.diff",
        "RUN RUN [--config-dir DIR | --trust-code] [setting=value ...]",
        "DiffOptions",
        ("diff outputs/a outputs/b", "diff outputs/a outputs/b replay=false format=json"),
    ),
    "report": Command(
        "mxtrain.cli.report",
        "RUN|FOLDER... [setting=value ...]",
        "ReportOptions",
        ("report outputs/a outputs/b out=report.html", "report studies/lr where='best>0.9' sort=best"),
    ),
    "clean": Command(
        "mxtrain.cli.clean",
        "[FOLDER...] [setting=value ...]",
        "CleanOptions",
        ("clean", "clean studies/lr delete=true", "clean what=runs where='state=failed and age>30d'"),
    ),
    "explain": Command(
        "mxtrain.cli.explain",
        "KEY [group=option ...] [group.field=value ...]",
        "",
        ("explain optimizer.lr", "explain model model=resnet", "explain trainer experiment=NAME"),
    ),
    "data": Command(
        "mxtrain.cli.data",
        "check|cache [setting=value ...] [group=option ...] [group.field=value ...]",
        "DataSettings",
        (
            "data check dataset=cifar10 dataset.root=FOLDER",
            "data check dataset=number_table dataset.train=table.csv output=problems.csv",
            "data check dataset=glue ignore=duplicate,short_row",
            "data cache remove=30d",
        ),
        subcommands=("check", "cache"),
    ),
    "doctor": Command("mxtrain.cli.doctor", helps_itself=True),
}


def help_of(name: str) -> str:
    """Returns the usage text of a command."""
    from mxtrain.config.specs import shown, spec_help
    from mxtrain.terminal.program import as_typed

    command = COMMANDS[name]
    module = importlib.import_module(command.module)
    lines: List[str] = [f"usage: python -m mxtrain {name} {command.usage}", "", (module.__doc__ or "").strip()]
    if command.settings:
        spec = getattr(module, command.settings)
        lines += ["", "Settings"]
        settings = {field: f"{info.alias or field}={shown(info.default)}" for field, info in spec.model_fields.items()}
        width = max(map(len, settings.values()))
        lines += [f"  {text:<{width}}  {spec_help(spec, [field])}".rstrip() for field, text in settings.items()]
    lines += ["", "Examples", *(f"  python -m mxtrain {example}" for example in command.examples)]
    return as_typed("\n".join(lines))
