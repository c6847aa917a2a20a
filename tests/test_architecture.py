"""The import direction of the packages, and where MXNet and Hydra may be known."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Set

import pytest

from mxtrain.dataset.image.boxes import Column, Flag

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "mxtrain"

# Each layer may import those before it, and of its own only its own package, or modules that are listed by themselves.
LAYERS = [
    {
        "annotations", "errors", "ranking", "types", "files", "cluster.network", "process",
        "dataset.image.box_arithmetic", "dataset.image.box_geometry", "dataset.image.boxes", "dataset.image.key_points",
        "dataset.acting.policy",
        "dataset.recommendation.fields",
        "dataset.image.class_lists", "dataset.image.mask_arithmetic", "dataset.image.mask_rows",
        "dataset.language.answer_scores", "dataset.language.answer_window", "dataset.language.tags",
        "dataset.language.writing",
        "dataset.speech.alphabet",
        "description.override_text",
        "kvstore.world", "private_sockets", "search_path",
    },
    {"description.config", "description.wrapped", "trainer.state", "trainer.cadence"},
    {"files.cache"},
    {"engine.native"},
    {"runtime"},
    {"engine"},
    {"callback", "checkpoint", "logger"},
    {
        "model", "dataset", "optimizer", "lr_scheduler", "loss", "metric", "amp", "kvstore", "early_stopping",
        "trainer.__init__", "cluster",
    },
    {"parallel", "task"},
    {
        "trainer.estimate", "trainer.evaluate", "trainer.plan", "trainer.profiling", "trainer.recorder",
        "trainer.robustness",
    },
    {"trainer.attribution", "trainer.step"},
    {"description"},
    {"trainer.resume", "trainer.snapshot", "trainer.watchers", "description.provenance"},
    {"trainer.saving"},
    {"trainer.elastic", "trainer.ending", "trainer.loaders", "trainer.nonfinite", "trainer.validation"},
    {"cluster.stragglers"},
    {"trainer.runner"},
    {"build", "kvstore.table_server", "kvstore.update_server"},
    {"trainer.trained", "verify"},
    {"cli", "__init__"},
    {"__main__"},
]  # fmt: skip
LAYER_OF = {part: number for number, layer in enumerate(LAYERS) for part in layer}

# Modules that need MXNet to be imported at all: they are imported by `build` and what it makes, when a run is built.
WITH_MXNET = {
    "mxtrain.amp.scaling", "mxtrain.build", "mxtrain.dataset.acting.following",
    "mxtrain.dataset.loading.placing", "mxtrain.dataset.loading.staging",
    "mxtrain.engine.backend", "mxtrain.engine.bound_call", "mxtrain.engine.gluon_parameters",
    "mxtrain.engine.limits", "mxtrain.engine.trace", "mxtrain.kvstore.async_store", "mxtrain.kvstore.buckets",
    "mxtrain.kvstore.compressed_message", "mxtrain.kvstore.compression", "mxtrain.kvstore.dist_store",
    "mxtrain.kvstore.horovod_store", "mxtrain.kvstore.joined_store", "mxtrain.kvstore.message",
    "mxtrain.kvstore.mxnet_store",
    "mxtrain.engine.drawn_rows", "mxtrain.kvstore.remote_updater", "mxtrain.kvstore.table_server",
    "mxtrain.kvstore.update_server", "mxtrain.loss.blocks", "mxtrain.loss.ctc_blocks",
    "mxtrain.loss.detection_blocks", "mxtrain.loss.frame_blocks", "mxtrain.loss.pose_blocks",
    "mxtrain.loss.policy_blocks", "mxtrain.loss.ranking_blocks", "mxtrain.loss.region_blocks", "mxtrain.metric.meter",
    "mxtrain.model.networks.embedding_table",
    "mxtrain.model.networks.bert", "mxtrain.model.networks.bilstm",
    "mxtrain.model.networks.center_net", "mxtrain.model.networks.classifier", "mxtrain.model.networks.conformer",
    "mxtrain.model.networks.gpt", "mxtrain.model.networks.language", "mxtrain.model.networks.lstm",
    "mxtrain.model.networks.actor_critic",
    "mxtrain.model.networks.attention", "mxtrain.model.networks.gnmt", "mxtrain.model.networks.transformer",
    "mxtrain.model.networks.translation", "mxtrain.model.networks.traced_step",
    "mxtrain.model.networks.features", "mxtrain.model.networks.fastspeech", "mxtrain.model.networks.recommendation",
    "mxtrain.model.networks.fpn", "mxtrain.model.networks.ssd", "mxtrain.model.networks.yolo3",
    "mxtrain.model.networks.faster_rcnn", "mxtrain.model.networks.feature_maps", "mxtrain.model.networks.fused",
    "mxtrain.model.networks.mask_rcnn", "mxtrain.model.networks.region_operators",
    "mxtrain.model.networks.region_parts", "mxtrain.model.networks.speech", "mxtrain.model.networks.two_forms",
    "mxtrain.model.networks.gluoncv", "mxtrain.model.networks.gluoncv_segmentation",
    "mxtrain.optimizer.adam", "mxtrain.optimizer.clipping", "mxtrain.optimizer.own_update", "mxtrain.optimizer.sgd",
    "mxtrain.optimizer.ema", "mxtrain.optimizer.mended", "mxtrain.optimizer.rows", "mxtrain.optimizer.state",
    "mxtrain.optimizer.updater", "mxtrain.parallel.balance", "mxtrain.parallel.carried",
    "mxtrain.parallel.chain", "mxtrain.parallel.cost",
    "mxtrain.parallel.executor",
    "mxtrain.parallel.fence", "mxtrain.parallel.grid", "mxtrain.parallel.joined", "mxtrain.parallel.lockstep",
    "mxtrain.parallel.norm", "mxtrain.parallel.on_host", "mxtrain.parallel.statistics",
    "mxtrain.parallel.row_tables", "mxtrain.parallel.served_tables",
    "mxtrain.parallel.reference", "mxtrain.parallel.stage", "mxtrain.parallel.tape", "mxtrain.trainer.elastic",
    "mxtrain.trainer.estimate",
    "mxtrain.trainer.attribution", "mxtrain.trainer.ending", "mxtrain.trainer.loaders", "mxtrain.trainer.evaluate",
    "mxtrain.trainer.validation",
    "mxtrain.trainer.nonfinite", "mxtrain.trainer.profiling", "mxtrain.trainer.recorder", "mxtrain.trainer.runner",
    "mxtrain.trainer.saving", "mxtrain.trainer.snapshot", "mxtrain.trainer.step", "mxtrain.trainer.trained",
    "mxtrain.verify",
}  # fmt: skip

# Only these know what a sample is.
KNOW_SAMPLES = ("task", "dataset", "model", "loss", "metric")
SAMPLE_WORDS = re.compile(
    r"(?<![a-z])(class names?|num class(?:es)?|classes|labels?|tokens?|images?|pixels?|box(?:es)?|confusions?|"
    r"vocab[a-z]*|sentences|texts|masks?|photos?|scenes?|key points?|detections?|segmentation|"
    r"speech|audio|sounds?|utterances?|transcripts?|phonemes?|spectrograms?|"
    r"classification|regression|tabular|recommend[a-z]*|ratings?|"
    r"reinforcement|episodes?|rewards?|observations?|agents?|policies|rollouts?)(?![a-z])"
)
OTHER_MEANINGS = {
    "classes of Python's": {
        "mxtrain.cli.arguments": "classes", "mxtrain.cli.compose": "classes", "mxtrain.cli.restored": "classes",
        "mxtrain.cli.trust": "classes", "mxtrain.description.override_text": "classes",
    },
    "options of networks, which users' own have": {
        "mxtrain.build": "num classes", "mxtrain.trainer.loaders": "num classes",
    },
    "names of options and settings": {"mxtrain.cli.setting_names": "image", "mxtrain.trainer.resume": "image"},
    "a feature that MXNet was built with": {"mxtrain.cli.diagnosis": "image"},
    "examples of what is typed, and the task of who types none": {
        "mxtrain.cli.commands": "photo, photos, tabular", "mxtrain.cli.compose": "classification",
    },
    "masks of attention, of dropout and of cores": {
        "mxtrain.parallel.base": "mask", "mxtrain.runtime.cores": "mask", "mxtrain.trainer.snapshot": "mask",
        "mxtrain.verify": "masks",
    },
    "the frame of a table on the terminal": {
        "mxtrain.cli.artifacts": "box", "mxtrain.cli.sweep": "box", "mxtrain.cli.verify": "box",
        "mxtrain.kvstore.times": "box", "mxtrain.logger.console_logger": "box", "mxtrain.logger.report": "box",
        "mxtrain.logger.terminal": "box",
    },
    "what a branch of a tree is headed by": {"mxtrain.logger.config_tree": "label"},
    "the kinds of artifacts, an image summary of TensorBoard's, an image of Pillow's": {
        "mxtrain.cli.artifacts": "audio, sounds", "mxtrain.logger.tensorboard": "images",
        "mxtrain.logger.tensorboard_logger": "audio, image, images, sound", "mxtrain.trainer.robustness": "image",
        "mxtrain.types": "audio, image, sound",
    },
    "secrets.token_hex, and what such a secret is called": {
        "mxtrain.cluster.ranked": "token", "mxtrain.kvstore.table_link": "token",
        "mxtrain.kvstore.table_wire": "token", "mxtrain.private_sockets.folder": "token",
    },
    "lines of output": {"mxtrain.cli.artifacts": "texts", "mxtrain.cluster.frames": "texts"},
    "a library in memory, and its strings": {"mxtrain.private_sockets.calls": "image, texts"},
}  # fmt: skip
"""What such words mean elsewhere: the modules in which they mean that, and the words."""

MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """mxtrain.dataset.base -> dataset; the longest name that `LAYERS` has."""
    _, *parts = module.split(".")
    names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)] or ["__init__"]
    if f"{names[0]}.__init__" in LAYER_OF:
        return f"{names[0]}.__init__"
    return next((name for name in names if name in LAYER_OF), names[-1])


def imports_of(path: Path):
    """(line, module) of every import outside of `if TYPE_CHECKING`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        inner for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }  # fmt: skip
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
    assert users == ["types.py"]
    assert [str(one) for one in (Column.FLAGS, Flag.CROWD, Flag.CROWD | Flag.DIFFICULT)] == ["5", "2", "3"]


def test_every_part_has_its_layer() -> None:
    assert {part_of(name_of(path)) for path in MODULES} <= set(LAYER_OF)


def test_imports_point_one_way() -> None:
    wrong = set()
    for path in MODULES:
        own = part_of(name_of(path))
        for _, module in imports_of(path):
            part = part_of(module)
            if not module.startswith("mxtrain.") or part == own:
                continue
            is_own_room = part.split(".")[0] == own.split(".")[0] or "." in part or part in ("errors", "types")
            if LAYER_OF[part] > LAYER_OF[own] or (LAYER_OF[part] == LAYER_OF[own] and not is_own_room):
                wrong.add(f"{path.relative_to(ROOT)} imports {module}")
    assert wrong == set()


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
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import mxtrain.build\n"
        "def f():\n    from mxtrain.cli import dispatch\n    import mxtrain.errors\n"
    )
    assert [module for _, module in imports_of(file)] == ["typing", "mxtrain.cli.dispatch", "mxtrain.errors"]


def test_no_module_imports_itself_in_a_circle() -> None:
    """Imports within functions count: they only hide a circle. What is imported for annotations alone
    (`if TYPE_CHECKING`) does not: nothing needs it to run."""
    imports = {name_of(path): {module for _, module in imports_of(path) if module in NAMES} for path in MODULES}
    assert circles_of(imports) == []


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


def test_only_tasks_and_what_they_join_know_what_a_sample_is() -> None:
    found = {
        (name_of(path), word) for path in MODULES if path.relative_to(PACKAGE).parts[0] not in KNOW_SAMPLES
        for word in sample_words(ast.parse(path.read_text(encoding="utf-8")))
    }  # fmt: skip
    allowed = {
        (module, word) for modules in OTHER_MEANINGS.values() for module, words in modules.items()
        for word in words.split(", ")
    }  # fmt: skip
    assert found - allowed == set()
    assert allowed - found == set(), "a list of what is there, and no more"


ROOMS = ("acting", "image", "language", "recommendation", "speech", "table")
"""Packages in `mxtrain/dataset/` that are for samples of one kind."""
BY_NAME = {("mxtrain.cli.compose", "mxtrain.model.gluoncv_segmentation")}
"""`model.name=` alone means an option, and GluonCV's names say which."""


def test_only_tasks_and_what_they_join_import_what_is_for_samples_of_one_kind() -> None:
    """Neither a room of one kind of samples, nor the module of an option of task/, dataset/ or model/."""
    files = [file for group in ("task", "dataset", "model") for file in (ROOT / "conf" / group).glob("*.yaml")]
    options = {
        module for file in files
        for module in re.findall(r"_target_: (mxtrain\.[\w.]+)\.\w+", file.read_text(encoding="utf-8"))
    }  # fmt: skip
    rooms = tuple(f"mxtrain.dataset.{room}." for room in ROOMS)
    assert len(options) > 50 and all((PACKAGE / "dataset" / room).is_dir() for room in ROOMS)
    found = {
        (name_of(path), module) for path in MODULES if path.relative_to(PACKAGE).parts[0] not in KNOW_SAMPLES
        for _, module in imports_of(path) if module in options or module.startswith(rooms)
    }  # fmt: skip
    assert found == BY_NAME


@pytest.mark.parametrize("library, allowed", [("hydra", {"build", "cli"}), ("omegaconf", {"build", "cli"})])
def test_only_build_and_the_command_line_know_hydra(library: str, allowed: set) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}" for path in MODULES for line, module in imports_of(path)
        if module.split(".")[0] == library and name_of(path).split(".")[1] not in allowed
    ]  # fmt: skip
    assert wrong == []


def test_data_is_split_at_line_ends_only() -> None:
    """`str.splitlines` also splits at U+2028, form feeds and the like; `files.text_lines.split_lines` does not."""
    readers = {"cluster.hosts", "dataset", "files", "logger", "metric", "task"}
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}" for path in MODULES
        if readers & {name_of(path).partition(".")[2].partition(".")[0], name_of(path).partition(".")[2]}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "splitlines"
        and not re.search(r"^str\(error\)|\.std(out|err)\b|read_bytes\(\)", ast.unparse(node.value))
    ]  # fmt: skip
    assert wrong == []


def test_only_the_backend_and_what_it_serves_name_mxnet() -> None:
    """`backend` is the only home of MXNet's names, except where a process of its own probes the installation."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}" for path in MODULES for line, module in imports_of(path)
        if module.split(".")[0] == "mxnet" and name_of(path) != "mxtrain.engine.backend"
    ]  # fmt: skip
    assert wrong == []


def test_modules_without_mxnet_leave_it_unimported() -> None:
    """About two seconds: one process imports all of them."""
    names = [name_of(path) for path in MODULES if name_of(path) not in WITH_MXNET and path.name != "__main__.py"]
    script = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        "    if 'mxnet' in sys.modules: sys.exit(name + ' imports MXNet')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


REPLACED = {
    "pulse": "heartbeat", "orders": "launch_spec", "farewell": "shutdown_timeout_s", "meet": "all_reduce",
    "meets": "all_reduce", "met": "all_reduce", "meeting": "rendezvous", "settle": "synchronize",
    "settled": "synchronize", "tell": "emit or notify", "tells": "emit or notify", "told": "emit or notify",
    "letter": "mailbox or compressed_message", "letters": "mailbox or compressed_message",
    "parcel": "checkpoint_archive", "reading": "tokenizer_config", "team": "stragglers",
}  # fmt: skip
"""Words that names had, and the field's words for what they meant."""
REPLACED_IN_TEXT = re.compile(
    r"(?<![a-z])(pulses?|farewells?|meets?|met|settle[sd]?|parcels?|letter ?box(?:es)?|signs? of life)(?![a-z])"
)
"""Those of them that mean nothing else in this project's sentences, where English has `told` and `letters`."""
STILL_THERE = {
    "letters of the alphabet": (
        "letter, letters", "mxtrain.model.networks.gluoncv_names", "mxtrain.cli.mistakes", "mxtrain.cli.trust",
        "mxtrain.cluster.relayed", "mxtrain.dataset.language.tokenizing.wordpiece", "mxtrain.logger.fonts",
        "mxtrain.dataset.language.writing", "mxtrain.files.text_encoding",
    ),
}  # fmt: skip


def words_of(name: str) -> Set[str]:
    """The words of an identifier, in lower case."""
    return set(re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower().split("_"))


def names_in(tree: ast.AST) -> Iterator[str]:
    """Every identifier."""
    for node in ast.walk(tree):
        for name in ("id", "attr", "arg", "name", "asname", "module"):
            value = getattr(node, name, None)
            if isinstance(value, str):
                yield from value.split(".")


def replaced_names(text: str) -> Set[str]:
    """The replaced words among the identifiers of a module."""
    return {word for name in names_in(ast.parse(text)) for word in words_of(name) & set(REPLACED)}


def test_what_counts_as_a_replaced_word() -> None:
    """Else the next test would pass whatever the modules say."""
    code = (
        "from mxtrain.kvstore.letter import Letter\nclass LastFarewell:\n    def tell_it(self, pulse): self.met = 1\n"
    )
    assert replaced_names(code) == {"letter", "farewell", "tell", "pulse", "met"}
    assert replaced_names("class Metric:\n    'A letter.'\n    teller = parcelled = 1\n") == set()
    assert REPLACED_IN_TEXT.findall('"""Gradients meet."""  # no sign of life') == ["meet", "sign of life"]
    assert REPLACED_IN_TEXT.findall("the metric of a method, impulses") == []


def test_replaced_words_do_not_come_back() -> None:
    """In names of modules, classes, functions and variables, and in what docstrings, messages and documents say."""
    found = set()
    for path in MODULES:
        own = {word for part in path.relative_to(PACKAGE).with_suffix("").parts for word in words_of(part)}
        found |= {
            (name_of(path), word) for word in replaced_names(path.read_text(encoding="utf-8")) | own & set(REPLACED)
        }
    allowed = {
        (module, word) for words, *modules in STILL_THERE.values() for word in words.split(", ") for module in modules
    }
    assert {f"{module}: {word}; say {REPLACED[word]}" for module, word in found - allowed} == set()
    assert {module for module, _ in allowed} == {module for module, _ in found}
    documents = [
        path for path in (ROOT / "docs").rglob("*.md") if path.name != "benchmarks.md"
    ]  # which has a column `met`
    texts = [*MODULES, *(ROOT / "conf").rglob("*.yaml"), *documents, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    said = {
        f"{path.relative_to(ROOT)}:{number}: {word}" for path in texts
        for number, line in enumerate(path.read_text(encoding="utf-8").lower().splitlines(), 1)
        for word in REPLACED_IN_TEXT.findall(line)
    }  # fmt: skip
    assert said == set()


RIDDLE = re.compile(r"(Of|That of|Those of|Whose|By which|In which|Likewise)\b")
"""How docstrings begin that only who reads the code before them understands."""


def riddles_in(tree: ast.AST) -> List[str]:
    """The names of what has such a docstring."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)))
    return [getattr(node, "name", "module") for node in nodes if RIDDLE.match(ast.get_docstring(node) or "")]


def test_docstrings_stand_alone() -> None:
    """Also that the test sees one that does not."""
    assert riddles_in(ast.parse("class A:\n    'Of text.'\n    def f(self):\n        'Offers.'\n")) == ["A"]
    found = {
        f"{path.relative_to(ROOT)}: {name}" for path in MODULES
        for name in riddles_in(ast.parse(path.read_text(encoding="utf-8")))
    }  # fmt: skip
    assert found == set()


NO_OPTIONS = {
    "dataset": {"__init__", "base", "signature", "make_record"},
    "model": {"__init__", "base", "custom", "parameters", "params_file", "prepare", "weights"},
}
"""Modules in a group's folder that no file of conf/ names: what all options share, and commands."""


@pytest.mark.parametrize("group", sorted(NO_OPTIONS))
def test_a_group_that_grows_holds_options_and_rooms_for_what_they_share(group: str) -> None:
    """So whoever looks for an option of conf/ sees options, and what several of them use stands in a sub-package."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "conf" / group).glob("*.yaml")]
    options = {name for text in texts for name in re.findall(rf"_target_: mxtrain\.{group}\.(\w+)\.\w+", text)}
    assert {path.stem for path in (PACKAGE / group).glob("*.py")} == options | NO_OPTIONS[group]


def test_no_two_classes_share_a_name() -> None:
    """Whoever reads or searches for a class's name finds one class."""
    where: Dict[str, List[str]] = {}
    for path in MODULES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(name_of(path))
    assert {name: modules for name, modules in where.items() if len(modules) > 1} == {}


def copies_of_this_process(tree: ast.AST) -> List[str]:
    """What in a test makes a copy of the process that runs the tests."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [(ast.unparse(call.func), call) for call in calls]
    found = [name for name, _ in names if name.split(".")[-1] in ("fork", "forkpty")]
    found += [name for name, call in names if any(word.arg == "preexec_fn" for word in call.keywords)]
    contexts = [call for name, call in names if name.endswith("get_context")]
    return found + [ast.unparse(call) for call in contexts if [ast.unparse(word) for word in call.args] != ["'spawn'"]]


def test_what_counts_as_a_copy_of_a_process() -> None:
    for line in ("os.fork()", "subprocess.run(a, preexec_fn=b)", "multiprocessing.get_context('fork').Process()"):
        assert copies_of_this_process(ast.parse(line)), line
    assert not copies_of_this_process(ast.parse("subprocess.Popen(a)\nmultiprocessing.get_context('spawn').Process()"))


def test_no_test_copies_the_process_that_runs_it() -> None:
    """It has gigabytes of addresses, of which the kernel refuses a copy once one piece exceeds the machine's memory."""
    files = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "tests").rglob("conftest.py")]
    found = {str(path): copies_of_this_process(ast.parse(path.read_text(encoding="utf-8"))) for path in files}
    assert len(found) > 200 and not {name: calls for name, calls in found.items() if calls}
