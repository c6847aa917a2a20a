"""Views of a run in TensorBoard: network graph, hyperparameters, layout of the CUSTOM SCALARS tab, and text pages.

The HParams tab compares runs by a table whose columns an "experiment" record defines. TensorBoard reads this record
from one run only, so it would hide settings that other runs vary. A single run therefore writes no experiment, and
TensorBoard collects the columns from all runs. The jobs of a sweep vary the same settings, so each writes the
experiment: first the swept settings, then the validation metrics.

The CUSTOM SCALARS tab (`#custom_scalars`) shows the main curves in one place, because TensorBoard 2.21 expands only the
first sections of TIME SERIES. It refers to existing scalars and copies no data.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import time
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from rich.console import Console
from tensorboardX import summary as messages
from tensorboardX.proto.api_pb2 import DataType, Experiment, HParamInfo, MetricInfo, MetricName, Status
from tensorboardX.proto.attr_value_pb2 import AttrValue
from tensorboardX.proto.graph_pb2 import GraphDef
from tensorboardX.proto.node_def_pb2 import NodeDef
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from tensorboardX.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboardX.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboardX.proto.versions_pb2 import VersionDef

from mxtrain.callback.protocol import Result, RunInfo
from mxtrain.config.override_text import key_of
from mxtrain.files.text_lines import split_lines
from mxtrain.terminal.durations import format_seconds
from mxtrain.terminal.report import format_rate, format_value

if TYPE_CHECKING:
    from mxtrain.types.annotations import Config, GraphRow


def build_graph_def(nodes: Iterable[GraphRow]) -> GraphDef:
    """Returns a GraphDef that TensorBoard draws: each layer a node that opens into its operator and its parameters.

    Args:
        nodes: (name, operator, inputs, attributes, output shape) in topological order; parameters and inputs of the
            network are nodes with the operator "null" and no inputs.

    Returns:
        The graph; parameters have the operator "Parameter", inputs of the network "Input".
    """
    nodes = list(nodes)
    names = _scoped_names(nodes)
    graph = GraphDef(versions=VersionDef(producer=22))
    for name, op, inputs, attrs, shape in nodes:
        kind = op if op != "null" else "Parameter" if "/" in names[name] else "Input"
        node = NodeDef(name=names[name], op=kind, input=[names[source] for source in inputs if source in names])
        for key, value in dict(attrs or {}).items():
            if not str(key).startswith("__"):
                node.attr[str(key)].s = str(value).encode("utf-8")
        if shape:
            dims = [TensorShapeProto.Dim(size=int(size)) for size in shape]
            node.attr["_output_shapes"].CopyFrom(
                AttrValue(list=AttrValue.ListValue(shape=[TensorShapeProto(dim=dims)]))
            )
        graph.node.append(node)
    return graph


def _scoped_names(nodes: Sequence[GraphRow]) -> Dict[str, str]:
    """Returns a unique TensorBoard path for each node: `layer/operator` for operators, and `layer/weight` for variables
    that a single layer uses."""
    users: Dict[str, List[str]] = {}
    for name, _, inputs, _, _ in nodes:
        for source in inputs:
            users.setdefault(source, []).append(name)
    variables = [name for name, op, *_ in nodes if op == "null"]
    # The first variable is the network's input, even where only one operator reads it.
    layer_of_variable = {name: users[name][0] for name in variables[1:] if len(set(users.get(name, ()))) == 1}
    layers_with_variables = set(layer_of_variable.values())
    prefix = _common_prefix([name for name, op, *_ in nodes if op != "null"])
    display_names = {name: _display_name(name, op, prefix) for name, op, *_ in nodes}
    paths: Dict[str, str] = {}
    used_paths: set[str] = set()
    for name, op, *_ in nodes:
        path = display_names[name]
        if name in layer_of_variable:
            path = f"{display_names[layer_of_variable[name]]}/{name.replace('.', '_').rsplit('_', 1)[-1]}"
        elif name in layers_with_variables:
            path = f"{path}/{op}"
        unique, count = path, 1
        while unique in used_paths:
            count += 1
            unique = f"{path}_{count}"
        used_paths.add(unique)
        paths[name] = unique
    return paths


def _common_prefix(names: Sequence[str]) -> str:
    """Returns the common prefix of all names, up to a separator: Gluon prepends the network's name to each layer's."""
    if len(names) < 2:
        return ""
    shared = os.path.commonprefix(list(names))
    return shared[: max(shared.rfind("_"), shared.rfind(".")) + 1]


def _display_name(name: str, op: str, prefix: str) -> str:
    """Returns the name as a short TensorBoard path; TensorBoard truncates names after about fifteen letters.

    The operator is appended to a name that is only a number.
    """
    short = name[len(prefix) :] if name.startswith(prefix) else name
    for ending in ("_fwd", ".fwd"):
        if short.endswith(ending):
            short = short[: -len(ending)]
    path = short.replace(".", "/") or name
    return f"{path}_{op}" if path.rsplit("/", 1)[-1].isdigit() and op != "null" else path


Value = Union[str, bool, float]

DIFFERS = bytes([7 << 3, 1])
"""Serialised `HParamInfo.differs = true`, a field that tensorboardX lacks; TensorBoard shows these columns first."""
_GROUPS = ("model", "dataset", "optimizer", "lr_scheduler", "loss", "amp", "parallel", "kvstore")
_TRAINER = ("seed", "max_epochs", "max_steps", "grad_accumulation", "clip_global_norm", "ema_decay")
_WITHOUT_EFFECT = frozenset(("root", "path", "folder", "workers", "num_workers", "prefetch", "name_of_run"))


def select_hparams(
    config: Config, swept: Sequence[str] = (), choices: Optional[Mapping[str, str]] = None
) -> Dict[str, Value]:
    """Selects the settings in which runs usually differ, by dotted key; settings that a sweep varies come first.

    The group's name is the key of its option (`model: lenet`), or of its class if the option is not known
    (`model: LeNet`); other keys are dotted paths (`optimizer.lr: 0.1`).

    Args:
        config: all settings of the run.
        swept: settings that differ between the jobs of a sweep.
        choices: group -> the option that was chosen.
    """
    chosen: Dict[str, Value] = {}
    for path, value in _leaves({group: config.get(group) for group in _GROUPS if config.get(group) is not None}, ""):
        *parents, name = path.split(".")
        if name == "_target_":
            group = ".".join(parents)
            chosen[group] = (choices or {}).get(group) or str(value).rsplit(".", 1)[-1]
        elif name not in _WITHOUT_EFFECT:
            chosen[path] = value
    trainer = config.get("trainer") or {}
    chosen.update({f"trainer.{name}": trainer[name] for name in _TRAINER if trainer.get(name) is not None})
    all_values = dict(_leaves(config, ""))
    values = {**all_values, **chosen}
    swept_values = {key: values[key] for key in swept if key in values}
    if swept:
        return {**swept_values, **chosen}
    # For runs without a sweep, TensorBoard selects the columns that differ, then the first five by name, upper case
    # first. Runs with different models have different settings: a list of columns would hide them.
    leading = {"Learning rate": all_values.get("optimizer.lr"), "Model": chosen.get("model")}
    return {**{name: value for name, value in leading.items() if value is not None}, **chosen}


def experiment_summary(hparams: Mapping[str, Value], swept: Sequence[str], metrics: Sequence[str]) -> Summary:
    """Returns the record with the columns of a sweep's table: swept settings first, then metrics in this order."""
    columns = []
    for name, value in hparams.items():
        kind = "BOOL" if isinstance(value, bool) else "FLOAT64" if isinstance(value, (int, float)) else "STRING"
        column = HParamInfo(name=name, type=DataType.Value(f"DATA_TYPE_{kind}"))
        if name in swept:
            column.MergeFromString(DIFFERS)
        columns.append(column)
    metric_infos = [MetricInfo(name=MetricName(tag=tag)) for tag in metrics]
    experiment = Experiment(hparam_infos=columns, metric_infos=metric_infos, time_created_secs=time.time())
    return _summary("_hparams_/experiment", HParamsPluginData(experiment=experiment, version=0))


def start_summary(hparams: Mapping[str, Value]) -> Summary:
    """Returns the record of the start of a session with these hyperparameters."""
    info = SessionStartInfo(start_time_secs=time.time())
    for name, value in hparams.items():
        if isinstance(value, bool):
            info.hparams[name].bool_value = value
        elif isinstance(value, (int, float)):
            info.hparams[name].number_value = value
        else:
            info.hparams[name].string_value = str(value)
    return _summary("_hparams_/session_start_info", HParamsPluginData(session_start_info=info, version=0))


def end_summary() -> Summary:
    """Returns the record of the end of a session that finished."""
    info = SessionEndInfo(status=Status.Value("STATUS_SUCCESS"), end_time_secs=time.time())
    return _summary("_hparams_/session_end_info", HParamsPluginData(session_end_info=info, version=0))


def _summary(tag: str, content: HParamsPluginData) -> Summary:
    plugin = SummaryMetadata.PluginData(plugin_name="hparams", content=content.SerializeToString())
    return Summary(value=[Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin))])


def _leaves(value: Any, path: str) -> Iterator[Tuple[str, Value]]:
    """Yields dotted paths and scalars, depth first. A list of scalars becomes one text; empty values and None are left
    out."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        if value:
            yield path, ",".join(str(item) for item in value)
    elif value is not None:
        yield path, value


WIDTH = 100
"""Columns of a table in the TEXT tab."""


def layout_summary(run: RunInfo) -> Summary:
    """Returns the charts of the CUSTOM SCALARS tab: losses, the monitored metric, the others, learning rate,
    throughput.

    All charts are in one category, since TensorBoard opens the first category only.
    """
    monitored = run.monitor.partition("/")[2]
    names = dict.fromkeys(name for name in (monitored, *run.metric_names) if name != "loss")
    charts: List[Tuple[str, Sequence[str]]] = [
        ("loss", ("train/loss", "val/loss")),
        *((name, (f"train/{name}", f"val/{name}")) for name in names),
        ("learning rate", ("train/lr",)),
        ("samples per second", ("perf/samples_per_s",)),
    ]
    # TensorBoard matches each entry as a regular expression against the start of a tag: escape it, and match the end.
    overview = {title: ["Multiline", [f"{re.escape(tag)}$" for tag in tags]] for title, tags in charts}
    return messages.custom_scalars({"overview": overview})


def command_text(run: RunInfo) -> str:
    """Returns the command and the settings that differ from the defaults, as Markdown."""
    lines = [as_code(" ".join([run.command.program, *map(shlex.quote, run.command.arguments)]))]
    typed = [word for word in run.command.overrides if not key_of(word).startswith("hydra.")]
    lines += ["differs from the defaults:\n", as_code("\n".join(typed))] if typed else ["all settings are defaults"]
    return "\n".join(lines)


def model_text(run: RunInfo) -> str:
    """Returns the summary of the network, as Markdown."""
    output = io.StringIO()
    Console(file=output, width=WIDTH, color_system=None).print(run.model_table)
    return as_code(output.getvalue())


def result_text(result: Result) -> str:
    """Returns state, work and metrics of a run as Markdown: a row for each metric, a column for each split."""
    cause = f": {result.cause}" if result.cause else ""
    rate = format_rate(result.samples_per_s)
    work = f"steps={result.step} epochs={result.epoch} wall={format_seconds(result.wall_s)} samples_per_s={rate}"
    values = {tag.partition("/")[::2]: format_value(value) for tag, value in result.metrics.items()}
    if result.best:
        values["best", str(result.best["metric"]).rpartition("/")[2]] = format_value(result.best["value"])
    splits = [split for split in ("train", "val", "best", "test") if any(split == key[0] for key in values)]
    names = sorted({name for split, name in values if split in splits}, key=lambda name: (name != "loss", name))
    rows = [["", *splits], *([name, *(values.get((split, name), "") for split in splits)] for name in names)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
    return as_code("\n".join([f"{result.state.replace('_', ' ')}{cause}", work, "", *table]))


def as_code(text: str) -> str:
    """Returns a Markdown code block, which TensorBoard shows as it is."""
    return "".join(f"    {line}\n" for line in split_lines(text))
