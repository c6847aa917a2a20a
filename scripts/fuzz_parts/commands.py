"""Command lines of `eval`, `predict`, `verify`, `explain`, `data` and `doctor`, and with flags."""

from __future__ import annotations

from random import Random
from typing import Any, Dict, List, Tuple

from fuzz_parts.surface import Surface
from fuzz_parts.values import FAMILIES, PATHS, SCALARS, misspelt, wrong_value

Line = Tuple[List[str], Dict[str, str], str]
RUNS = (
    "run",
    "run",
    "run",
    "run",
    "run/checkpoints",
    "run/checkpoints/step-00000005",
    "run/",
    "./run",
    "folder",
    "file.txt",
    "nowhere",
    "pictures",
    "''",
    "/dev/null",
    "run/status.json",
    "loop",
    "noentry",
)
PLACES = (
    "pictures",
    "pictures/train/a/0.png",
    "file.txt",
    "nowhere.png",
    "folder",
    "texts.tsv",
    "/dev/null",
    "dangling",
    "loop",
    "noentry",
    "run",
    ".",
    "empty.png",
    "''",
)
SMALL_RUN = (
    "model=mlp",
    "model.hidden=[8]",
    "dataset=synthetic",
    "dataset.num_samples=60",
    "dataset.shape=[1,8,8]",
    "dataset.batch_size=16",
)
OWN = {
    "eval": {"split": ("auto", "train", "val", "test"), "which": ("best", "last"), "output": PATHS},
    "predict": {"which": ("best", "last"), "output": PATHS, "format": ("jsonl", "csv"), "top_k": ("1", "2", "50")},
    "verify": {"steps": ("1", "2", "3"), "tolerance": ("1e-3", "1", "1e30"), "output": PATHS},
}


def _anything(random: Random) -> str:
    return random.choice(random.choice(FAMILIES))


def _own_settings(command: str, random: Random) -> List[str]:
    """Settings of the command itself, right and wrong."""
    found = []
    for name in random.sample(sorted(OWN[command]), random.randint(0, 2)):
        right = random.choice(OWN[command][name])
        value = right if random.random() < 0.6 else _anything(random)
        if command == "verify" and name != "output" and value not in OWN[command][name] and random.random() < 0.5:
            value = random.choice(("x", "0", "-1", "null", "[1]", "nan"))
        key = name if random.random() < 0.9 else misspelt(name, random)
        found.append(f"{key}={value}")
    return found


def _override(surface: Surface, random: Random) -> str:
    group = random.choice(surface.groups)
    option = random.choice(list(surface.options[group]))
    settings = surface.settings.get((group, option))
    if not settings or random.random() < 0.3:
        return f"{group}={random.choice((option, misspelt(option, random), _anything(random)))}"
    setting = random.choice(list(settings))
    return f"{setting.path}={wrong_value(setting, random)}"


def evaluate(surface: Surface, random: Random) -> Line:
    line = ["eval", random.choice(RUNS), *_own_settings("eval", random)]
    line += [_override(surface, random)] if random.random() < 0.5 else []
    line += [random.choice(PLACES)] if random.random() < 0.1 else []
    return line[: random.choice((1, 9, 9, 9, 9, 9, 9, 9))], {}, "file"


def predict(surface: Surface, random: Random) -> Line:
    places = [random.choice(PLACES) for _ in range(random.choice((0, 1, 1, 1, 2)))]
    if random.random() < 0.5:
        places = ["pictures"]
    line = ["predict", random.choice(RUNS), *places, *_own_settings("predict", random)]
    return [*line, *([_override(surface, random)] if random.random() < 0.3 else [])], {}, "file"


def verify(surface: Surface, random: Random) -> Line:
    line = ["verify", *SMALL_RUN, *_own_settings("verify", random)]
    line += (
        [random.choice(("parallel=data", "parallel=pipeline", "parallel.devices=cpu:2", "folder"))]
        if random.random() < 0.3
        else []
    )
    return [*line, *([_override(surface, random)] if random.random() < 0.5 else [])], {}, "file"


def explain(surface: Surface, random: Random) -> Line:
    (group, option), settings = random.choice(sorted(surface.settings.items()))
    path = random.choice(list(settings)).path if settings else group
    keys = (
        path,
        path,
        group,
        path.rpartition(".")[0],
        misspelt(path, random),
        _anything(random),
        "hydra",
        "hydra.run.dir",
        "hydra.job",
        f"{group}.{option}",
        f"{path}.x",
    )
    line: List[str] = ["explain", random.choice(keys)]
    line += [random.choice((f"{group}={option}", _override(surface, random)))] if random.random() < 0.6 else []
    line += [random.choice(keys)] if random.random() < 0.1 else []
    return line, {}, "file"


def flags(surface: Surface, random: Random) -> Line:
    anything = _anything(random)
    chosen: Any = random.choice(
        (
            ["--cfg", random.choice(("job", "hydra", "all", anything))],
            ["--cfg", "job", "--resolve"],
            ["--cfg", "job", "--package", random.choice((*surface.groups, anything))],
            ["--cfg=job", "-p", "model"],
            ["--resolve"],
            ["--package", "model"],
            ["--cfg"],
            [
                "--info",
                random.choice(("all", "config", "defaults", "defaults-tree", "plugins", "searchpath", anything)),
            ],
            ["--info"],
            ["--help"],
            ["-h"],
            ["--hydra-help"],
            ["--version"],
            ["help"],
            ["version"],
            ["--config-name", "x"],
            ["--config-path", anything],
            ["--experimental-rerun", "x"],
            ["--shell-completion", "install=bash"],
            ["--shell-completion", anything],
            ["-sc", "query=bash"],
            ["--lr", "0.1"],
            ["--epochs=3"],
            ["-x"],
            ["--"],
            ["-"],
            ["---"],
            ["--multirun"],
            ["-m", "optimizer.lr=0.1,0.01"],
            ["-m", "model=lenet,mlpx"],
            ["-m", "model=[lenet,mlp]"],
            ["-m", f"optimizer.lr=0.1,{anything}"],
            ["-m", "optimizer.lr=range(1)"],
            ["-m", "--help"],
            ["--config-dir"],
            ["-m", "+optimizer.x=1,2"],
            ["--config-dir", anything],
            ["--help", "--version"],
            ["--cfg", "job", "--info"],
        )
    )
    base = [*SMALL_RUN, "debug=fast", "trainer.max_time=15"]
    extra = [_override(surface, random)] if random.random() < 0.3 else []
    command = [random.choice(("eval", "predict", "verify", "explain", "doctor"))] if random.random() < 0.1 else []
    line = [*command, *base, *extra, *chosen] if random.random() < 0.7 else [*command, *chosen, *base, *extra]
    return line, {}, "file"


def others(surface: Surface, random: Random) -> Line:
    anything = _anything(random)
    line = random.choice(
        (
            ["doctor"],
            ["doctor", "--json"],
            ["doctor", "--timeout", random.choice(SCALARS)],
            ["doctor", anything],
            ["doctor", "--help"],
            ["train", "--help"],
            ["eval", "--help"],
            ["predict", "-h"],
            ["verify", "--help"],
            ["explain", "--help"],
            ["help", "eval"],
            ["help", "x"],
            ["trian"],
            [misspelt("verify", random)],
            [anything],
            ["train", "train"],
            ["eval", "eval"],
            [anything, "train"],
            ["train", anything],
            ["export"],
            ["help", "help"],
            ["data"],
            ["data", "check", "--help"],
            ["data", anything],
            ["data", "check", anything],
            ["data", "check"],
            ["model=lenet", "eval"],
            ["run"],
            ["./run"],
            ["optimizer.lr", "0.1"],
            ["eval", "run", "run"],
        )
    )
    return [*line, *(["debug=fast", "trainer.max_time=10"] if line[0] in ("train", "./run") else [])], {}, "file"
