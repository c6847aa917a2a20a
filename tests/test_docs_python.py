"""The Python blocks of the guides run, one after the other on each page."""

import ast
import doctest
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from running import ROOT, train_here
from test_docs import write_files

pytestmark = pytest.mark.slow
PAGES = ("docs/start/python.md", "docs/extending/custom-loops.md")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_of_a_page_run(page, tmp_path):
    blocks = BLOCK.findall((ROOT / page).read_text("utf-8"))
    assert len(blocks) >= 3
    file = tmp_path / "page.py"
    file.write_text("\n".join(blocks), encoding="utf-8")
    environment = {**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(file)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


COMMANDS = {
    "docs/extending/callbacks.md": [
        "+callback.mine._target_=own_actions.HalveWhenWorse",
        "+callback.mine._target_=own_warm_restart.Restart +callback.mine.every=3",
    ],
    "docs/extending/your-own-parts.md": [
        "--config-dir conf task=odd_digits",
        "--config-dir conf verify task=odd_digits",
    ],
    "docs/tasks/reinforcement-learning.md": [
        "task=reinforcement_learning dataset._target_=corridors.Corridors dataset.id=Corridor-v0",
    ],
}
CORRIDOR = """
import gymnasium
import numpy as np


class Corridor(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return np.eye(4, dtype=np.float32)[0], {}

    def step(self, action):
        self.place = min(3, max(0, self.place + 2 * int(action) - 1))
        return np.eye(4, dtype=np.float32)[self.place], float(self.place == 3), self.place == 3, False, {}


if "Corridor-v0" not in gymnasium.registry:
    gymnasium.register("Corridor-v0", Corridor, max_episode_steps=20)
"""


@pytest.mark.zoo_cases("docs/tasks/reinforcement-learning.md")
@pytest.mark.parametrize("page", COMMANDS)
def test_commands_with_the_classes_of_a_page_run(page, tmp_path):
    write_files(ROOT / page, tmp_path)
    (tmp_path / "corridor.py").write_text(CORRIDOR)
    assert len(list(tmp_path.iterdir())) > 1
    for command in COMMANDS[page]:
        assert command.split()[-1] in (ROOT / page).read_text("utf-8")
        short = [] if "verify" in command else ["debug=fast", "hydra.run.dir=run", "checkpoint.resume=never"]
        words = [sys.executable, "-m", "mxtrain", *command.split(), *short]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_checks_of_own_samples_find_an_inverted_box():
    from types import SimpleNamespace

    (block,) = BLOCK.findall((ROOT / "docs/data/data-check.md").read_text("utf-8"))
    names: dict = {}
    exec(block, names)
    boxes = [[(0, 0, 2, 2)], [(5, 0, 2, 2)]]
    source = SimpleNamespace(boxes=boxes.__getitem__, classes=lambda index: [0], content=lambda index: b"%d" % index)
    source_checks = names["BoxChecks"](source)
    assert source_checks.check(0).problems == []
    (problem,) = source_checks.check(1).problems
    assert str(problem.location) == "boxes.jsonl, line 2" and "is inverted" in problem.fact


def test_arrays_of_own_files_are_prepared_once(tmp_path, monkeypatch):
    (block,) = BLOCK.findall((ROOT / "docs/data/corpora.md").read_text("utf-8"))
    monkeypatch.chdir(tmp_path)
    frames = {"a": np.ones((3, 80), np.float32), "b": np.zeros((2, 80), np.float32)}
    names = {"np": np, "paths": list(frames), "features_of": frames.__getitem__, "digests": ["a", "b"], "settings": {}}
    exec(block, names)
    assert names["shards"].array("feature").shape == (5, 80) and names["shards"].facts["names"] == ["yes", "no"]


BEFORE = """
import os, mxnet, numpy, PIL.Image
mxnet.nd.waitall()
net = mxnet.gluon.nn.Dense(10)
x, y = numpy.random.RandomState(0).rand(200, 64).astype("float32"), numpy.arange(200) % 10
os.makedirs("pets/cat"), os.makedirs("pets/dog")
pets = [f"pets/{name}/{number}.png" for name in ("cat", "dog") for number in range(20)]
for name in ("digit.png", "a.png", "b.png", *pets):
    PIL.Image.fromarray(numpy.full((8, 8), 99, dtype="uint8")).save(name)
"""
SESSIONS = {
    "training": ("api/__init__.py", "api/training.py"),
    "runs": ("api/descriptions.py", "api/run.py"),
    "networks": ("api/networks.py", "api/custom_loop.py"),
    "searches": ("api/searches.py", "workflows/runs.py", "workflows/report.py", "workflows/clean.py"),
    "records": ("api/records.py", "workflows/doctor.py", "workflows/serve.py"),
}
"""Files of mxtrain/ whose examples are typed one after the other; sessions begin with the runs of the first one."""
OF_TEXTS = "A film"  # an example for another run than the one that stands before it
SHORTER = {
    r"mxtrain\.session\(": '"trainer.max_epochs=2", ',
    r"mxtrain\.(train\((?=\*|model=)|sweep\()": '"debug=fast", ',
    r'mxtrain\.train\((?="model=lenet")': '"trainer.limit_train_batches=4", ',
}
"""Calls of examples that would train for long -> arguments that shorten them."""


def examples_in(path):
    """Returns the lines of a file's examples, in their order, with assertions of the values that are given."""
    nodes = ast.walk(ast.parse((ROOT / "mxtrain" / path).read_text(encoding="utf-8")))
    documented = [node for node in nodes if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))]
    lines = []
    for node in sorted(documented, key=lambda node: getattr(node, "lineno", 0)):
        for example in doctest.DocTestParser().get_examples(ast.get_docstring(node) or ""):
            source = example.source
            for call, argument in SHORTER.items():
                source = re.sub(call, lambda match, argument=argument: match[0] + argument, source)
            if example.want:
                lines.append(f"assert repr({source.strip()}) == {example.want.strip()!r}")
            elif OF_TEXTS not in source:
                lines.append(source)
    assert lines, path
    return lines


@pytest.fixture(scope="module")
def first_runs(tmp_path_factory):
    """The runs of the first examples, which others load."""
    folder = tmp_path_factory.mktemp("outputs")
    train_here(folder / "first", "debug=fast")
    train_here(folder / "mlp", "model=mlp", "trainer.max_epochs=3")
    return folder


@pytest.mark.parametrize("session", SESSIONS)
def test_examples_of_docstrings_run(first_runs, tmp_path, session):
    if session != "training":
        shutil.copytree(first_runs, tmp_path / "outputs")
    lines = ["import mxtrain", BEFORE, *(line for path in SESSIONS[session] for line in examples_in(path))]
    file = tmp_path / "examples.py"
    file.write_text("\n".join(lines), encoding="utf-8")
    environment = {**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(file)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
