"""Validates plain nested dicts into descriptions, with errors that name the field, the value and the remedy.

Nothing here knows Hydra or MXNet. A node is a dict with a `_target_`: the import path of a `Spec`, or of a user's own
class, which the group's base `Spec` wraps.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import math
import re
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

from mxtrain.errors import ConfigError, did_you_mean, nearest
from mxtrain.search_path import admit_current_folder
from mxtrain.types import Spec

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from mxtrain.annotations import Config

Where = Callable[[str], str]
"""Dotted path of a setting, or a group -> the file that gives it, for messages."""
S = TypeVar("S", bound=Spec)
T = TypeVar("T")
LARGEST_FLOAT, SMALLEST_FLOAT = 3.4028e38, 1.1755e-38
"""Limits of 32-bit floats with all digits. MXNet refuses others when a run has begun, or takes them for 0."""
MOST_NAMES = 30
"""Names that a message lists at most."""
SHOULD_BE = "Input should be "
"""Start of most messages of pydantic."""


def import_target(target: str, path: str) -> Any:
    """The object at an import path.

    Raises:
        ConfigError: there is no such module or attribute.
    """
    module_name, _, name = target.rpartition(".")
    if not module_name:
        raise ConfigError(f"{path}._target_={target}: write an import path, package.module.Name.")
    if module_name.partition(".")[0] != __package__.partition(".")[0]:
        admit_current_folder(module_name)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not (module_name + ".").startswith(error.name + "."):
            raise ConfigError(f"{path}._target_={target}: importing it failed: {error}") from error
        raise ConfigError(
            f"{path}._target_={target}: there is no module '{error.name}', neither in the current folder nor on "
            f"Python's path. Type PYTHONPATH=FOLDER before the command, with the folder that holds "
            f"{module_name.partition('.')[0]}, or install it."
        ) from None
    except pydantic.errors.PydanticUserError as error:
        unannotated = re.search(r"attribute was detected: `(\w+) = (.*?)`", error.message)
        if error.code != "model-field-missing-annotation" or unannotated is None:
            raise ConfigError(f"{path}._target_={target}: importing it failed: {error.message}") from error
        field, value = unannotated.groups()
        raise ConfigError(
            f"{path}._target_={target}: '{field} = {value}' in module {module_name} has no type. Write "
            f"`{field}: TYPE = {value}` for a setting, or `{field}: ClassVar[TYPE] = {value}` for a constant."
        ) from error
    except Exception as error:
        raise ConfigError(f"{path}._target_={target}: importing it failed: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        names = [n for n in vars(module) if not n.startswith("_")]
        raise ConfigError(f"{path}._target_={target}: '{module_name}' has no '{name}'.{did_you_mean(name, names)}")
    return getattr(module, name)


def build_spec(
    node: object, path: str, base: Type[Spec], where: Where, wrapper: Optional[Type[Spec]] = None
) -> Spec:  # fmt: skip
    """One validated description from its node.

    Args:
        node: dict with `_target_` and the fields.
        path: path in the configuration, e.g. "optimizer" or "logger.console".
        base: the group's base class.
        where: names the file that gives a setting.
        wrapper: what a user's own class or function is wrapped in, by its `of_target`; by default the base decides.

    Raises:
        ConfigError: all that is wrong with this node, one line each.
    """
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise ConfigError(f"{path}={shown(node)}: expected settings with a _target_ ({where(path)}).")
    unnamed = [name for name in node if not isinstance(name, str)]
    if unnamed:
        raise ConfigError(f"{path}.{unnamed[0]}: a setting's name is a word ({where(path)}).")
    fields = {name: value for name, value in node.items() if name != "_target_"}
    missing = [name for name, value in fields.items() if value == "???"]
    if missing:
        raise ConfigError(
            "\n".join(f"{path}.{n} must be given: type {path}.{n}=... ({where(f'{path}.{n}')})" for n in missing)
        )
    target = import_target(str(node["_target_"]), path)
    if inspect.isclass(target) and issubclass(target, Spec):
        if not issubclass(target, base):
            raise ConfigError(f"{path}._target_={node['_target_']}: is no {base.__name__}.")
        return validate(target, _over_nested_defaults(target, fields), path, where)
    if not callable(target):
        raise ConfigError(f"{path}._target_={node['_target_']}: is no class or function, but {target!r:.100}.")
    wrapper = wrapper or base
    common = wrapper.with_target()
    own = {name: fields.pop(name) for name in common.model_fields if name in fields}
    check_arguments(target, fields, path, wrapper.filled)
    return wrapper.of_target(target, fields, validate(common, own, path, where), path)


def validate(spec: Type[S], fields: Mapping[str, object], path: str, where: Where) -> S:
    """`spec` with these fields, or a ConfigError with a line for each error."""
    lines = [f"{name}={shown(value)}: {reason}. ({where(name)})" for name, value, reason in _out_of_range(fields, path)]
    try:
        described = spec.model_validate(dict(fields))
    except pydantic.ValidationError as error:
        lines += [_describe(spec, item, path, where) for item in _one_each(error.errors())]
    if lines:
        raise ConfigError("\n".join(dict.fromkeys(lines)))
    return described


def _out_of_range(value: object, path: str) -> Iterator[Tuple[str, object, str]]:
    """(setting, value, reason) of every number that a 32-bit float, in which MXNet computes, does not hold."""
    if isinstance(value, (Mapping, list, tuple)):
        for name, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _out_of_range(item, f"{path}.{name}")
    elif isinstance(value, (int, float)) and value and not isinstance(value, bool):
        if isinstance(value, float) and not math.isfinite(value):
            yield path, value, "should be a finite number"
        elif abs(value) > LARGEST_FLOAT:
            yield path, value, f"should be at most {LARGEST_FLOAT:.4g} in size: a 32-bit float holds no more"
        elif abs(value) < SMALLEST_FLOAT:
            yield path, value, f"should be 0 or at least {SMALLEST_FLOAT:.4g} in size: a 32-bit float holds no less"


def _one_each(items: Sequence[ErrorDetails]) -> List[Dict[str, Any]]:
    """Returns the errors. Errors of the alternatives of a union are merged: "should be 'auto' or greater than 0".

    Where one branch got as far as a part of the value, that part alone is at fault: the 0 of [0, 3].
    """
    merged: List[Dict[str, Any]] = []
    first_of: Dict[Tuple[str, ...], Dict[str, Any]] = {}
    places = [_named(item["loc"]) for item in items]
    inner = {place[:depth] for place in places for depth in range(1, len(place))}
    for item in [item for item, place in zip(items, places) if place not in inner] or items:
        first = first_of.get(_named(item["loc"]))
        if first is None or not (first["msg"].startswith(SHOULD_BE) and item["msg"].startswith(SHOULD_BE)):
            merged.append(dict(item))
            first_of.setdefault(_named(item["loc"]), merged[-1])
        elif item["msg"] not in first["msg"]:
            first["msg"] += f" or {item['msg'][len(SHOULD_BE) :]}"
    return merged


def _named(location: Sequence[Union[int, str]]) -> Tuple[str, ...]:
    """Locations of unions carry the name of the branch that was tried: only real field names are the user's."""
    return tuple(str(part) for part in location if not _is_branch(str(part)))


def check_arguments(
    target: Callable[..., object], arguments: Mapping[str, object], path: str, filled: Optional[Sequence[str]]
) -> None:
    """Checks that a user's class or function accepts these keyword arguments and requires no others.

    Args:
        filled: names that the group itself gives it; None: they are not known yet.

    Raises:
        ConfigError: it does not.
    """
    parameters = parameters_of(target)
    if parameters is None:
        return
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {name: p for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes = f"{name_of(target)} takes: {', '.join(named) or 'no arguments'}."
    if not named and inspect.isclass(target):
        takes += f" Declare one in its __init__, e.g. def __init__(self, {next(iter(arguments), 'limit')})."
    wrong = [
        f"there is no '{path}.{name}'.{did_you_mean(name, named)} {takes}"
        for name in arguments
        if name not in named and not takes_any
    ]
    wrong += [
        f"{path}.{name} must be given: type ++{path}.{name}=... {takes}"
        for name, p in named.items()
        if filled is not None and p.default is p.empty and name not in (*arguments, *filled)
    ]
    if wrong:
        raise ConfigError("\n".join(wrong))


def name_of(target: object) -> str:
    """The import path of a class or function, as far as it says one."""
    return f"{getattr(target, '__module__', '?')}.{getattr(target, '__qualname__', type(target).__name__)}"


def call_target(target: Callable[..., Any], arguments: Mapping[str, Any], path: str) -> Any:
    """Calls a user's class or function with its arguments.

    Raises:
        ConfigError: it raised something, which is named with the line that did.
    """
    try:
        return target(**arguments)
    except Exception as error:  # whatever the user's code raises
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error}".rstrip(".: ")
        raise ConfigError(
            f"{path}._target_={name_of(target)} failed: {said} ({place.filename}:{place.lineno})."
        ) from error


def parameters_of(target: Callable[..., object]) -> Optional[Mapping[str, inspect.Parameter]]:
    """The parameters of a class or function, None where Python cannot tell."""
    try:
        return inspect.signature(target).parameters
    except (TypeError, ValueError):
        return None


def accepted_names(target: Any, wrapper: Type[Spec], nested: Sequence[str] = ()) -> List[str]:
    """The settings that a `_target_` takes, whether or not its YAML lists them.

    Args:
        target: the class or function that it names.
        wrapper: class that wraps an object that is no `Spec`; see `build_spec`.
        nested: the names that lead to a nested spec, whose settings are then meant.
    """
    if inspect.isclass(target) and issubclass(target, Spec):
        return allowed_fields(target, nested)
    return [] if nested else [*wrapper.with_target().model_fields, *(parameters_of(target) or ())]


def _describe(spec: Type[Spec], item: Mapping[str, Any], path: str, where: Where) -> str:
    given = list(_named(item["loc"]))
    field = ".".join([path, *given])
    source = where(field)
    kind, value, context = item["type"], item["input"], item.get("ctx", {})
    if kind == "extra_forbidden":
        allowed = allowed_fields(spec, item["loc"][:-1])
        parent = ".".join([path, *given[:-1]])
        near = nearest(given[-1], allowed)
        hint = f" Did you mean '{parent}.{near[0]}'?" if near else ""
        return f"there is no '{field}'.{hint} {parent} takes {', '.join(allowed) or 'no settings'} ({source})."
    if kind == "missing":
        return f"{field} must be given: type {field}=... ({source})."
    if kind == "value_error":
        said = str(context.get("error", item["msg"])).rstrip(".")
        return f"{field}={shown(value)}: {said}. ({source})" if given else f"{path}: {said} ({source})."
    hint = ""
    if kind == "literal_error":
        allowed = context["expected"].replace(" or ", ",").split(",")
        hint = did_you_mean(str(value), [word.strip(" '") for word in allowed])
    if kind == "string_pattern_mismatch" and spec_help(spec, given):
        return f"{field}={shown(value)}: this is not understood. Allowed: {spec_help(spec, given)} ({source})"
    if kind == "list_type" and isinstance(value, (str, int, float)):
        hint = f" Type {field}=[{shown(value)}]."
    message = item["msg"][0].lower() + item["msg"][1:]
    return f"{field}={shown(value)}: {message.replace('input should', 'should')}.{hint} ({source})"


def _is_branch(part: str) -> bool:
    return any(sign in part for sign in "[]'") or part in ("int", "float", "str", "bool", "none", "constrained-int",
                                                           "constrained-float", "constrained-str")  # fmt: skip


def shown(value: object) -> str:
    """A value as one would type it."""
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {shown(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(shown, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def allowed_fields(spec: Type[Spec], location: Sequence[Union[int, str]]) -> List[str]:
    """The fields of `spec`, or of the nested spec at `location`."""
    current: Optional[Type[Spec]] = spec
    for part in location:
        if isinstance(part, str) and current is not None and part in current.model_fields:
            current = nested_spec(current, part)
    return list(current.model_fields) if current is not None else []


def nested_spec(spec: Type[Spec], field: str) -> Optional[Type[Spec]]:
    """The spec that a field holds, alone, in a union or in a list; None if it holds none."""
    annotation = spec.model_fields[field].annotation
    kinds = [kind for kind in (annotation, *getattr(annotation, "__args__", ())) if inspect.isclass(kind)]
    return next((kind for kind in kinds if issubclass(kind, Spec)), None)


def own_spec(target: object) -> Optional[Type[Spec]]:
    """The spec of mxtrain that a `_target_` names, None for anything else. Imports nothing but modules of mxtrain."""
    if not isinstance(target, str) or target.partition(".")[0] != __package__.partition(".")[0]:
        return None
    try:
        found = import_target(target, "")
    except ConfigError:
        return None  # said when the description is validated
    return found if inspect.isclass(found) and issubclass(found, Spec) else None


def default_settings(spec: Type[Spec]) -> Dict[str, Any]:
    """All settings of a spec with their defaults, as plain nested values; `???` for what must be given."""
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
    """A node of a valid configuration with the settings that it leaves out; as it is if its `_target_` is no `Spec`."""
    target = import_target(str(node["_target_"]), path)
    if not (inspect.isclass(target) and issubclass(target, Spec)):
        return dict(node)
    given = {name: value for name, value in node.items() if name != "_target_"}
    # A default of a user's own class may be any object, which no checkpoint can hold.
    defaults = {name: value for name, value in default_settings(target).items() if _is_plain(value)}
    return {"_target_": node["_target_"], **defaults, **_over_nested_defaults(target, given)}


def _is_plain(value: object) -> bool:
    if isinstance(value, (dict, list)):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, (bool, int, float, str))


def _over_nested_defaults(spec: Type[Spec], fields: Mapping[str, Any]) -> Dict[str, Any]:
    """Returns the fields in which a mapping given for a nested spec updates the field's default, as a YAML file does,
    instead of the defaults of the nested class."""
    completed = dict(fields)
    for name, value in fields.items():
        field = spec.model_fields.get(name)
        default = field.get_default(call_default_factory=True) if field is not None else None
        if isinstance(default, Spec) and isinstance(value, Mapping):
            completed[name] = {**_as_plain(default), **_over_nested_defaults(type(default), value)}
    return completed


@dataclass(frozen=True)
class Declaration:
    """The declaration of a field: the class, its file and the line, and the docstring under it on one line."""

    owner: Type[Spec]
    file: Path
    line: int
    help: str


def find_declaration(spec: Type[Spec], names: Sequence[str]) -> Optional[Declaration]:
    """The declaration of a field or, with several names, of a field of nested specs. The docstring is that of a base
    class if the class that declares the field last has none."""
    name, *inner = names
    if name not in spec.model_fields:
        return None
    nested = nested_spec(spec, name) if inner else None
    found = find_declaration(nested, inner) if nested is not None else None
    if found is not None:
        return found
    owners = [owner for owner in spec.__mro__ if name in _fields_in_source(owner)]
    helps = (_fields_in_source(owner)[name][1] for owner in owners)
    for owner in owners[:1]:
        line = _fields_in_source(owner)[name][0]
        return Declaration(owner, Path(inspect.getfile(owner)), line, next(filter(None, helps), ""))
    return None


@functools.cache
def _fields_in_source(owner: type) -> Mapping[str, Tuple[int, str]]:
    """Line and docstring of each field that a class declares itself."""
    if not issubclass(owner, Spec) or owner is Spec:
        return {}
    try:
        lines, first = inspect.getsourcelines(owner)
    except OSError:  # made by a function, or in a notebook
        return {}
    (declared,) = ast.parse(textwrap.dedent("".join(lines))).body
    found: Dict[str, Tuple[int, str]] = {}
    body = declared.body if isinstance(declared, ast.ClassDef) else []
    for statement, following in zip(body, [*body[1:], None]):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = following.value if isinstance(following, ast.Expr) else None
            said = text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
            found[statement.target.id] = (first + statement.lineno - 1, " ".join(said.split()))
    return found


def spec_help(spec: Type[Spec], names: Sequence[str]) -> str:
    """The docstring under a field, e.g. of `Parallel.devices`, as its one-line help."""
    found = find_declaration(spec, names)
    return found.help if found is not None else ""


def refuse_unknown_names(path: str, kind: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Checks that a mapping contains only known names.

    Args:
        path: of the setting.
        kind: what the names are of, such as "class".

    Raises:
        ConfigError: it does not; says what there is.
    """
    for name in given:
        if name not in known:
            raise ConfigError(
                f"{path}: there is no {kind} '{name}'.{did_you_mean(name, known)} They are: "
                f"{', '.join(list(known)[:MOST_NAMES])}."
            )


def collect(makers: Sequence[Callable[[], T]]) -> List[T]:
    """Runs all; raises one ConfigError with everything that any of them found wrong."""
    results, wrong = [], []
    for make in makers:
        try:
            results.append(make())
        except ConfigError as error:
            wrong.append(str(error))
    if wrong:
        raise ConfigError("\n".join(wrong))
    return results


def with_text_keys(node: object) -> Any:
    """Plain nested values whose mappings have only strings as keys, as JSON has them: {3: 2.0} becomes {"3": 2.0}."""
    if isinstance(node, Mapping):
        return {str(name): with_text_keys(value) for name, value in node.items()}
    return [with_text_keys(value) for value in node] if isinstance(node, list) else node


def flatten(config: Config, prefix: str = "") -> Dict[str, Any]:
    """Dotted path -> value, for all leaves; an empty mapping is a leaf."""
    found: Dict[str, Any] = {}
    for name, value in config.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            found.update(flatten(value, path + "."))
        else:
            found[path] = value
    return found
