"""Builds validated `Spec` objects from plain nested dicts. Errors name the field, the value and the remedy.

A node is a dict with a `_target_`: the import path of a `Spec`, or of a user's own class or function, which the group's
base `Spec` wraps. This module depends on neither Hydra nor MXNet.

Reasons: docs/decisions/0005-specs-without-mxnet.md.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import math
import pkgutil
import re
import sys
import textwrap
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
    Union,
)

import pydantic

from mxtrain.config.class_faults import class_fault
from mxtrain.config.moved import current_path
from mxtrain.config.plugins import is_installed
from mxtrain.config.search_path import admit_current_folder
from mxtrain.errors import ConfigError, did_you_mean, nearest, raise_interruption
from mxtrain.types import Spec
from mxtrain.types.kinds import REPLACED, explain_replaced

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from mxtrain.types.annotations import Config

Where = Callable[[str], str]
"""Function that returns the file that sets a setting (dotted path) or group, for messages."""
S = TypeVar("S", bound=Spec)
T = TypeVar("T")
MAX_FLOAT, MIN_FLOAT = 3.4028e38, 1.1755e-38
"""Range of normal 32-bit floats. MXNet rejects larger numbers only during the run, and treats smaller ones as 0."""
MAX_NAMES = 30
"""Maximum number of names that a message lists."""
_OLD_FILES = "model=symbol model.symbol=old-symbol.json model.weights=old-0000.params"
REPLACES_METHOD = {"SymbolBlock.imports": _OLD_FILES, "Module.load": _OLD_FILES}
"""Methods of MXNet that read networks from files -> what to type in their place."""
SHOULD_BE = "Input should be "
"""Start of most messages of pydantic."""


def import_target(target: str, path: str) -> Any:
    """Imports the object at an import path.

    Args:
        target: import path, package.module.Name, of today or before a move.
        path: path of the node, for messages.

    Raises:
        ConfigError: there is no such module or attribute, or importing the module fails.
    """
    module_name, _, name = current_path(target).rpartition(".")
    if not module_name:
        raise ConfigError(f"{path}._target_={target}: write an import path, package.module.Name.")
    if not is_installed(target):
        # The current folder is searched only for classes that users name; see `mxtrain.config.search_path`.
        admit_current_folder(module_name)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # The module that is missing is not the target's own module or package, but one that these import.
        if error.name and not (module_name + ".").startswith(error.name + "."):
            raise ConfigError(f"{path}._target_={target}: importing it failed: {error}") from error
        reason = _explain_missing_module(error.name or "", module_name, name, path)
        raise ConfigError(f"{path}._target_={target}: {reason}") from None
    except pydantic.errors.PydanticUserError as error:
        raise ConfigError(f"{path}._target_={target}: {_explain_invalid_class(error, module_name)}") from error
    except (Exception, SystemExit) as error:  # SystemExit, because a module may be a script that calls sys.exit
        raise_interruption(error)
        raise ConfigError(f"{path}._target_={target}: importing it failed: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        names = [n for n in vars(module) if not n.startswith("_")]
        raise ConfigError(f"{path}._target_={target}: '{module_name}' has no '{name}'.{did_you_mean(name, names)}")
    return getattr(module, name)


def _explain_missing_module(missing_path: str, module_name: str, name: str, path: str) -> str:
    """Returns why the module of a target is missing, and what to type.

    Args:
        missing_path: import path that Python did not find: the module or one of its packages.
        module_name: import path of the module.
        name: name of the target in the module.
        path: path of the node.
    """
    package, _, missing = missing_path.rpartition(".")
    if inspect.isclass(getattr(sys.modules.get(package), missing, None)):
        return _instead_of_method(f"{missing}.{name}", path)
    if package:
        known = [module.name for module in pkgutil.iter_modules(getattr(sys.modules.get(package), "__path__", []))]
        return f"there is no module '{missing}' in '{package}'.{did_you_mean(missing, known)}"
    return (
        f"there is no module '{missing_path}', neither in the current folder nor on Python's path. Type "
        f"PYTHONPATH=FOLDER before the command, with the folder that holds {module_name.partition('.')[0]}, or install "
        "it."
    )


def _explain_invalid_class(error: pydantic.errors.PydanticUserError, module_name: str) -> str:
    """Returns why pydantic rejects a class of a module, and what to write."""
    unannotated = re.search(r"attribute was detected: `(\w+) = (.*?)`", error.message)
    if error.code != "model-field-missing-annotation" or unannotated is None:
        return f"importing it failed: {error.message}"
    field, value = unannotated.groups()
    if field in REPLACED:
        # Such a class could be imported while the base class still had the attribute.
        return explain_replaced(module_name, field)
    return (
        f"'{field} = {value}' in module {module_name} has no type. Write `{field}: TYPE = {value}` for a setting, or "
        f"`{field}: ClassVar[TYPE] = {value}` for a constant."
    )


def _instead_of_method(method: str, path: str) -> str:
    """Returns what to type in place of a method of a class, CLASS.METHOD."""
    instead = REPLACES_METHOD.get(method) if path == "model" else None
    if instead is not None:
        return f"a graph in a file is a model of its own. Type {instead} in its place."
    holder, _, name = method.partition(".")
    return (
        f"'{holder}' is a class, and a _target_ names a class or a function of a module, not the method '{name}'. "
        f"Write a function that calls it, e.g. in own.py, and type {path}._target_=own.FUNCTION."
    )


def build_spec(node: object, path: str, base: Type[Spec], where: Where, wrapper: Optional[Type[Spec]] = None) -> Spec:
    """Builds the validated `Spec` of a node.

    Args:
        node: dict with `_target_` and the fields.
        path: path of the node in the configuration, e.g. "optimizer" or "logger.console".
        base: base class of the group.
        where: returns the file that sets a setting, for messages.
        wrapper: class whose `of_target` wraps a user's own class or function; by default `base`.

    Raises:
        ConfigError: the node is invalid; the message has one line for each error.
    """
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise ConfigError(f"{path}={shown(node)}: expected settings with a _target_ ({where(path)}).")
    unnamed = [name for name in node if not isinstance(name, str)]
    if unnamed:
        raise ConfigError(f"{path}.{unnamed[0]}: a setting's name is a word ({where(path)}).")
    fields = {name: value for name, value in node.items() if name != "_target_"}
    missing = [name for name, value in fields.items() if value == "???"]  # OmegaConf's mark of a required value
    if missing:
        raise ConfigError(
            "\n".join(f"{path}.{n} must be given: type {path}.{n}=... ({where(f'{path}.{n}')})" for n in missing)
        )
    target = import_target(str(node["_target_"]), path)
    if inspect.isclass(target) and issubclass(target, Spec):
        if not issubclass(target, base):
            raise ConfigError(f"{path}._target_={node['_target_']}: is no {base.__name__}.")
        fault = class_fault(target, base)
        if fault:
            raise ConfigError(f"{path}._target_={node['_target_']}: {fault}")
        return validate(target, _over_nested_defaults(target, fields), path, where)
    if not callable(target):
        raise ConfigError(f"{path}._target_={node['_target_']}: is no class or function, but {target!r:.100}.")
    # A user's own class or function: the group's common settings go to the wrapper, all others to the class.
    wrapper = wrapper or base
    common = wrapper.with_target()
    wrapper_fields = {name: fields.pop(name) for name in common.model_fields if name in fields}
    check_arguments(target, fields, path, wrapper.filled)
    return wrapper.of_target(target, fields, validate(common, wrapper_fields, path, where), path)


def validate(spec: Type[S], fields: Mapping[str, object], path: str, where: Where) -> S:
    """Builds `spec` from its fields.

    Raises:
        ConfigError: a field is invalid; the message has one line for each error.
    """
    # pydantic does not check the range of 32-bit floats, because Python's floats have 64 bits.
    lines = [f"{name}={shown(value)}: {reason}. ({where(name)})" for name, value, reason in _out_of_range(fields, path)]
    try:
        instance = spec.model_validate(dict(fields))
    except pydantic.ValidationError as error:
        # All errors of a node at once, so that a user corrects them in one go.
        lines += [_error_message(spec, item, path, where) for item in _merge_errors(error.errors())]
    if lines:
        raise ConfigError("\n".join(dict.fromkeys(lines)))
    return instance


def validate_arguments(spec: Type[S], values: Mapping[str, object], function: str) -> S:
    """Builds `spec` from the arguments of a function of the Python API.

    Raises:
        ConfigError: an argument is invalid; the message has one line for each error.
    """
    return validate(spec, values, function, lambda _: "an argument")


def _out_of_range(value: object, path: str) -> Iterator[Tuple[str, object, str]]:
    """Yields (setting, value, reason) for each number that float32, in which MXNet computes, cannot represent."""
    if isinstance(value, (Mapping, list, tuple)):
        for name, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _out_of_range(item, f"{path}.{name}")
    elif isinstance(value, (int, float)) and value and not isinstance(value, bool):
        if isinstance(value, float) and not math.isfinite(value):
            yield path, value, "should be a finite number"
        elif abs(value) > MAX_FLOAT:
            yield path, value, f"should be at most {MAX_FLOAT:.4g} in size: a 32-bit float holds no more"
        elif abs(value) < MIN_FLOAT:
            yield path, value, f"should be 0 or at least {MIN_FLOAT:.4g} in size: a 32-bit float holds no less"


def _merge_errors(items: Sequence[ErrorDetails]) -> List[Dict[str, Any]]:
    """Merges the errors of pydantic, which reports one for each branch of a union, into one for each field.

    For example, the errors of `Union[Auto, Positive]` become "should be 'auto' or greater than 0".

    If a branch accepts the outer value and fails at a part of it, only the error of that part is kept: for [0, 3] the
    error of the 0.
    """
    merged: List[Dict[str, Any]] = []
    first_of: Dict[Tuple[str, ...], Dict[str, Any]] = {}
    locations = [_field_path(item["loc"]) for item in items]
    inner = {location[:depth] for location in locations for depth in range(1, len(location))}
    for item in [item for item, location in zip(items, locations) if location not in inner] or items:
        first = first_of.get(_field_path(item["loc"]))
        if first is None or not (first["msg"].startswith(SHOULD_BE) and item["msg"].startswith(SHOULD_BE)):
            merged.append(dict(item))
            first_of.setdefault(_field_path(item["loc"]), merged[-1])
        elif item["msg"] not in first["msg"]:
            first["msg"] += f" or {item['msg'][len(SHOULD_BE) :]}"
    return merged


def _field_path(location: Sequence[Union[int, str]]) -> Tuple[str, ...]:
    """Removes the names of union branches from a location of pydantic, which leaves the names of fields."""
    return tuple(str(part) for part in location if not _is_branch(str(part)))


def check_arguments(
    target: Callable[..., object], arguments: Mapping[str, object], path: str, filled: Optional[Sequence[str]]
) -> None:
    """Checks that a user's class or function accepts these keyword arguments and requires no others.

    Args:
        target: the class or function.
        arguments: the keyword arguments of the configuration.
        path: path of the node, for messages.
        filled: names of arguments that the group passes in addition; None: unknown, so missing ones are not checked.

    Raises:
        ConfigError: an argument is unknown or missing.
    """
    parameters = parameters_of(target)
    if parameters is None:
        return
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {name: p for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes = f"{name_of(target)} takes: {', '.join(named) or 'no arguments'}."
    if not named and inspect.isclass(target):
        takes += f" Declare one in its __init__, e.g. def __init__(self, {next(iter(arguments), 'limit')})."
    errors = [
        f"there is no '{path}.{name}'.{did_you_mean(name, named)} {takes}"
        for name in arguments
        if name not in named and not takes_any
    ]
    errors += [
        f"{path}.{name} must be given: type ++{path}.{name}=... {takes}"
        for name, p in named.items()
        if filled is not None and p.default is p.empty and name not in (*arguments, *filled)
    ]
    if errors:
        raise ConfigError("\n".join(errors))


def name_of(target: object) -> str:
    """Returns the import path of a class or function, with "?" for an unknown module."""
    return f"{getattr(target, '__module__', '?')}.{getattr(target, '__qualname__', type(target).__name__)}"


def call_target(target: Callable[..., Any], arguments: Mapping[str, Any], path: str) -> Any:
    """Calls a user's class or function with its arguments.

    Raises:
        ConfigError: it raised an exception; the message gives file and line.
    """
    try:
        return target(**arguments)
    except Exception as error:  # whatever the user's code raises
        # The innermost frame: users look for the line of their own code that failed.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        cause = f"{type(error).__name__}: {error}".rstrip(".: ")
        raise ConfigError(
            f"{path}._target_={name_of(target)} failed: {cause} ({frame.filename}:{frame.lineno})."
        ) from error


def parameters_of(target: Callable[..., object]) -> Optional[Mapping[str, inspect.Parameter]]:
    """Returns the parameters of a class or function; None if it has no signature, as some types written in C."""
    try:
        return inspect.signature(target).parameters
    except (TypeError, ValueError):
        return None


def accepted_names(target: Any, wrapper: Type[Spec], nested: Sequence[str] = ()) -> List[str]:
    """Returns the settings that a `_target_` accepts, whether or not its YAML file lists them.

    Args:
        target: the class or function.
        wrapper: class that wraps a target that is no `Spec`; see `build_spec`.
        nested: field names that lead to a nested spec; if given, the settings of that spec are returned.
    """
    if inspect.isclass(target) and issubclass(target, Spec):
        return allowed_fields(target, nested)
    return [] if nested else [*wrapper.with_target().model_fields, *(parameters_of(target) or ())]


def _error_message(spec: Type[Spec], item: Mapping[str, Any], path: str, where: Where) -> str:
    names = list(_field_path(item["loc"]))
    field = ".".join([path, *names])
    source = where(field)
    kind, value, context = item["type"], item["input"], item.get("ctx", {})
    if kind == "extra_forbidden":
        allowed = allowed_fields(spec, item["loc"][:-1])
        parent = ".".join([path, *names[:-1]])
        near = nearest(names[-1], allowed)
        hint = f" Did you mean '{parent}.{near[0]}'?" if near else ""
        return f"there is no '{field}'.{hint} {parent} takes {', '.join(allowed) or 'no settings'} ({source})."
    if kind == "missing":
        return f"{field} must be given: type {field}=... ({source})."
    if kind == "value_error":
        reason = str(context.get("error", item["msg"])).rstrip(".")
        return f"{field}={shown(value)}: {reason}. ({source})" if names else f"{path}: {reason} ({source})."
    hint = ""
    if kind == "literal_error":
        allowed = context["expected"].replace(" or ", ",").split(",")
        hint = did_you_mean(str(value), [word.strip(" '") for word in allowed])
    if kind == "string_pattern_mismatch" and spec_help(spec, names):
        return f"{field}={shown(value)}: this is not understood. Allowed: {spec_help(spec, names)} ({source})"
    if kind == "list_type" and isinstance(value, (str, int, float)):
        hint = f" Type {field}=[{shown(value)}]."
    message = item["msg"][0].lower() + item["msg"][1:]
    return f"{field}={shown(value)}: {message.replace('input should', 'should')}.{hint} ({source})"


def _is_branch(part: str) -> bool:
    # pydantic puts the type of a union's branch into the location, e.g. int, constrained-float or list[str]. Users do
    # not know these names, so messages omit them.
    return any(sign in part for sign in "[]'") or part in (
        "int",
        "float",
        "str",
        "bool",
        "none",
        "constrained-int",
        "constrained-float",
        "constrained-str",
    )


def shown(value: object) -> str:
    """Formats a value as in an override, e.g. null, true, [1, 2]."""
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {shown(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(shown, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def allowed_fields(spec: Type[Spec], location: Sequence[Union[int, str]]) -> List[str]:
    """Returns the field names of `spec`, or of the nested spec at `location`."""
    current: Optional[Type[Spec]] = spec
    for part in location:
        if isinstance(part, str) and current is not None and part in current.model_fields:
            current = nested_spec(current, part)
    return list(current.model_fields) if current is not None else []


def nested_spec(spec: Type[Spec], field: str) -> Optional[Type[Spec]]:
    """Returns the spec class of a field's annotation, also inside of a union or list; None if there is none."""
    annotation = spec.model_fields[field].annotation
    kinds = [kind for kind in (annotation, *getattr(annotation, "__args__", ())) if inspect.isclass(kind)]
    return next((kind for kind in kinds if issubclass(kind, Spec)), None)


def own_spec(target: object) -> Optional[Type[Spec]]:
    """Returns the spec class of mxtrain or of a plug-in that a `_target_` names, else None. Imports no other module."""
    if not isinstance(target, str) or not is_installed(target):
        return None
    try:
        resolved = import_target(target, "")
    except ConfigError:
        return None  # validating the description reports it
    return resolved if inspect.isclass(resolved) and issubclass(resolved, Spec) else None


def default_settings(spec: Type[Spec]) -> Dict[str, Any]:
    """Returns all settings of a spec with their defaults, as plain nested values; `???` for required settings."""
    return {
        name: "???" if field.is_required() else _as_plain(field.get_default(call_default_factory=True))
        for name, field in spec.model_fields.items()
    }


def _as_plain(value: object) -> Any:
    if isinstance(value, Spec):
        return {name: _as_plain(item) for name, item in value}
    if isinstance(value, Mapping):
        return {name: _as_plain(item) for name, item in value.items()}
    return [_as_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def complete_settings(node: Mapping[str, Any], path: str) -> Dict[str, Any]:
    """Adds the defaults of missing settings to a valid node. A node whose `_target_` is no `Spec` is unchanged."""
    target = import_target(str(node["_target_"]), path)
    if not (inspect.isclass(target) and issubclass(target, Spec)):
        return dict(node)
    settings = {name: value for name, value in node.items() if name != "_target_"}
    # A user's own spec may have any object as a default, which state.json of a checkpoint cannot represent.
    defaults = {name: value for name, value in default_settings(target).items() if _is_plain(value)}
    return {"_target_": node["_target_"], **defaults, **_over_nested_defaults(target, settings)}


def _is_plain(value: object) -> bool:
    if isinstance(value, (dict, list)):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, (bool, int, float, str))


def _over_nested_defaults(spec: Type[Spec], fields: Mapping[str, Any]) -> Dict[str, Any]:
    """Merges mappings for nested specs into the defaults of their fields.

    Without this pydantic would complete them from the defaults of the nested class, while composing YAML files merges
    them into the default of the field.
    """
    completed = dict(fields)
    for name, value in fields.items():
        field = spec.model_fields.get(name)
        default = field.get_default(call_default_factory=True) if field is not None else None
        if isinstance(default, Spec) and isinstance(value, Mapping):
            completed[name] = {**_as_plain(default), **_over_nested_defaults(type(default), value)}
    return completed


@dataclass(frozen=True)
class Declaration:
    """Source location of a field: its class, file and line, and the docstring under it as one line."""

    owner: Type[Spec]
    file: Path
    line: int
    help: str


def find_declaration(spec: Type[Spec], names: Sequence[str]) -> Optional[Declaration]:
    """Finds the declaration of a field or, with several names, of a field of nested specs; None if there is none.

    If the most derived class that declares the field has no docstring under it, that of a base class is used.
    """
    name, *inner = names
    if name not in spec.model_fields:
        return None
    nested = nested_spec(spec, name) if inner else None
    declaration = find_declaration(nested, inner) if nested is not None else None
    if declaration is not None:
        return declaration
    owners = [owner for owner in spec.__mro__ if name in _fields_in_source(owner)]
    helps = (_fields_in_source(owner)[name][1] for owner in owners)
    for owner in owners[:1]:
        line = _fields_in_source(owner)[name][0]
        return Declaration(owner, Path(inspect.getfile(owner)), line, next(filter(None, helps), ""))
    return None


@functools.cache
def _fields_in_source(owner: type) -> Mapping[str, Tuple[int, str]]:
    """Returns line and docstring of each field that a class itself declares, read from its source."""
    if not issubclass(owner, Spec) or owner is Spec:
        return {}
    try:
        lines, first = inspect.getsourcelines(owner)
    except OSError:  # the source is not available, e.g. of a class that a function or a notebook defines
        return {}
    (declared,) = ast.parse(textwrap.dedent("".join(lines))).body
    fields: Dict[str, Tuple[int, str]] = {}
    body = declared.body if isinstance(declared, ast.ClassDef) else []
    for statement, following in zip(body, [*body[1:], None]):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = following.value if isinstance(following, ast.Expr) else None
            docstring = text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
            fields[statement.target.id] = (first + statement.lineno - 1, " ".join(docstring.split()))
    return fields


def spec_help(spec: Type[Spec], names: Sequence[str]) -> str:
    """Returns the docstring under a field, e.g. of `Parallel.devices`, as one line of help; empty if it has none."""
    declaration = find_declaration(spec, names)
    return declaration.help if declaration is not None else ""


def refuse_unknown_names(path: str, kind: str, names: Iterable[str], known: Sequence[str]) -> None:
    """Checks that only known names are given.

    Args:
        path: path of the setting, for messages.
        kind: kind of the names, such as "class".
        names: names to check.
        known: allowed names.

    Raises:
        ConfigError: a name is unknown; the message lists the known ones.
    """
    for name in names:
        if name not in known:
            raise ConfigError(
                f"{path}: there is no {kind} '{name}'.{did_you_mean(name, known)} They are: "
                f"{', '.join(list(known)[:MAX_NAMES])}."
            )


def collect(builders: Sequence[Callable[[], T]]) -> List[T]:
    """Calls all functions and returns their results.

    All are called even if one fails, so that users see the errors of all groups at once.

    Raises:
        ConfigError: at least one raised it; the message joins the messages of all.
    """
    results, errors = [], []
    for build in builders:
        try:
            results.append(build())
        except ConfigError as error:
            errors.append(str(error))
    if errors:
        raise ConfigError("\n".join(errors))
    return results


def with_text_keys(node: object) -> Any:
    """Converts the keys of nested mappings to strings, as in JSON: {3: 2.0} becomes {"3": 2.0}."""
    if isinstance(node, Mapping):
        return {str(name): with_text_keys(value) for name, value in node.items()}
    return [with_text_keys(value) for value in node] if isinstance(node, list) else node


def flatten(config: Config, prefix: str = "") -> Dict[str, Any]:
    """Returns dotted path -> value for all leaves. An empty mapping is a leaf."""
    leaves: Dict[str, Any] = {}
    for name, value in config.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            leaves.update(flatten(value, path + "."))
        else:
            leaves[path] = value
    return leaves
