"""Examples in the README and the guides work: commands compose, links have targets, names exist."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import shlex
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Set, Tuple

import pytest
from old_files import write_old_files

from mxtrain.archive.filter import parse_filter
from mxtrain.cli import arguments as command_line
from mxtrain.cli.clean import CleanOptions
from mxtrain.cli.data import DataSettings, refuse_unknown_arguments
from mxtrain.cli.diff import DiffOptions
from mxtrain.cli.dispatch import find_command
from mxtrain.cli.launch import LaunchSettings
from mxtrain.cli.lr_find import LrFindSettings
from mxtrain.cli.plan import PlanOptions
from mxtrain.cli.push import PushSettings
from mxtrain.cli.report import ReportOptions
from mxtrain.cli.run_arguments import parse_run_arguments
from mxtrain.cli.runs import RunsOptions
from mxtrain.cli.serve import ServeSettings
from mxtrain.cli.settings import split_settings
from mxtrain.cli.tune import TuneSettings, study_of
from mxtrain.cluster.launch.study import describe_study
from mxtrain.cluster.launch.sweep import checked_jobs
from mxtrain.composing.composer import Composer
from mxtrain.composing.restored import refuse_unused_settings
from mxtrain.composing.trackers import tracker_of
from mxtrain.config import options
from mxtrain.config.groups import describe
from mxtrain.config.plugins import find_plugins
from mxtrain.config.specs import import_target
from mxtrain.errors import ConfigError
from mxtrain.workflows.average import AverageSettings
from mxtrain.workflows.evaluate import EvalSettings
from mxtrain.workflows.export import ExportSettings
from mxtrain.workflows.predict import PredictSettings
from mxtrain.workflows.slim import SlimSettings
from mxtrain.workflows.verify import VerifySettings

ROOT = Path(__file__).resolve().parents[1]
MEASURED = (
    "benchmarks/*.md",
    "reference/damaged-input.md",
    "internals/mutation.md",
    "reference/settings.md",
    "reference/options.md",
)
"""Pages with results of scripts; their commands were run."""
EXAMPLES = sorted((ROOT / "examples").glob("*/README.md"))
"""Pages whose commands are typed in their folder."""
GUIDES = [
    *EXAMPLES,
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if not any(page.match(f"docs/{pattern}") for pattern in (*MEASURED, "decisions/*.md", "zh/*.md"))
    ),
]
CHINESE = [ROOT / "README.zh-CN.md", *sorted((ROOT / "docs/zh").glob("*.md"))]
"""Pages with the commands of the English ones (tests/test_chinese.py)."""
PAGES = sorted({*GUIDES, *CHINESE, *(ROOT / "docs").rglob("*.md")})
SETTINGS = {
    "average": AverageSettings,
    "data": DataSettings,
    "eval": EvalSettings,
    "export": ExportSettings,
    "launch": LaunchSettings,
    "lr_find": LrFindSettings,
    "plan": PlanOptions,
    "predict": PredictSettings,
    "slim": SlimSettings,
    "tune": TuneSettings,
    "verify": VerifySettings,
}
READERS = {"clean": CleanOptions, "diff": DiffOptions, "report": ReportOptions, "runs": RunsOptions}
STARTED = re.compile(r"(?:\bpython -m mxtrain|\bscripts/train)(?![\w./])(.*)")
PLACEHOLDERS = re.compile(r"\[\w+\]|ARGS|\.\.\.|--with-uv")
"""Words of a command that stand for what a reader types, or are for the script alone."""
INLINE = re.compile(r"`([^`]+)`")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def pieces(page: Path) -> Iterator[Tuple[str, bool]]:
    """(text, whether it is a block) of all code on a page: whole fenced blocks, and what stands in backticks."""
    for number, part in enumerate(page.read_text(encoding="utf-8").split("```")):
        if number % 2:
            yield part.partition("\n")[2].replace("\\\n", " "), True
        else:
            yield from ((code.replace("\n", " "), False) for code in INLINE.findall(part))


def commands(page: Path) -> List[Tuple[str, str, str]]:
    """(what comes before it on its line, what follows `python -m mxtrain`, the next line) of each command of a page."""
    found = []
    for code, _ in pieces(page):
        lines = [*code.splitlines(), ""]
        for line, following in zip(lines, lines[1:]):
            match = STARTED.search(line)
            if match:
                before = line[: match.start()]
                text = match[1].partition(')"')[0] if before.endswith('"$(') else match[1]  # in eval "$(...)"
                found.append((before, text, following))
    return found


def check(composer_of: Callable[[tuple], Composer], arguments: List[str]) -> None:
    """Composes and validates what a command describes, as far as that can be done without data, run and MXNet."""
    position = find_command(arguments)
    name = "train" if position is None else arguments.pop(position)
    if name == "doctor":
        assert not arguments or arguments == ["--json"]
        return
    if "--shell-completion" in arguments:
        return
    if name == "serve":
        given = command_line.parse(arguments)
        _, folders = split_settings(given, ServeSettings, name)
        assert all(re.match(r"(\w+=)?(exported/|RUN|FOLDER)", word) for word in [*given.positionals, *folders])
        return
    if name == "push":
        settings, words = split_settings(command_line.parse(arguments), PushSettings, name)
        named = [Path(folder).resolve() for folder in command_line.parse(arguments).config_dirs]
        folders = tuple(str(folder) for folder in named if folder.name != "DIR")
        tracker_of(settings.tracker, words, composer_of(folders))
        return
    if name in READERS:
        _, _, wheres = parse_run_arguments(arguments, READERS[name], name)
        parse_filter(wheres)
        return
    reads_checkpoint = name in ("eval", "export", "predict", "slim")
    given = command_line.parse(arguments, reads_checkpoint=reads_checkpoint, trains=name == "train")
    overrides = split_settings(given, SETTINGS[name], name)[1] if name in SETTINGS else given.overrides
    if name == "data":
        refuse_unknown_arguments(given.positionals)
    if name == "average":
        assert not overrides and (len(given.positionals) > 1) == any("soup=" in word for word in given.overrides)
    if name == "tune":
        subcommand, _ = study_of(given)
        if overrides and not subcommand:
            describe_study(composer_of(()), split_settings(given, TuneSettings, name)[0], overrides, [])
        return
    if name == "export" and given.positionals[0] == "check":
        assert given.positionals == ["check", "FOLDER"] and not given.overrides
        return
    if name in ("eval", "predict"):
        refuse_unused_settings(overrides, name)
        assert given.positionals[0].split("/")[0] in ("RUN", "outputs", "studies")
    composer = composer_of(tuple(str(Path(folder).resolve()) for folder in given.config_dirs))
    every = list(checked_jobs(composer, overrides)) if given.multirun else [overrides]
    for job in every[:: max(len(every) - 1, 1)]:  # the first and the last
        composed = composer.compose(job)
        describe(composed.config, composed.where, check_rules=name != "data")
    if name == "explain":
        node = composed.config
        for key in given.positionals[0].split("."):
            node = node[key]


def write_files(page: Path, folder: Path) -> None:
    """The files that a page shows, in blocks that begin with `# NAME`."""
    text = page.read_text(encoding="utf-8")
    for name, content in re.findall(r"```(?:python|yaml)\n# ([\w/]+\.(?:py|yaml))\n(.*?)```", text, flags=re.DOTALL):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


@pytest.fixture
def composer_of() -> Iterator[Callable[[tuple], Composer]]:
    """Gives the composer of some --config-dir; only one can be open at a time."""
    opened: Dict[tuple, Composer] = {}

    def give(config_dirs: tuple) -> Composer:
        if config_dirs not in opened:
            opened.clear()
            opened[config_dirs] = Composer(config_dirs).__enter__()
        return opened[config_dirs]

    yield give
    for composer in opened.values():
        composer.__exit__()


@pytest.fixture(scope="module")
def composed() -> Set[Tuple[str, ...]]:
    """Commands that stand on other pages, too, and were composed: each takes a third of a second."""
    return set()


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Gives a function that installs the example of a plug-in for the test, as far as its options go."""
    cached = (find_plugins, options.task_for, options.usual_options, options.own_classes)

    def install() -> None:
        metadata = tmp_path / "site" / "mxtrain_time-0.1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mxtrain-time\nVersion: 0.1.0\n")
        (metadata / "entry_points.txt").write_text("[mxtrain.plugins]\ntime = mxtrain_time\n")
        monkeypatch.syspath_prepend(str(metadata.parent))
        monkeypatch.syspath_prepend(str(ROOT / "examples/plugin_time"))
        for function in cached:
            function.cache_clear()

    yield install
    for function in cached:
        function.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in GUIDES if commands(page)], ids=name_of)
def test_every_command_composes(
    plugin: Callable[[], None],
    page: Path,
    tmp_path: Path,
    composed: Set[Tuple[str, ...]],
    composer_of: Callable[[tuple], Composer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_files(page, tmp_path)
    if "plug-ins" in page.stem or "plugin_time" in page.parts:
        plugin()
    folders = {"cd examples/own_code && ": ROOT / "examples/own_code", "cd odd_digits && ": tmp_path}
    home = page.parent if page in EXAMPLES else ROOT
    if page.parent.name == "coming-from" or page.stem == "old-networks":
        home = tmp_path  # with the files that these pages name
        write_old_files(home)
    for folder in (*folders.values(), home):
        monkeypatch.syspath_prepend(str(folder))
    # What is asked of the machine: the commands are for others, too.
    monkeypatch.setattr("mxtrain.runtime.amx.computes_bfloat16", lambda flags: True)
    monkeypatch.setattr("mxtrain.config.rules.usable_cores", lambda: 8)
    find_spec, trackers = importlib.util.find_spec, {"mlflow", "wandb", "clearml", "comet_ml", "aim"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: name in trackers or find_spec(name, *more))
    monkeypatch.setattr("mxtrain.logger.tracker.check_versions", lambda *versions: None)
    wrong = []
    for before, text, following in commands(page):
        monkeypatch.chdir(folders.get(before, home))
        text = re.sub(r'"\$[A-Z]+"', "1", text)  # numbers that the manifest of a Job sets
        arguments = [word for word in shlex.split(text, comments=True) if not PLACEHOLDERS.fullmatch(word)]
        # The folder of a run is read in the same way in all commands.
        described = (os.getcwd(), *(word for word in arguments if not word.startswith("hydra.run.dir=")))
        if described in composed:
            continue
        try:
            check(composer_of, list(arguments))
            composed.add(described)
        except ConfigError as error:
            if not (following.startswith("error: ") and str(error).startswith(following[len("error: ") :])):
                wrong.append(f"{text}: {error}")
        else:
            if following.startswith("error: "):
                wrong.append(f"{text}: is not refused")
    assert wrong == []


def test_commands_are_found() -> None:
    """The test above sees what is there."""
    assert len(commands(ROOT / "README.md")) > 15 and sum(len(commands(page)) for page in GUIDES) > 80


# Links.


def anchors(page: Path) -> List[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_to_files_and_headings(page: Path) -> None:
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []


def test_all_guides_are_listed() -> None:
    docs = ROOT / "docs"
    linked = re.findall(r"\]\(([^)#]+)\)", (docs / "README.md").read_text(encoding="utf-8"))
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md") if page.parent.name != "decisions"}
    assert pages - {"README.md"} <= set(linked)


HEADINGS = ["First run", "Your data", "Models", "Loss and metrics", "Prediction", "Settings", "Limits"]


def test_every_task_has_a_page_with_the_same_headings() -> None:
    tasks = sorted(path.stem.replace("_", "-") for path in (ROOT / "conf/task").glob("*.yaml"))
    pages = sorted((ROOT / "docs/tasks").glob("*.md"))
    assert [page.stem for page in pages] == tasks
    texts = {page.stem: re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL) for page in pages}
    headings = {name: re.findall(r"^## (.+)$", text, flags=re.MULTILINE) for name, text in texts.items()}
    assert {name: found for name, found in headings.items() if found != HEADINGS} == {}


# The README.


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 10_000


def test_options_page_is_generated_from_conf(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "scripts/settings"))
    page = (ROOT / "docs/reference/options.md").read_text(encoding="utf-8")
    assert page == script["options_text"](), "scripts/settings writes it anew"
    (tmp_path / "amp").mkdir()
    comment = "# @package _global_\n# One | two, e.g.\n# three. Not this.\n# Also called: ONE.\na: 1\n# nor this\n"
    (tmp_path / "amp" / "half.yaml").write_text(comment)
    assert "## `amp`\n\n| option | meaning |\n| --- | --- |\n| `half` | One \\| two, e.g. three. |\n" in script[
        "options_text"
    ](tmp_path)


def test_no_text_is_swallowed_as_html(tmp_path: Path) -> None:
    """`<eos>` in a description would be an unknown element, of which a browser shows nothing."""
    escaped = runpy.run_path(str(ROOT / "scripts/settings"))["escaped"]
    assert escaped("to an <eos>; `<eos>` </s> a < b") == "to an &lt;eos>; `<eos>` &lt;/s> a < b"
    elements = "a|b|br|code|details|div|em|h[1-6]|i|img|kbd|li|p|picture|source|strong|sub|summary|sup|t[adhr]\\w*|ul"
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        text = re.sub(r"```.*?```|~~~.*?~~~|`[^`]*`|<!--.*?-->|<https?:[^>]*>", "", text, flags=re.S)
        assert re.findall(rf"</?(?!(?:{elements})\b)[a-zA-Z][^>\s]*>", text) == [], page


def test_notebooks_start_the_python_of_their_kernel() -> None:
    """`!python` is the first one on the path, which need not have mxtrain."""
    for file in sorted((ROOT / "examples/notebooks").glob("*.ipynb")):
        for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
            text = "".join(cell["source"])
            typed = re.search(r"^\s*(!|%%(bash|sh))\s*(python|pip|mxtrain)", text, re.M)
            assert cell["cell_type"] != "code" or typed is None, file


@pytest.mark.slow
def test_settings_page_is_generated_from_classes() -> None:
    page = runpy.run_path(str(ROOT / "scripts/settings"))["text"]()
    assert (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8") == page, "scripts/settings writes it anew"


# Names in running text.


def known_settings() -> Dict[str, Set[str]]:
    """group -> the options, and the settings of any of them."""
    groups = {}
    for folder in (ROOT / "conf").iterdir():
        if folder.is_dir() and folder.name not in ("hydra", "callback", "experiment", "debug"):
            fields = {"_target_", *(path.stem for path in folder.glob("*.yaml"))}
            for path in folder.glob("*.yaml"):
                for target in re.findall(r"_target_: (\S+)", path.read_text()):
                    fields.update(import_target(target, path.stem).model_fields)
            groups[folder.name] = fields
    return groups


@pytest.mark.parametrize("page", [*GUIDES, *CHINESE], ids=name_of)
def test_mentioned_settings_exist(page: Path) -> None:
    known = known_settings()
    known["loss"].add("dense_labels")  # beside a loss of the user's own
    wrong = []
    for code, is_block in pieces(page):
        for word in () if is_block else code.split():
            match = re.fullmatch(r"([a-z_]+)(?:\.([a-z_0-9]+)(?:[.=].*)?|=([a-z_0-9]+))", word)
            if match and match[1] in known and match[2] not in ("py", "onnx", "safetensors", "tar", "yaml"):
                name = match[2] or match[3]
                if name not in known[match[1]]:
                    wrong.append(word)
    assert wrong == []


@pytest.mark.parametrize("decision", sorted((ROOT / "docs/decisions").glob("*.md")), ids=lambda path: path.stem)
def test_decision_is_linked_from_code_that_exists(decision: Path) -> None:
    named = re.findall(
        r"`((?:mxtrain|tests)/[a-z_./]+)`", re.search(r"\nCode: (.*?)\n\n", decision.read_text("utf-8"), re.S)[1]
    )
    assert all((ROOT / name).exists() for name in named)
    sources = (path.read_text("utf-8") for folder in ("mxtrain", "tests") for path in (ROOT / folder).rglob("*.py"))
    assert any(f"docs/decisions/{decision.stem}" in source for source in sources)
