"""The kinds of command lines, and how often each is drawn."""

from __future__ import annotations

from random import Random
from typing import Callable, Dict, List, Tuple

from fuzz_parts import commands
from fuzz_parts.case import Case
from fuzz_parts.surface import Surface
from fuzz_parts.values import (
    FAMILIES,
    INTERPOLATIONS,
    NODES,
    PATHS,
    SCALARS,
    TEXTS,
    misspelt,
    right_value,
    wrong_value,
)
from mxtrain.config.groups import NAMED_GROUPS, PRESET_GROUPS

LIMITS = ("debug=fast", "trainer.max_time=15")
SMALL_MODEL: Tuple[str, ...] = ("model=mlp", "model.hidden=[8]")
SMALL_DATA: Tuple[str, ...] = (
    "dataset=synthetic",
    "dataset.num_samples=120",
    "dataset.shape=[1,8,8]",
    "dataset.batch_size=16",
)
SMALL: Dict[str, Tuple[str, ...]] = {
    "text": ("dataset=text", "dataset.train=texts.tsv", "dataset.sentence=sentence", "dataset.vocab_size=200"),
    "masked_text": ("dataset=masked_text", "dataset.train=book.txt", "dataset.vocab_size=200"),
    "glue": ("dataset=glue", "dataset.task=sst2", "dataset.root=."),
    "image_folder": ("dataset=image_folder", "dataset.root=pictures", "dataset.image_size=[16,16]"),
    "synthetic": SMALL_DATA,
    "bert": (
        "model=bert",
        "model.num_layers=1",
        "model.units=8",
        "model.hidden_size=8",
        "model.num_heads=2",
        "dataset.train=texts.tsv",
        "dataset.vocab_size=200",
        "dataset.max_length=16",
    ),
    "gluoncv": ("model=gluoncv", "model.name=cifar_resnet20_v1", *SMALL_DATA[:2], "dataset.shape=[3,32,32]"),
    "resnet": ("model=resnet", *SMALL_DATA),
    "lenet": ("model=lenet", "model.channels=[2,4]", "model.hidden=8", *SMALL_DATA),
    "mlp": (*SMALL_MODEL, *SMALL_DATA),
    "dist": ("cluster.workers=2", "dataset.batch_size=16"),
}
"""Overrides that make an option small, or give it the data that it needs."""

Line = Tuple[List[str], Dict[str, str], str]
"""Arguments, environment, standard output."""


def draw(seed: int, number: int, surface: Surface) -> Case:
    """The command line of this number."""
    random = Random(f"{seed}/{number}")
    kinds, weights = zip(*((kind, weight) for kind, (_, weight) in KINDS.items()))
    kind = random.choices(kinds, weights)[0]
    arguments, environment, stdout = KINDS[kind][0](surface, random)
    return Case(number, kind, arguments, environment, stdout)


def small_run(surface: Surface, random: Random, group: str = "", option: str = "") -> List[str]:
    """Overrides that train for a moment, with this option of this group among them."""
    if group == "dataset":
        base = [*SMALL.get(option, (f"dataset={option}",))]
        text = option in ("text", "masked_text", "glue")
        return [*(SMALL["bert"][:5] if text else SMALL_MODEL), *base, *LIMITS]
    if group == "model":
        return [*SMALL.get(option, (f"model={option}",)), *LIMITS]
    base = [*SMALL_MODEL, *SMALL_DATA]
    if group in NAMED_GROUPS:
        base.append(f"{group}=[{option}]")
    elif group and option != "default":
        base.append(f"{group}={option}")
    if group in ("parallel", "kvstore") and option != "single" and random.random() < 0.2:
        base.append(random.choice(("parallel.devices=cpu:2", "cluster.workers=2", "trainer.grad_accumulation=2")))
    return [*base, *LIMITS]


def place(surface: Surface, random: Random) -> Tuple[str, str]:
    """A group and one of its options."""
    group = random.choice(surface.groups)
    return group, random.choice(list(surface.options[group]))


def one_setting(surface: Surface, random: Random) -> Line:
    """A small run in which one setting has a wrong value."""
    group, option = place(surface, random)
    line = small_run(surface, random, group, option)
    settings = surface.settings.get((group, option))
    if settings:
        setting = random.choice(list(settings))
        line.append(f"{setting.path}={wrong_value(setting, random)}")
    return line, {}, "file"


def several_settings(surface: Surface, random: Random) -> Line:
    """Several wrong values at once, also where Hydra must be told that they are new."""
    line = small_run(surface, random)
    for _ in range(random.randint(2, 4)):
        group, option = place(surface, random)
        settings = surface.settings.get((group, option))
        if settings:
            setting = random.choice(list(settings))
            line.append(random.choice(("", "", "+", "++")) + f"{setting.path}={wrong_value(setting, random)}")
    return line, {}, "file"


def right_settings(surface: Surface, random: Random) -> Line:
    """Options and values that exist, put together by chance: most of these run."""
    group, option = place(surface, random)
    line = small_run(surface, random, group, option)
    chosen = [(group, option)]
    for other in ("optimizer", "lr_scheduler", "loss", "parallel", "amp"):
        if other != group and group not in ("dataset", "model") and random.random() < 0.3:
            chosen.append((other, random.choice(list(surface.options[other]))))
            line.insert(0, f"{other}={chosen[-1][1]}")
    for one in chosen:
        settings = [s for s in surface.settings.get(one, ()) if not s.path.endswith("_target_")]
        for setting in random.sample(settings, min(len(settings), random.randint(1, 3))):
            line.append(f"{setting.path}={right_value(setting, random)}")
    return line, {}, "file"


def options_of_groups(surface: Surface, random: Random) -> Line:
    """A group whose option does not exist, is no name, or is taken away."""
    group = random.choice([*surface.options])
    option = random.choice(list(surface.options[group]))
    anything = random.choice(random.choice(FAMILIES))
    line = random.choice(
        (
            f"{group}={anything}",
            f"{group}={anything}",
            f"{group}={misspelt(option, random)}",
            f"{group}=[{option}]",
            f"{group}=[{option},{option}]",
            f"{misspelt(group, random)}={option}",
            f"+{group}={option}",
            f"~{group}",
            f"++{group}={anything}",
            f"~{group}={option}",
            f"{group}=",
            f"{group}@x={option}",
            f"{group}@{group}.x={option}",
            f"+{group}@x={option}",
            f"{group}/x={option}",
            f"{group}/{option}={option}",
            f"override {group}={option}",
            f"/{group}={option}",
            f"{group}.{option}={anything}",
            f"+{group}.x={anything}",
            f"{group}:={option}",
            f"+{group}/{option}=x",
            f"~{group}.{option}",
            f"{group}={option},{option}",
            f"{group}={option}.yaml",
        )
    )
    return [*small_run(surface, random), line], {}, "file"


def nodes(surface: Surface, random: Random) -> Line:
    """A whole node, or a part of it, that is something else."""
    group, option = place(surface, random)
    settings = [s for s in surface.settings.get((group, option), ()) if s.path.count(".") > 1]
    paths = [f"{group}.{option}" if group in NAMED_GROUPS else group, *(s.path.rpartition(".")[0] for s in settings)]
    path, value = random.choice(paths), random.choice(random.choice((NODES, SCALARS, INTERPOLATIONS)))
    sign = random.choice(("", "+", "++", "++"))
    line = random.choice(
        (
            f"{sign}{path}={value}",
            f"{sign}{path}.x={value}",
            f"{sign}{path}.x.y={value}",
            f"{sign}{path}._target_={value}",
            f"~{path}",
            f"{sign}{value}={path}",
            f"+{value}.x=1",
            f"{sign}{path}._partial_={value}",
            f"{sign}{path}._args_={value}",
        )
    )
    return [*small_run(surface, random, group, option), line], {}, "file"


def misspellings(surface: Surface, random: Random) -> Line:
    """A setting that does not exist, or words that are no overrides."""
    group, option = place(surface, random)
    settings = list(surface.settings.get((group, option), ()))
    path = random.choice(settings).path if settings else group
    wrong = misspelt(path, random)
    line = random.choice(
        (
            f"{wrong}=1",
            f"{wrong}=1",
            f"{path}",
            f"{path}==1",
            f"{path}=[",
            f"{path}={{",
            f"{path}='",
            f"{path.rpartition('.')[2]}=1",
            f"={path}",
            "=",
            f"{path}= 1",
            f"{path} = 1",
            f"+{path}=1",
            f"~{path}",
            f"{path}.x=1",
            f"{path}[0]=1",
            f"{path}.0=1",
            random.choice(TEXTS),
            "",
            f"{path}=choice(1,2)",
            f"{path}=range(1,3)",
            f"{path}=int(x)",
            f"{path}=glob(*)",
        )
    )
    return [*small_run(surface, random, group, option), line], {}, "file"


def hydra_settings(surface: Surface, random: Random) -> Line:
    """Run directories of all kinds, and Hydra's own settings."""
    anything = random.choice(random.choice(FAMILIES))
    key, value = random.choice(
        (
            ("hydra.run.dir", random.choice(PATHS)),
            ("hydra.run.dir", random.choice(PATHS)),
            ("hydra.run.dir", anything),
            ("hydra.run.dir", anything),
            ("hydra.run", anything),
            ("hydra", anything),
            ("hydra.job.chdir", "true"),
            ("hydra.job.name", anything),
            ("hydra.output_subdir", random.choice(("null", "x", "..", anything))),
            ("hydra.verbose", random.choice(("true", "mxtrain", "[a,b]", anything))),
            ("hydra.mode", anything),
            ("hydra.sweep.dir", anything),
            ("hydra.sweep.subdir", anything),
            ("hydra/launcher", "basic"),
            ("hydra/launcher", anything),
            ("hydra/sweeper", anything),
            ("hydra/job_logging", "disabled"),
            ("hydra/job_logging", anything),
            ("hydra.job.env_set", anything),
            ("hydra.callbacks", anything),
            ("hydra.job_logging", anything),
            ("hydra.job_logging.root.level", anything),
            ("hydra.help.template", anything),
            ("hydra.job.config.override_dirname", anything),
            ("hydra.searchpath", anything),
            ("hydra.job.num", anything),
        )
    )
    return [*small_run(surface, random), random.choice(("", "", "", "+", "++")) + f"{key}={value}"], {}, "file"


def surroundings(surface: Surface, random: Random) -> Line:
    """A right command line where standard output or a variable of the environment is odd."""
    line = small_run(surface, random)
    variables = (
        "OMP_NUM_THREADS",
        "MXTRAIN_DATA",
        "COLUMNS",
        "TERM",
        "LANG",
        "TMPDIR",
        "HOME",
        "XDG_CACHE_HOME",
        "MXTRAIN_RUNTIME_SET",
        "DMLC_ROLE",
        "MXNET_CPU_WORKER_NTHREADS",
        "PYTHONIOENCODING",
    )
    if random.random() < 0.6:
        other = (line, ["--help"], ["--cfg", "job"], ["explain", "optimizer"], ["trainer.max_epochs=x"])
        return [*random.choice(other)], {}, random.choice(("closed", "full", "pipe"))
    return line, {random.choice(variables): random.choice(("", "0", "-1", "x", "nowhere/x", "1e9"))}, "file"


def presets(surface: Surface, random: Random) -> Line:
    """Presets and groups of the user's own, right and wrong ones."""
    folder = random.choice(("presets", "presets", "presets", "nowhere", "file.txt", "noentry", "''", "."))
    names = (
        "good",
        "no_global",
        "not_yaml",
        "unknown_group",
        "unknown_setting",
        "a_list",
        "empty",
        "number",
        "latin",
        "defaults",
        "no_such",
    )
    line = ["--config-dir", folder, *small_run(surface, random), f"experiment={random.choice(names)}"]
    return line, {}, "file"


KINDS: Dict[str, Tuple[Callable[[Surface, Random], Line], int]] = {
    "one setting": (one_setting, 36),
    "several settings": (several_settings, 6),
    "right settings": (right_settings, 13),
    "options of groups": (options_of_groups, 11),
    "nodes": (nodes, 7),
    "misspellings": (misspellings, 5),
    "hydra": (hydra_settings, 6),
    "surroundings": (surroundings, 2),
    "presets": (presets, 2),
    "flags": (commands.flags, 4),
    "eval": (commands.evaluate, 3),
    "predict": (commands.predict, 3),
    "verify": (commands.verify, 2),
    "explain": (commands.explain, 2),
    "other commands": (commands.others, 2),
}
"""Kind -> how it is drawn, and how often in a hundred or so."""

assert set(PRESET_GROUPS) == {"experiment", "debug"}  # `presets` and LIMITS name them
