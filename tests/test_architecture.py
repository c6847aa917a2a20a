"""The import direction of the packages, and where MXNet and Hydra may be known."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Set

import pytest

from mxtrain.vision.detection.boxes import Column, Flag

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "mxtrain"

TARGET = re.compile(r"_target_: mxtrain\.(\w+)\.")
FIELDS = tuple(
    sorted(
        {name for file in (ROOT / "conf" / "task").glob("*.yaml") for name in TARGET.findall(file.read_text("utf-8"))}
        - {"task"}
    )
)
"""Packages that hold everything of one field: those of tasks. All others are shared by the fields, and know none."""
FIELD_NAMED = re.compile(rf"\bmxtrain[./]({'|'.join(FIELDS)})\b")

# Only these know what a sample is.
KNOW_SAMPLES = (*FIELDS, "task", "data", "model", "loss", "metric", "export", "serving")
SAMPLE_WORDS = re.compile(
    r"(?<![a-z])(class names?|num class(?:es)?|classes|labels?|tokens?|images?|pixels?|box(?:es)?|confusions?|"
    r"vocab[a-z]*|sentences|texts|masks?|photos?|scenes?|key points?|detections?|segmentation|"
    r"speech|audio|sounds?|utterances?|transcripts?|phonemes?|spectrograms?|"
    r"classification|regression|tabular|recommend[a-z]*|ratings?|"
    r"reinforcement|episodes?|rewards?|observations?|agents?|policies|rollouts?)(?![a-z])"
)
OTHER_MEANINGS = {
    "classes of Python's": {
        "mxtrain": "classes",
        "mxtrain.api": "classes",
        "mxtrain.composing.arguments": "classes",
        "mxtrain.composing.composer": "classes",
        "mxtrain.composing.config_loader": "classes",
        "mxtrain.composing.foreign_words": "classes",
        "mxtrain.composing.restored": "classes",
        "mxtrain.config.groups": "classes",
        "mxtrain.config.trust": "classes",
        "mxtrain.config.override_text": "classes",
        "mxtrain.archive.report": "classes",
    },
    "results of an evaluation, which a report shows": {
        "mxtrain.archive.figures": "classes, confusion",
        "mxtrain.archive.report": "confusion",
    },
    "options of networks, which users' own have": {
        "mxtrain.training.loaders": "num classes",
        "mxtrain.training.network": "num classes",
    },
    "names of operators": {
        "mxtrain.engine.backend": "mask",
        "mxtrain.engine.gradient_sums": "mask",
        "mxtrain.workflows.own_gradients": "regression",
    },
    "names of options and settings": {"mxtrain.composing.setting_names": "image", "mxtrain.training.resume": "image"},
    "a feature that MXNet was built with": {"mxtrain.workflows.doctor": "image"},
    "examples of what is typed, and the task of who types none": {
        "mxtrain.cli.commands": "classification, photo, photos",
        "mxtrain.composing.composer": "classification",
        "mxtrain.archive.run_folders": "classification",
        "mxtrain.cli.run_words": "classification",
        "mxtrain.workflows.runs": "classification",
        "mxtrain.archive.filter": "classification",
    },
    "masks of attention, of dropout, of cores and of pruned weights": {
        "mxtrain.callback.action": "mask, masks",
        "mxtrain.callback.pruning": "mask, masks",
        "mxtrain.training.step": "mask, masks",
        "mxtrain.parallel.base": "mask",
        "mxtrain.runtime.cores": "mask",
        "mxtrain.training.snapshot": "mask",
        "mxtrain.workflows.verification": "masks",
    },
    "the frame of a table on the terminal": {
        "mxtrain.terminal.tables": "box",
        "mxtrain.kvstore.times": "box",
        "mxtrain.logger.console_logger": "box",
        "mxtrain.terminal.report": "box",
        "mxtrain.terminal.console": "box",
    },
    "names of SVG, CSS and of the kinds of files": {
        "mxtrain.archive.chart": "box, label",
        "mxtrain.archive.figures": "image",
        "mxtrain.archive.page": "box, tabular",
        "mxtrain.archive.report": "box, image",
        "mxtrain.archive.written_files": "labels",
    },
    "what a branch of a tree is headed by": {"mxtrain.logger.config_tree": "label"},
    "the kinds of artifacts, an image summary of TensorBoard's, an image of Pillow's": {
        "mxtrain.cli.artifacts": "audio, images, sounds",
        "mxtrain.task.figure_fonts": "images",
        "mxtrain.logger.tensorboard": "image, images",
        "mxtrain.logger.tensorboard_logger": "audio, image, images, sound",
        "mxtrain.training.robustness": "image",
        "mxtrain.types": "audio, image, sound",
    },
    "objects that users pass to the Python API": {
        "mxtrain.api": "image, texts",
        "mxtrain.in_memory": "image, images, texts",
    },
    "sentences of messages": {"mxtrain.training.remarks": "sentences", "mxtrain.training.resume": "sentences"},
    "secrets.token_hex, and what such a secret is called": {
        "mxtrain.logger.mlflow": "token",
        "mxtrain.config.secret_values": "token",
        "mxtrain.cli.serve": "token",
        "mxtrain.cluster.ranked": "token",
        "mxtrain.kvstore.table_link": "token",
        "mxtrain.kvstore.table_wire": "token",
    },
    "lines of output": {"mxtrain.cli.artifacts": "texts"},
}
"""What such words mean elsewhere: the modules in which they mean that, and the words."""

MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(module: str) -> str:
    """mxtrain.data.spec -> data; of mxtrain itself, and of other libraries, nothing."""
    return module.split(".")[1] if module.startswith("mxtrain.") else ""


def imports_of(path: Path, for_types: bool = False):
    """(line, module) of every import outside of `if TYPE_CHECKING`; with `for_types` of those inside, too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = (
        set()
        if for_types
        else {
            inner
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for inner in ast.walk(node)
        }
    )
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            # A module may be imported from its package.
            yield from ((node.lineno, name if name in NAMES else node.module) for name in names)


NAMES = {name_of(path) for path in MODULES}


def test_integers_with_names_are_numbers_as_texts() -> None:
    """MXNet's operators take parameters as texts; see `NamedInt`."""
    users = [path.name for path in MODULES if re.search(r"enum\.Int(Enum|Flag)\b", path.read_text(encoding="utf-8"))]
    assert users == ["__init__.py"]
    assert [str(one) for one in (Column.FLAGS, Flag.CROWD, Flag.CROWD | Flag.DIFFICULT)] == ["5", "2", "3"]


def circles_of(imports: Dict[str, Set[str]]) -> List[List[str]]:
    """The groups of modules of which each is reached from each other one, over any number of imports (Tarjan's
    algorithm); a module that imports itself is one, too."""
    number: Dict[str, int] = {}
    lowest: Dict[str, int] = {}
    open_modules: List[str] = []
    found: List[List[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        open_modules.append(module)
        for other in sorted(imports[module]):
            if other not in number:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in open_modules:
                lowest[module] = min(lowest[module], number[other])
        if lowest[module] == number[module]:
            position = open_modules.index(module)
            circle, open_modules[position:] = open_modules[position:], []
            if len(circle) > 1 or module in imports[module]:
                found.append(sorted(circle))

    for module in sorted(imports):
        if module not in number:
            visit(module)
    return found


def test_what_counts_as_a_circle(tmp_path: Path) -> None:
    """Else the next test would pass whatever the modules import."""
    assert circles_of({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"e"}}) == [["b", "c"], ["e"]]
    assert circles_of({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    file = tmp_path / "module.py"
    file.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import mxtrain.training.build\n"
        "def f():\n    from mxtrain.cli import dispatch\n    import mxtrain.errors\n"
    )
    assert [module for _, module in imports_of(file)] == ["typing", "mxtrain.cli.dispatch", "mxtrain.errors"]
    found = {module for _, module in imports_of(file, for_types=True)}
    assert found == {"typing", "mxtrain.cli.dispatch", "mxtrain.errors", "mxtrain.training.build"}


@pytest.mark.slow
def test_no_module_imports_itself_in_a_circle() -> None:
    """Imports within functions count: they only hide a circle. What is imported for annotations alone
    (`if TYPE_CHECKING`) does not: nothing needs it to run."""
    imports = {name_of(path): {module for _, module in imports_of(path) if module in NAMES} for path in MODULES}
    assert circles_of(imports) == []


@pytest.mark.slow
@pytest.mark.parametrize("for_types, known", [(False, []), (True, [["description", "task"]])])
def test_packages_import_in_one_direction(for_types: bool, known: List[List[str]]) -> None:
    """No package imports another one that needs it, over any number of imports; of the fields, see the next tests.
    Imports for annotations count as well, but for one pair: a description holds the task, whose methods take it."""
    imports: Dict[str, Set[str]] = {package_of(name): set() for name in NAMES}
    for path in MODULES:
        own = package_of(name_of(path))
        found = {package_of(module) for _, module in imports_of(path, for_types) if module in NAMES}
        imports[own] |= found - {own, "", *([] if own in FIELDS else FIELDS)}
    assert circles_of(imports) == known


@pytest.mark.slow
def test_shared_packages_import_no_field_and_no_field_imports_another() -> None:
    """Nor name them in annotations, strings and docstrings."""
    assert FIELDS == ("recommendation", "reinforcement", "speech", "tables", "text", "vision")
    found = {
        (name_of(path), field)
        for path in MODULES
        for field in FIELD_NAMED.findall(path.read_text(encoding="utf-8"))
        if field != package_of(name_of(path))
    }
    found |= {
        (name_of(path), module)
        for path in MODULES
        for _, module in imports_of(path)
        if package_of(module) in FIELDS and package_of(name_of(path)) != package_of(module)
    }
    assert found == set()


def said_in(tree: ast.AST) -> Iterator[str]:
    """Every identifier, and every string, docstrings included."""
    for node in ast.walk(tree):
        for name in ("id", "attr", "arg", "name", "asname", "value"):
            value = getattr(node, name, None)
            if isinstance(value, str):
                yield value


def sample_words(tree: ast.AST) -> List[str]:
    """The words of a module by which samples, targets or predictions are called."""
    parts = (re.sub(r"([a-z])([A-Z])", r"\1 \2", text).replace("_", " ").lower() for text in said_in(tree))
    return sorted({word for part in parts for word in SAMPLE_WORDS.findall(part)})


def test_what_counts_as_a_word_about_samples() -> None:
    """Else the next test would pass whatever the modules say."""
    code = (
        "def play_episode(class_names, x):\n    'An image.'\n"
        "    return x.num_classes, {'label_B': BoxLoss()}, f'{x} tokens'\n"
    )
    assert sample_words(ast.parse(code)) == ["box", "class names", "episode", "image", "label", "num classes", "tokens"]
    assert sample_words(ast.parse("class Text:\n    'A class.'\n    unlabelled = subclasses = read_text\n")) == []


@pytest.mark.slow
def test_only_tasks_and_what_they_join_know_what_a_sample_is() -> None:
    found = {
        (name_of(path), word)
        for path in MODULES
        if path.relative_to(PACKAGE).parts[0] not in KNOW_SAMPLES
        for word in sample_words(ast.parse(path.read_text(encoding="utf-8")))
    }
    allowed = {
        (module, word)
        for modules in OTHER_MEANINGS.values()
        for module, words in modules.items()
        for word in words.split(", ")
    }
    assert found - allowed == set()
    assert allowed - found == set(), "a list of what is there, and no more"


@pytest.mark.slow
@pytest.mark.parametrize("library", ["hydra", "omegaconf"])
def test_only_composing_starting_and_the_command_line_know_hydra(library: str) -> None:
    wrong = {
        name_of(path)
        for path in MODULES
        for _, module in imports_of(path)
        if module.split(".")[0] == library
        and not name_of(path).startswith(("mxtrain.cli.", "mxtrain.composing.", "mxtrain.cluster.launch."))
    }
    assert wrong == set()


CLI_IMPORTED_BY = {"mxtrain.api", "mxtrain.workflows.eval_folder"}
"""Modules below `cli` that still import it; none may be added."""


def test_only_the_command_line_imports_the_command_line() -> None:
    found = {
        name_of(path)
        for path in MODULES
        for _, module in imports_of(path, for_types=True)
        if package_of(module) == "cli" and package_of(name_of(path)) != "cli"
    }
    assert found - {"mxtrain.__main__"} == CLI_IMPORTED_BY


def test_workflows_are_functions_without_a_command_line() -> None:
    """They print nothing, read no command line, and know neither Hydra nor `cli`."""
    found = {}
    for path in MODULES:
        if package_of(name_of(path)) != "workflows":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        uses = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, (ast.Name, ast.Attribute))}
        libraries = {module.split(".")[0] for _, module in imports_of(path)}
        wrong = (uses & {"print", "sys.argv", "sys.stdout", "sys.stderr"}) | (libraries & {"hydra", "omegaconf"})
        if wrong:
            found[name_of(path)] = wrong
    assert found == {}


@pytest.mark.slow
def test_data_is_split_at_line_ends_only() -> None:
    """`str.splitlines` also splits at U+2028, form feeds and the like; `files.text_lines.split_lines` does not."""
    readers = {*FIELDS, "cluster.hosts", "data", "files", "logger", "metric", "task"}
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in MODULES
        if readers & {name_of(path).partition(".")[2].partition(".")[0], name_of(path).partition(".")[2]}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr == "splitlines"
        and not re.search(r"^str\(error\)|\.std(out|err)\b|read_bytes\(\)", ast.unparse(node.value))
    ]
    assert wrong == []


@pytest.mark.slow
def test_only_the_backend_and_what_it_serves_name_mxnet() -> None:
    """`backend` is the only home of MXNet's names, except where a process of its own probes the installation."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in MODULES
        for line, module in imports_of(path)
        if module.split(".")[0] == "mxnet" and name_of(path) != "mxtrain.engine.backend"
    ]
    assert wrong == []


@pytest.mark.slow
def test_what_composes_and_checks_a_run_leaves_mxnet_unimported() -> None:
    """The command line, and every class that a configuration names. About two seconds: one process imports all."""
    targets = {
        module
        for file in (ROOT / "conf").rglob("*.yaml")
        for module in re.findall(r"_target_: (mxtrain\.[\w.]+)\.\w+", file.read_text(encoding="utf-8"))
    }
    names = sorted(targets | {name for name in NAMES if package_of(name) in ("cli", "config", "description")})
    assert len(targets) > 100
    script = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        "    if 'mxnet' in sys.modules: sys.exit(name + ' imports MXNet')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_no_two_classes_share_a_name() -> None:
    """Whoever reads or searches for a class's name finds one class."""
    where: Dict[str, List[str]] = {}
    for path in MODULES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(name_of(path))
    assert {name: modules for name, modules in where.items() if len(modules) > 1} == {}


def copies_of_this_process(tree: ast.AST) -> List[str]:
    """What in a test makes a copy of the process that runs the tests; `run_cases` of scripts/fuzz does, too."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [(ast.unparse(call.func), call) for call in calls]
    found = [name for name, _ in names if name.split(".")[-1] in ("fork", "forkpty", "run_cases")]
    found += [name for name, call in names if any(word.arg == "preexec_fn" for word in call.keywords)]
    contexts = [call for name, call in names if name.endswith("get_context")]
    return found + [ast.unparse(call) for call in contexts if [ast.unparse(word) for word in call.args] != ["'spawn'"]]


def test_what_counts_as_a_copy_of_a_process() -> None:
    for line in (
        "os.fork()",
        "subprocess.run(a, preexec_fn=b)",
        "multiprocessing.get_context('fork').Process()",
        "files.run_cases(0, [1], [])",
    ):
        assert copies_of_this_process(ast.parse(line)), line
    assert not copies_of_this_process(ast.parse("subprocess.Popen(a)\nmultiprocessing.get_context('spawn').Process()"))


@pytest.mark.slow
def test_no_test_copies_the_process_that_runs_it() -> None:
    """It has gigabytes of addresses, of which the kernel refuses a copy once one piece exceeds the machine's memory."""
    files = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "tests").rglob("conftest.py")]
    found = {str(path): copies_of_this_process(ast.parse(path.read_text(encoding="utf-8"))) for path in files}
    assert len(found) > 200 and not {name: calls for name, calls in found.items() if calls}
