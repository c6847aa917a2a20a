"""The import direction of the packages, and where MXNet and Hydra may be known."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "mxtrain"

# Each layer may import those before it, and itself only within one part.
LAYERS = [
    {
        "errors",
        "types",
        "durable",
        "late_functions",
        "network",
        "override_text",
        "params_format",
        "private_sockets",
        "pulse",
        "search_path",
        "sharing",
    },  # fmt: skip
    {"config", "state", "cadence", "stopping"},
    {"cache"},
    {"native"},
    {"runtime"},
    {"backend", "engine_limits", "engine_trace"},
    {"callback", "checkpoint", "logger"},
    {
        "model",
        "dataset",
        "optimizer",
        "lr_scheduler",
        "loss",
        "metric",
        "amp",
        "kvstore",
        "early_stopping",
        "trainer",
        "cluster",
    },  # fmt: skip
    {"parallel"},
    {"evaluate", "nonfinite", "plan", "profiling", "recorder"},
    {"step"},
    {"description"},
    {"resume", "snapshot", "provenance", "watchers"},
    {"saving"},
    {"team"},
    {"runner"},
    {"build", "update_server"},
    {"trained", "report", "verify"},
    {"cli", "__init__"},
    {"__main__"},
]
LAYER_OF = {part: number for number, layer in enumerate(LAYERS) for part in layer}
SINGLE_FILES_MAY_SHARE = {"errors", "types", "config", "state", "cadence", "stopping", "resume", "snapshot", "backend"}

# Modules that need MXNet to be imported at all: they are imported by `build` and what it makes, when a run is built.
WITH_MXNET = {
    "mxtrain.amp.scaling",
    "mxtrain.backend", "mxtrain.build", "mxtrain.engine_limits", "mxtrain.engine_trace", "mxtrain.evaluate",
    "mxtrain.metric.meter",
    "mxtrain.model.bert_network", "mxtrain.model.fused",
    "mxtrain.model.gluoncv_zoo", "mxtrain.model.networks", "mxtrain.model.layers",
    "mxtrain.nonfinite",
    "mxtrain.profiling", "mxtrain.recorder", "mxtrain.runner", "mxtrain.saving", "mxtrain.snapshot", "mxtrain.step",
    "mxtrain.trained", "mxtrain.dataset.placing", "mxtrain.loss.blocks",
    "mxtrain.optimizer.decoupled", "mxtrain.optimizer.ema",
    "mxtrain.optimizer.mended", "mxtrain.optimizer.updater", "mxtrain.kvstore.buckets",
    "mxtrain.kvstore.async_store", "mxtrain.kvstore.compression", "mxtrain.kvstore.dist_store",
    "mxtrain.kvstore.horovod_store",
    "mxtrain.kvstore.joined_store",
    "mxtrain.kvstore.letter", "mxtrain.kvstore.message", "mxtrain.kvstore.remote_updater",
    "mxtrain.update_server", "mxtrain.kvstore.mxnet_store", "mxtrain.parallel.balance", "mxtrain.parallel.cost",
    "mxtrain.parallel.chain", "mxtrain.parallel.fence", "mxtrain.parallel.grid",
    "mxtrain.parallel.lockstep", "mxtrain.parallel.norm", "mxtrain.parallel.tape",
    "mxtrain.parallel.reference", "mxtrain.parallel.stage", "mxtrain.verify",
}  # fmt: skip

MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """mxtrain.dataset.base -> dataset."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


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
            yield node.lineno, node.module
            if node.module == "mxtrain":
                yield from ((node.lineno, f"mxtrain.{alias.name}") for alias in node.names if alias.name in LAYER_OF)


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
            if LAYER_OF[part] > LAYER_OF[own] or (
                LAYER_OF[part] == LAYER_OF[own] and part not in SINGLE_FILES_MAY_SHARE
            ):
                wrong.add(f"{path.relative_to(ROOT)} imports {module}")
    assert wrong == set()


@pytest.mark.parametrize("library, allowed", [("hydra", {"build", "cli"}), ("omegaconf", {"build", "cli"})])
def test_only_build_and_the_command_line_know_hydra(library: str, allowed: set) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}" for path in MODULES for line, module in imports_of(path)
        if module.split(".")[0] == library and part_of(name_of(path)) not in allowed
    ]  # fmt: skip
    assert wrong == []


def test_only_the_backend_and_what_it_serves_name_mxnet() -> None:
    """`backend` is the only home of MXNet's names, except where a process of its own probes the installation."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}" for path in MODULES for line, module in imports_of(path)
        if module.split(".")[0] == "mxnet" and name_of(path) != "mxtrain.backend"
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
