"""Writes hyperparameters for TensorBoard's HParams tab, so that the runs of a sweep compare.

Of a single run only the session is described, not the experiment: TensorBoard takes an experiment from any one run,
whose columns would then hide settings that other runs vary. Without one it collects the columns from all of them. The
jobs of a sweep vary the same settings, so each describes the experiment: swept settings and validation metrics come
first.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Dict, Iterator, Mapping, Optional, Sequence, Tuple, Union

from tensorboardX.proto.api_pb2 import DataType, Experiment, HParamInfo, MetricInfo, MetricName, Status
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from tensorboardX.proto.summary_pb2 import Summary, SummaryMetadata

if TYPE_CHECKING:
    from mxtrain.types.annotations import Config

Value = Union[str, bool, float]

DIFFERS = bytes([7 << 3, 1])
"""Serialised `HParamInfo.differs = true`, by which TensorBoard sorts: tensorboardX lacks the field."""
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
