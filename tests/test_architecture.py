"""The import direction of the packages, and where MXNet and Hydra may be known."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Set, Tuple

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

MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(module: str) -> str:
    """mxtrain.data.spec -> data; of mxtrain itself, and of other libraries, nothing."""
    return module.split(".")[1] if module.startswith("mxtrain.") else ""


def imports_of(path: Path, for_types: bool = False) -> List[Tuple[int, str]]:
    """(line, module) of every import outside of `if TYPE_CHECKING`; with `for_types` of those inside, too."""
    return [(line, module) for line, module, is_for_types in _all_imports(path) if for_types or not is_for_types]


@functools.cache
def _all_imports(path: Path) -> List[Tuple[int, str, bool]]:
    nodes: List[Tuple[ast.AST, bool]] = [(ast.parse(path.read_text(encoding="utf-8")), False)]
    found: List[Tuple[int, str, bool]] = []
    for node, for_types in nodes:  # grows
        for_types |= isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not isinstance(node, ast.expr):
            nodes += [(child, for_types) for child in ast.iter_child_nodes(node)]
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, for_types) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            # A module may be imported from its package.
            found += [(node.lineno, name if name in NAMES else str(node.module), for_types) for name in names]
    return sorted(found)


NAMES = {name_of(path) for path in MODULES}


def test_integers_with_names_are_numbers_as_texts() -> None:
    """MXNet's operators take parameters as texts; see `NamedInt`."""
    users = [path.name for path in MODULES if re.search(r"enum\.Int(Enum|Flag)\b", path.read_text(encoding="utf-8"))]
    assert users == ["named_int.py"]
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


def test_circles_of_imports_are_found(tmp_path: Path) -> None:
    """Otherwise the next test would pass for any imports."""
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


def test_no_module_imports_itself_in_a_circle() -> None:
    """Imports within functions count: they only hide a circle. What is imported for annotations alone
    (`if TYPE_CHECKING`) does not: nothing needs it to run."""
    imports = {name_of(path): {module for _, module in imports_of(path) if module in NAMES} for path in MODULES}
    assert circles_of(imports) == []


def test_circles_of_annotations_are_small_and_within_a_package() -> None:
    """With imports for annotations, a circle has at most three modules, which are read together."""
    imports = {
        name_of(path): {module for _, module in imports_of(path, for_types=True) if module in NAMES} for path in MODULES
    }
    large = [
        circle for circle in circles_of(imports) if len(circle) > 3 or len({package_of(name) for name in circle}) > 1
    ]
    assert large == []


def test_shared_packages_import_no_field_and_no_field_imports_another() -> None:
    """Annotations, strings and docstrings do not name them, either."""
    assert FIELDS == ("forecasting", "recommendation", "reinforcement", "speech", "tables", "text", "vision")
    found = {
        (name_of(path), field)
        for path in MODULES
        for field in FIELD_NAMED.findall(path.read_text(encoding="utf-8"))
        if field != package_of(name_of(path)) and name_of(path) != "mxtrain.config.moved"
    }
    found |= {
        (name_of(path), module)
        for path in MODULES
        for _, module in imports_of(path)
        if package_of(module) in FIELDS and package_of(name_of(path)) != package_of(module)
    }
    assert found == set()


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


def test_only_the_command_line_imports_the_command_line() -> None:
    found = {
        name_of(path)
        for path in MODULES
        for _, module in imports_of(path, for_types=True)
        if package_of(module) == "cli" and package_of(name_of(path)) != "cli"
    }
    assert found == {"mxtrain.__main__"}


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


def test_only_the_backend_names_mxnet() -> None:
    """`backend` is the only home of MXNet's names, except where a process of its own probes the installation."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in MODULES
        for line, module in imports_of(path)
        if module.split(".")[0] == "mxnet" and name_of(path) != "mxtrain.engine.backend"
    ]
    assert wrong == []


@pytest.mark.slow
def test_composing_does_not_import_mxnet() -> None:
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


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "code, packages",
    [
        ("import mxtrain; print(mxtrain.__version__)", "mxnet hydra pydantic"),
        ("import mxtrain.cli.dispatch", "mxnet hydra pydantic yaml rich pathlib"),
        ("import mxtrain.checkpoint, mxtrain.config.cadence", "mxnet numpy sklearn gluoncv matplotlib tensorboardX"),
        ("import mxtrain.parallel.planner", "mxnet"),
        ("import mxtrain.runtime", "mxnet numpy"),
        ("import mxtrain.model.weights", "mxnet numpy onnx safetensors requests torch"),
        (
            "from mxtrain.logger import console, csv, jsonl, tensorboard, mlflow, wandb",
            "mxnet tensorboardX PIL rich numpy mlflow wandb",
        ),
        pytest.param("import mxtrain.training.build", "tokenizers pydoc_data.topics", marks=SLOW),
        pytest.param(
            "from mxtrain.model import mlp, prepare, spec, weights; from mxtrain.model.graph import summary\n"
            "from mxtrain.text import bert; from mxtrain.vision.pose import pose_fpn, simple_pose\n"
            "from mxtrain.vision.classification import gluoncv, lenet, resnet\n"
            "gluoncv.GluonCV(name='densenet121').input_shape((1, 8, 8))",
            "mxnet gluoncv matplotlib sklearn rich tensorboardX",
            marks=SLOW,
        ),
        pytest.param(
            "from mxtrain.vision.detection import faster_rcnn, gluoncv_centernet, ssd, yolo3\n"
            "from mxtrain.vision.segmentation.gluoncv_segmentation import GluonCVSegmentation\n"
            "faster_rcnn.FasterRCNN(name='faster_rcnn_resnet50_v1b_voc'), gluoncv_centernet.GluonCVCenterNet()\n"
            "ssd.SSD(name='ssd_512_mobilenet1.0_voc'), yolo3.YOLO3().box_coding(3, (3, 64, 64))\n"
            "names = 'faster_rcnn_x', 'ssd_512_mobilnet', 'yolov3', 'center_net_x', 'resnet18_v1'\n"
            "found = [GluonCVSegmentation.option_of(name, '') for name in names]\n"
            "assert found == ['faster_rcnn', 'ssd', 'yolo3', 'gluoncv_centernet', 'gluoncv'], found",
            "mxnet gluoncv",
            marks=SLOW,
        ),
    ],
    ids=[
        "api",
        "commands",
        "checkpoint",
        "planner",
        "runtime",
        "weights",
        "loggers",
        "training",
        "networks",
        "detectors",
    ],
)
def test_import_loads_no_heavy_packages(code: str, packages: str) -> None:
    code = f"import sys\n{code}\nsys.exit(', '.join({set(packages.split())} & set(sys.modules)) or 0)"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
