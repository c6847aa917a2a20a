"""Composes configurations of the Python API, in which placeholders represent objects that the caller passed."""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass, field
from numbers import Real
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Collection,
    Dict,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Type,
)

from omegaconf import open_dict

from mxtrain.callback import Action
from mxtrain.callback.spec import GivenAction
from mxtrain.composing.composer import Composed, Composer
from mxtrain.config.groups import GROUPS, NAMED_GROUPS, PRESET_GROUPS
from mxtrain.config.override_text import key_of, written
from mxtrain.config.placeholders import PLACEHOLDERS, Given, placeholders_in
from mxtrain.config.specs import import_target, name_of
from mxtrain.data.given import TASK_OF, GivenDataset
from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.logger.config_tree import object_name

if TYPE_CHECKING:
    from mxtrain.types.annotations import Config


@dataclass(frozen=True)
class Objects:
    """Arguments of an API function that are objects.

    Attributes:
        values: the objects by the path of their setting, e.g. "model" or "metric.f1".
        nodes: the placeholders, as plain values, by the same paths.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    nodes: Mapping[str, Config] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.values)


def read_arguments(
    parts: Mapping[str, Any], function: Callable[..., Any], only_objects: bool = False
) -> Tuple[List[str], Objects]:
    """Splits keyword arguments into overrides and objects.

    Args:
        parts: argument -> a string (an option), a dict (settings), or objects.
        function: the function of the API that takes them; its signature lists the groups, see `with_parts`.
        only_objects: True if the function restores a run, so that it takes objects and no settings.

    Raises:
        ConfigError: an argument is none of a group, or its object is of a wrong kind.
    """
    overrides: List[str] = []
    values: Dict[str, Any] = {}
    allowed = inspect.signature(function).parameters
    for name, value in parts.items():
        if name not in allowed:
            groups = [one for one in (*GROUPS, *PRESET_GROUPS) if one in allowed]
            others = [one for one in allowed if one not in (*groups, "self")]
            raise ConfigError(
                f"{function.__name__}() has no argument '{name}'.{did_you_mean(name, [*others, *groups])} It takes "
                f"{', '.join(others)} and {'objects' if only_objects else 'groups'}: {', '.join(groups)}."
            )
        group = "callback" if name == "callbacks" else name
        if value is None:
            continue
        if group in PRESET_GROUPS and not isinstance(value, str):
            raise ConfigError(f"{name}={value!r:.60}: must be the name of an option.")
        if isinstance(value, (str, bool, int, float)):
            overrides.append(f"{group}={value}")
        elif group in ("callback", "metric") and isinstance(value, Mapping) and not is_of_objects(value):
            overrides += _options_of(group, value)
        elif group in NAMED_GROUPS and isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value):
            overrides.append(f"{group}=[{','.join(value)}]")
        elif group in NAMED_GROUPS and group in PLACEHOLDERS:
            objects = _named(group, value)
            values.update({path: _without_direction(one)[0] for path, one in objects.items()})
            if not only_objects:  # the directions of a restored run are known
                overrides += [
                    f"{path}.better={direction}"
                    for path, one in objects.items()
                    if (direction := _without_direction(one)[1])
                ]
        elif isinstance(value, Mapping) and not is_of_objects(value):
            overrides += [f"{group}.{setting}={written(one)}" for setting, one in value.items()]
        elif group in PLACEHOLDERS:
            values[group] = value
        else:
            raise ConfigError(f"{name}={value!r:.60}: must be the name of an option or a dict of settings.")
    return overrides, Objects(values, {path: describe_object(path, value) for path, value in values.items()})


def require_overrides(arguments: Sequence[Any], function: str) -> None:
    """Checks the positional arguments of an API function.

    Raises:
        ConfigError: an argument is not a string.
    """
    for word in arguments:
        if not isinstance(word, str):
            instead = (
                "Give samples as dataset=(x, y)."
                if function == "evaluate"
                else 'Give groups by their names, e.g. model="mlp", or model=NETWORK and dataset=(x, y).'
            )
            raise ConfigError(
                f'{function}: a {type(word).__name__} is no override, which is a string such as "optimizer.lr=0.1". '
                f"{instead}"
            )


def is_of_objects(value: Mapping[str, Any]) -> bool:
    """Returns True if a dict contains objects by name, such as networks, instead of settings."""
    return not all(map(is_setting, value.values()))


def is_setting(value: object) -> bool:
    """Returns True for values that an override can write: what JSON holds, numbers of NumPy and paths."""
    if isinstance(value, (list, tuple)):
        return all(map(is_setting, value))
    if isinstance(value, Mapping):
        return all(map(is_setting, value.values()))
    return value is None or isinstance(value, (str, Real, os.PathLike))


def placeholder_of(path: str) -> Type[Given]:
    """Returns the class of the placeholders of a group, or of the group of a member such as "metric.f1"."""
    group = path.partition(".")[0]
    placeholder: Type[Given] = import_target(PLACEHOLDERS[group], group)
    return placeholder


def describe_object(path: str, value: Any) -> Config:
    """Returns the placeholder of an object as plain values.

    Raises:
        ConfigError: the group does not accept objects of this kind.
    """
    placeholder = GivenAction if isinstance(value, Action) else placeholder_of(path)
    return placeholder.node_of(path, value, placeholder.describe_object(value))


def _named(group: str, value: Any) -> Dict[str, Any]:
    """Returns path -> object for a group of any number of options. Objects without a name get the name of their class;
    a mxnet.metric.CompositeEvalMetric is unpacked."""
    if isinstance(value, Mapping):
        parts = {name: _parts_of(item) for name, item in value.items()}
        return {
            f"{group}.{name}" + (f"_{number}" if len(items) > 1 else ""): item
            for name, items in parts.items()
            for number, item in enumerate(items, start=1)
        }
    given = value if isinstance(value, (list, tuple)) and not _without_direction(value)[1] else [value]
    objects: Dict[str, Any] = {}
    for item in (part for one in given for part in _parts_of(one)):
        metric, _ = _without_direction(item)
        name = str(getattr(metric, "name", None) or getattr(metric, "__name__", None) or type(metric).__name__).lower()
        name = "".join(letter if letter.isalnum() else "_" for letter in name).strip("_") or "given"
        path, number = f"{group}.{name}", 2
        while path in objects:
            path, number = f"{group}.{name}_{number}", number + 1
        objects[path] = item
    return objects


def _parts_of(value: Any) -> List[Any]:
    """Returns the metrics of an mxnet.metric.CompositeEvalMetric; any other object alone."""
    if any(name_of(one) == "mxnet.metric.CompositeEvalMetric" for one in type(value).__mro__):
        return [part for one in value.metrics for part in _parts_of(one)]
    return [value]


def _without_direction(value: Any) -> Tuple[Any, str]:
    """Returns a metric and its direction if both were given as (metric, "min"); otherwise the value and ""."""
    if isinstance(value, tuple) and len(value) == 2 and value[1] in ("min", "max"):
        return value[0], value[1]
    return value, ""


def _options_of(group: str, value: Mapping[str, Any]) -> List[str]:
    """Returns the overrides for options that are passed as {option: dict of settings}.

    Raises:
        ConfigError: the settings of an option are not a dict.
    """
    for name, settings in value.items():
        if not isinstance(settings, Mapping):
            raise ConfigError(
                f"{group}={{{name!r}: {settings!r:.60}}}: give a dict of settings for each option, or an object."
            )
    custom = [name for name, settings in value.items() if "_target_" in settings]
    options = [name for name in value if name not in custom]
    return [
        *([f"{group}=[{','.join(options)}]"] if options else []),
        *(f"{group}.{name}.{setting}={written(one)}" for name in options for setting, one in value[name].items()),
        *(f"+{group}.{name}={written(value[name])}" for name in custom),
    ]


def _path_in(paths: Collection[str], key: str) -> str:
    """Returns the path of the object that an override with this key sets or belongs to; "" if there is none."""
    return next((path for path in paths if key == path or key.startswith(f"{path}.")), "")


class ObjectComposer(Composer):
    """Composes as `Composer` does, and then inserts the placeholders of the objects that were passed.

    Args:
        config_dirs: folders with further groups and options.
        objects: the objects and their placeholders.
        replaced: path -> node that replaces the composed one.
    """

    def __init__(self, config_dirs: Sequence[str], objects: Objects, replaced: Optional[Mapping[str, Config]] = None):
        super().__init__(config_dirs)
        self._objects, self._replaced = objects, replaced or {}

    def compose(self, overrides: Sequence[str]) -> Composed:
        objects = self._objects
        words = list(overrides)
        dataset = objects.nodes.get("dataset")
        if dataset is not None and not self._replaced and not {"task", "experiment"} & set(map(key_of, words)):
            words.append(f"task={TASK_OF[dataset['target']]}")
        # Hydra does not know the placeholders, so overrides of their settings are applied here.
        object_overrides = [word for word in words if _path_in(objects.nodes, key_of(word))]
        composed = super().compose([word for word in words if word not in object_overrides])
        nodes = {
            path: {**node, **self._given_settings(path, node, object_overrides)} for path, node in objects.nodes.items()
        }
        composed = composed.with_nodes({**self._replaced, **nodes}, objects.values)
        with open_dict(composed.hydra):  # the choice names the object, which has replaced the option
            for group in {"model", "dataset"} & set(nodes):
                composed.hydra.runtime.choices[group] = object_name(nodes[group]).strip("()")
        return composed

    def _given_settings(self, path: str, node: Config, overrides: Sequence[str]) -> Dict[str, Any]:
        """Returns the settings that overrides give to a placeholder.

        Args:
            path: path of the placeholder.
            node: the placeholder as plain values.
            overrides: overrides of all groups with an object.

        Raises:
            ConfigError: an override selects another option of the group, or a setting that the placeholder lacks.
        """
        placeholder = placeholder_of(path)
        described = {name for name in node if name != "better"}  # the direction of a class may be overridden
        allowed = [name for name in placeholder.model_fields if name not in {*Given.model_fields, *described, "target"}]
        allowed += ["lr", "wd"] if path == "optimizer" else []
        given = {}
        for word in overrides:
            if _path_in((path,), key_of(word)) != path:
                continue
            setting = key_of(word)[len(path) + 1 :]
            if not setting:
                raise ConfigError(f"{word}: {path} was passed as an object, too. Give one of them.")
            if setting not in allowed:
                raise ConfigError(
                    f"{word}: {path} was passed as an object, which has no setting '{setting}'."
                    f"{did_you_mean(setting, allowed)} Allowed: {', '.join(allowed)}."
                )
            (parsed,) = self.parse([word])
            given[setting] = parsed.value()
        return given


def match_objects(config: Config, objects: Objects, dataset: Any, source: str) -> Dict[str, Config]:
    """Checks that objects which are passed to load a run fit those that it was trained with.

    Args:
        config: configuration of the run.
        objects: objects that are passed to load the run.
        dataset: other data to evaluate; None: the data of the run.
        source: path of the run, for messages.

    Returns:
        The groups of the configuration to replace, by name: the dataset, if one was passed.

    Raises:
        ConfigError: an object differs from that of the run in class, structure or shapes, or the run was trained
            without an object at this path.
    """
    recorded = dict(placeholders_in(config))
    for path, node in objects.nodes.items():
        expected = recorded.get(path)
        if expected is None and path.partition(".")[0] not in ("callback", "dataset"):
            names = ", ".join(recorded) or "none"
            raise ConfigError(f"{path}: {source} was not trained with an object as {path}. Its objects: {names}.")
        # Other data may be measured with the same network, so the class of a dataset may differ.
        if expected is not None and path != "dataset" and node["object"] != expected["object"]:
            raise ConfigError(
                f"{path}: {source} was trained with a {expected['object']}, and a {node['object']} was given."
            )
        if path == "model" and expected and expected.get("structure", node["structure"]) != node["structure"]:
            changed = " and ".join(
                f"'{name}'"
                for name in sorted({*expected["structure"], *node["structure"]})
                if expected["structure"].get(name) != node["structure"].get(name)
            )
            raise ConfigError(
                f"model: {source} was trained with another network: {changed} differs in its layers, their settings or "
                "shapes. Give the network that was trained."
            )
    data = objects.values.get("dataset") if dataset is None else dataset
    if data is None:
        return {}
    expected = recorded.get("dataset")
    if expected is None:
        raise ConfigError(
            f"dataset: {source} was trained on a dataset that is named by its settings. Name others by overrides, e.g. "
            '"dataset.root=FOLDER".'
        )
    described = GivenDataset.describe_object(data) if dataset is None else GivenDataset.describe_test(data)
    node = GivenDataset.node_of("dataset", data, described)
    for name, description in (("shape", "inputs of the shape"), ("target", "targets of the kind")):
        if node[name] != expected[name]:
            raise ConfigError(
                f"dataset: {source} was trained on {description} {expected[name]}, and these have {node[name]}."
            )
    return {"dataset": {**expected, **node}}
