"""Changes of one place in the program, drawn by chance: the syntax tree says where, a seed says which."""

from __future__ import annotations

import ast
import copy
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Sequence, Tuple

GROUPS: Dict[str, Dict[str, Sequence[str]]] = {
    "engine": {
        "step": ["mxtrain/training/step.py"],
        "build": ["mxtrain/training/build.py"],
        "runner": ["mxtrain/training/runner.py"],
        "evaluate": ["mxtrain/training/evaluate.py"],
        "snapshot": ["mxtrain/training/snapshot.py"],
        "loss": ["mxtrain/loss/*.py"],
        "parallel": ["mxtrain/parallel/*.py"],
        "kvstore": ["mxtrain/kvstore/*.py"],
        "task": ["mxtrain/task/*.py"],
    },
    "results": {
        "export": ["mxtrain/exporting/*.py"],
        "converters": ["mxtrain/exporting/converters/*.py"],
        "serving": ["mxtrain/serving/*.py"],
        "tuning": ["mxtrain/tuning/*.py"],
        "pruning": ["mxtrain/callback/pruning.py", "mxtrain/training/slimming.py", "mxtrain/model/graph/channels.py"],
        "folds": ["mxtrain/data/loading/folds.py", "mxtrain/cluster/launch/fold*.py"],
        "averages": ["mxtrain/checkpoint/soup.py", "mxtrain/checkpoint/average.py"],
        "trackers": [
            "mxtrain/logger/track*.py",
            "mxtrain/logger/delivery.py",
            "mxtrain/config/secret_values.py",
            "mxtrain/logger/mlflow.py",
            "mxtrain/logger/wandb.py",
        ],
    },
}
"""Group -> area -> patterns of its files."""
AREAS = {area: patterns for group in GROUPS.values() for area, patterns in group.items()}

COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
}
Change = Callable[[ast.AST], None]
"""Changes a node of a tree in place."""


@dataclass(frozen=True)
class Mutant:
    """One changed place."""

    area: str
    file: str
    lines: Tuple[int, int]
    """Returns first and last line of the statement, without its body."""
    kind: str
    before: str
    after: str
    at_import: bool
    """True if it is in no function."""
    source: str
    """The whole changed file."""


def draw(root: Path, seed: int, count: int, group: str = "engine") -> List[Mutant]:
    """Draws `count` changes, the same number in each area if it has enough; the first ones are a sample of all.

    Args:
        root: checkout.
        seed: decides which changes are drawn.
        count: number of changes.
        group: key of `GROUPS`.
    """
    chance = random.Random(seed)
    waiting = {area: list(places(root, patterns)) for area, patterns in GROUPS[group].items()}
    for found in waiting.values():
        chance.shuffle(found)
    drawn: List[Mutant] = []
    while len(drawn) < count and any(waiting.values()):
        for area, found in waiting.items():
            while found and len(drawn) < count:
                file, position, kind = found.pop()
                mutant = make(root, area, file, position, kind)
                if mutant is not None:
                    drawn.append(mutant)
                    break
    return drawn


def places(root: Path, patterns: Sequence[str]) -> Iterator[Tuple[str, int, str]]:
    """(file, number of the node, kind of change) of all that can be changed."""
    for path in sorted(path for pattern in patterns for path in root.glob(pattern)):
        tree = ast.parse(path.read_text())
        ignored = _ignored(tree)
        for position, node in enumerate(ast.walk(tree)):
            if id(node) not in ignored:
                for kind in changes(node):
                    yield str(path.relative_to(root)), position, kind


def make(root: Path, area: str, file: str, position: int, kind: str) -> Mutant:
    """The mutant of one place."""
    tree = ast.parse((root / file).read_text())
    node = list(ast.walk(tree))[position]
    statement = next(
        one for one in ast.walk(tree) if isinstance(one, ast.stmt) and any(child is node for child in _own_nodes(one))
    )
    functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)]
    at_import = not any(node is child for one in functions for body in one.body for child in ast.walk(body))
    before = _head(statement)
    last = statement.body[0].lineno - 1 if getattr(statement, "body", None) else statement.end_lineno
    lines = (statement.lineno, max(statement.lineno, last))
    changes(node)[kind](node)
    return Mutant(area, file, lines, kind, before, _head(statement), at_import, ast.unparse(tree) + "\n")


def changes(node: ast.AST) -> Dict[str, Change]:
    """Returns possible changes of a node, by name."""
    found: Dict[str, Change] = {}
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        found["comparison"] = lambda n: n.ops.__setitem__(0, COMPARISONS[type(n.ops[0])]())
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in ARITHMETIC and not _is_text(node):
        found["arithmetic"] = lambda n: setattr(n, "op", ARITHMETIC[type(n.op)]())
    elif isinstance(node, ast.BoolOp):
        found["boolean"] = lambda n: setattr(n, "op", ast.Or() if isinstance(n.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        found["sign"] = lambda n: setattr(n, "op", ast.UAdd()) if isinstance(n.op, ast.USub) else _negate(n)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        found["constant"] = lambda n: setattr(n, "value", not n.value if isinstance(n.value, bool) else n.value + 1)
    elif isinstance(node, (ast.If, ast.IfExp, ast.While)):
        found["condition"] = lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        found["return"] = lambda n: setattr(n, "value", ast.Constant(None))
    if isinstance(node, ast.Call) and len(node.args) >= 2 and not any(isinstance(a, ast.Starred) for a in node.args):
        found["arguments"] = lambda n: n.args.__setitem__(slice(0, 2), n.args[1::-1])
    if (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)) or isinstance(node, ast.AugAssign):
        found["dropped"] = _drop
    if isinstance(node, ast.Assign) and all(isinstance(target, ast.Attribute) for target in node.targets):
        found["dropped"] = _drop
    return found


def _drop(node: ast.AST) -> None:
    """Makes a statement one that does nothing."""
    node.__class__ = ast.Expr  # in place: its parent's list holds it
    node.value = ast.Constant(None)  # type: ignore[attr-defined]


def _negate(node: ast.UnaryOp) -> None:
    node.operand = ast.UnaryOp(ast.Not(), copy.copy(node.operand))


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_text(node: ast.AST) -> bool:
    """Returns True if it joins or formats a sentence: texts for people are not tested here."""
    return any(
        isinstance(one, ast.JoinedStr) or (isinstance(one, ast.Constant) and isinstance(one.value, str))
        for one in ast.walk(node)
    )


def _ignored(tree: ast.AST) -> set:
    """Annotations, types, texts, `raise`, `assert`, and what only people read: a change there says nothing."""
    found = set()
    for node in ast.walk(tree):
        skipped: List[ast.AST] = []
        if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr)):
            skipped.append(node)
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            skipped.append(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _name(node.value) in LOOKS:
            skipped.append(node)
        elif isinstance(node, ast.FunctionDef) and node.name in ("__repr__", "unsupported_reason"):
            skipped.append(node)
        for name in ("annotation", "returns"):
            if getattr(node, name, None) is not None:
                skipped.append(getattr(node, name))
        for one in skipped:
            found.update(id(child) for child in ast.walk(one))
    return found


LOOKS = ("log.info", "log.warning", "self._say", "super.__init__")
"""Calls whose only effect is a sentence."""


def _name(call: ast.Call) -> str:
    return ast.unparse(call.func).replace("super().__init__", "super.__init__")


def _own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """A statement and its expressions, without the statements in it."""
    waiting: List[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]


def _head(statement: ast.stmt) -> str:
    """A statement in one line, without its body."""
    lines: Sequence[str] = ast.unparse(ast.fix_missing_locations(statement)).splitlines()
    while len(lines) > 1 and lines[0].startswith("@"):
        lines = lines[1:]
    return lines[0].strip()
