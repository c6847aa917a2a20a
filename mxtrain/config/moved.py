"""Import paths of modules and classes that have moved, so that runs, checkpoints and modules of users from before the
move still work (docs/extending/plug-ins.md).

Imports nothing of mxtrain: `mxtrain` itself reads the table when a module is not found.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Tuple

UNTIL = "0.3.0"
"""First version of mxtrain in which `import` statements no longer find the old paths. Old paths in descriptions work
forever."""

MOVED: Dict[str, str] = {
    "mxtrain.custom_loop": "mxtrain.api.custom_loop",
    "mxtrain.vision.networks.train_predict_block": "mxtrain.model.networks.train_predict_block",
    "mxtrain.composing.scores": "mxtrain.cluster.launch.scored",
    "mxtrain.speech.speech_manifest": "mxtrain.speech.manifests",
    "mxtrain.speech.aligned_manifest": "mxtrain.speech.manifests",
    "mxtrain.vision.metric_learning.loss_block": "mxtrain.vision.metric_learning.head",
    "mxtrain.vision.metric_learning.retrieval": "mxtrain.vision.metric_learning.metrics",
    "mxtrain.text.question_answering.numpydoc_questions": "mxtrain.text.question_answering.squad",
    "mxtrain.text.python_words": "mxtrain.text.token_classification.conll",
    "mxtrain.model.networks.embedded_mlp": "mxtrain.model.networks.embedding_table",
    "mxtrain.lr_scheduler.range_test": "mxtrain.lr_scheduler.schedules",
    "mxtrain.text.unknown_tokens": "mxtrain.text.signature",
    "mxtrain.task.sample_report": "mxtrain.task.sample_results",
    "mxtrain.speech.speech_report": "mxtrain.speech.transcripts",
    "mxtrain.reinforcement.actor_critic": "mxtrain.reinforcement.model",
    "mxtrain.callback.given": "mxtrain.callback.spec",
    "mxtrain.loss.given": "mxtrain.loss.custom",
    "mxtrain.model.given": "mxtrain.model.custom",
    "mxtrain.optimizer.given": "mxtrain.optimizer.spec",
    "mxtrain.vision.detection.heads.scores": "mxtrain.vision.detection.heads.operators",
    "mxtrain.engine.device_limits": "mxtrain.engine.limits",
    "mxtrain.archive.settings_file": "mxtrain.archive.registry",
    "mxtrain.exporting.converters.recurrent": "mxtrain.exporting.converters.sequences",
    "mxtrain.composing.foreign_words": "mxtrain.composing.untrusted_overrides",
    "mxtrain.cli.run_words": "mxtrain.cli.run_arguments",
    "mxtrain.cli.dry_run": "mxtrain.cli.train",
    "mxtrain.cli.study_table": "mxtrain.cli.tune",
    "mxtrain.composing.typed_paths": "mxtrain.composing.choices",
    "mxtrain.composing.config_loader": "mxtrain.composing.config_files",
    "mxtrain.logger.overview": "mxtrain.logger.tensorboard_views",
    "mxtrain.logger.hparams": "mxtrain.logger.tensorboard_views",
    "mxtrain.logger.graph": "mxtrain.logger.tensorboard_views",
    "mxtrain.recommendation.neumf": "mxtrain.recommendation.recommenders",
    "mxtrain.recommendation.item_factors": "mxtrain.recommendation.recommenders",
    "mxtrain.recommendation.matrix_factorization": "mxtrain.recommendation.recommenders",
    "mxtrain.tables.deepfm": "mxtrain.tables.feature_models",
    "mxtrain.tables.wide_deep": "mxtrain.tables.feature_models",
    "mxtrain.tables.factorization_machine": "mxtrain.tables.feature_models",
    "mxtrain.amp.BFloat16": "mxtrain.amp.spec.BFloat16",
    "mxtrain.amp.Float16": "mxtrain.amp.spec.Float16",
    "mxtrain.amp.FullPrecision": "mxtrain.amp.spec.FullPrecision",
    "mxtrain.amp.Mixed": "mxtrain.amp.spec.Mixed",
    "mxtrain.amp.Precision": "mxtrain.amp.spec.Precision",
    "mxtrain.annotations": "mxtrain.types.annotations",
    "mxtrain.build": "mxtrain.training.build",
    "mxtrain.cadence": "mxtrain.config.cadence",
    "mxtrain.callback.CallbackSpec": "mxtrain.callback.spec.CallbackSpec",
    "mxtrain.callback.CustomAction": "mxtrain.callback.spec.CustomAction",
    "mxtrain.callback.CustomCallback": "mxtrain.callback.spec.CustomCallback",
    "mxtrain.cli.choices": "mxtrain.composing.choices",
    "mxtrain.cli.compose": "mxtrain.composing.composer",
    "mxtrain.cli.config_files": "mxtrain.composing.config_files",
    "mxtrain.cli.config_loader": "mxtrain.composing.config_files",
    "mxtrain.cli.diagnosis": "mxtrain.workflows.doctor",
    "mxtrain.cli.environment": "mxtrain.composing.environment",
    "mxtrain.cli.eval_folder": "mxtrain.workflows.eval_folder",
    "mxtrain.cli.folds": "mxtrain.cluster.launch.folds",
    "mxtrain.cli.foreign_words": "mxtrain.composing.untrusted_overrides",
    "mxtrain.cli.group": "mxtrain.cluster.launch.group",
    "mxtrain.cli.hydra_errors": "mxtrain.composing.hydra_errors",
    "mxtrain.cli.hydra_run": "mxtrain.cluster.launch.hydra_run",
    "mxtrain.cli.hydra_settings": "mxtrain.composing.hydra_settings",
    "mxtrain.cli.job": "mxtrain.cluster.launch.job",
    "mxtrain.cli.mistakes": "mxtrain.composing.mistakes",
    "mxtrain.cli.moved_data": "mxtrain.composing.moved_data",
    "mxtrain.cli.new_process": "mxtrain.cluster.launch.new_process",
    "mxtrain.cli.objects": "mxtrain.composing.objects",
    "mxtrain.cli.origins": "mxtrain.composing.origins",
    "mxtrain.cli.outcome": "mxtrain.cluster.launch.outcome",
    "mxtrain.cli.output_file": "mxtrain.workflows.output_file",
    "mxtrain.cli.preserved": "mxtrain.cluster.launch.preserved",
    "mxtrain.cli.probe": "mxtrain.runtime.probe",
    "mxtrain.cli.probing": "mxtrain.runtime.probing",
    "mxtrain.cli.program": "mxtrain.terminal.program",
    "mxtrain.cli.ranges": "mxtrain.composing.ranges",
    "mxtrain.cli.recorded": "mxtrain.composing.recorded",
    "mxtrain.cli.run": "mxtrain.cluster.launch.run",
    "mxtrain.cli.run_dir_rollback": "mxtrain.cluster.launch.run_dir_rollback",
    "mxtrain.cli.run_folders": "mxtrain.archive.run_folders",
    "mxtrain.cli.sample_files": "mxtrain.workflows.eval_folder",
    "mxtrain.cli.setting_names": "mxtrain.composing.setting_names",
    "mxtrain.cli.store_server": "mxtrain.cluster.launch.store_server",
    "mxtrain.cli.sweep": "mxtrain.cluster.launch.sweep",
    "mxtrain.cli.sweep_jobs": "mxtrain.cluster.launch.sweep_jobs",
    "mxtrain.cli.tables": "mxtrain.terminal.tables",
    "mxtrain.cli.typed_paths": "mxtrain.composing.choices",
    "mxtrain.cli.worker_script": "mxtrain.cluster.launch.worker_script",
    "mxtrain.cli.yaml_numbers": "mxtrain.composing.yaml_numbers",
    "mxtrain.cluster.Cluster": "mxtrain.cluster.spec.Cluster",
    "mxtrain.data.base": "mxtrain.data.spec",
    "mxtrain.data.binary_row": "mxtrain.data.class_rows",
    "mxtrain.data.loading.regular_files": "mxtrain.data.loading.dataset_files",
    "mxtrain.description.groups": "mxtrain.config.groups",
    "mxtrain.description.provenance": "mxtrain.archive.provenance",
    "mxtrain.description.remedies": "mxtrain.training.remedies",
    "mxtrain.description.reproduction": "mxtrain.archive.compare",
    "mxtrain.description.rules": "mxtrain.config.rules",
    "mxtrain.description.score": "mxtrain.archive.score",
    "mxtrain.description.sparse_tables": "mxtrain.config.sparse_tables",
    "mxtrain.description.trainer": "mxtrain.training.spec",
    "mxtrain.description.trust": "mxtrain.config.trust",
    "mxtrain.download": "mxtrain.files.download",
    "mxtrain.early_stopping.EarlyStopping": "mxtrain.early_stopping.spec.EarlyStopping",
    "mxtrain.early_stopping.NoEarlyStopping": "mxtrain.early_stopping.spec.NoEarlyStopping",
    "mxtrain.early_stopping.StoppingRule": "mxtrain.early_stopping.spec.StoppingRule",
    "mxtrain.engine.host_graph": "mxtrain.reinforcement.host_graph",
    "mxtrain.export": "mxtrain.exporting",
    "mxtrain.files.run_files": "mxtrain.archive.run_files",
    "mxtrain.files.run_records": "mxtrain.archive.run_records",
    "mxtrain.given": "mxtrain.config.placeholders",
    "mxtrain.kvstore.Device": "mxtrain.kvstore.spec.Device",
    "mxtrain.kvstore.DistAsync": "mxtrain.kvstore.spec.DistAsync",
    "mxtrain.kvstore.DistDeviceSync": "mxtrain.kvstore.spec.DistDeviceSync",
    "mxtrain.kvstore.DistSync": "mxtrain.kvstore.spec.DistSync",
    "mxtrain.kvstore.Horovod": "mxtrain.kvstore.spec.Horovod",
    "mxtrain.kvstore.Joined": "mxtrain.kvstore.spec.Joined",
    "mxtrain.kvstore.KVStore": "mxtrain.kvstore.spec.KVStore",
    "mxtrain.kvstore.Local": "mxtrain.kvstore.spec.Local",
    "mxtrain.kvstore.NCCL": "mxtrain.kvstore.spec.NCCL",
    "mxtrain.kvstore.P3": "mxtrain.kvstore.spec.P3",
    "mxtrain.kvstore.ParameterServer": "mxtrain.kvstore.spec.ParameterServer",
    "mxtrain.layer_comparison": "mxtrain.workflows.layer_comparison",
    "mxtrain.libraries": "mxtrain.config.libraries",
    "mxtrain.loss.distillation.Distillation": "mxtrain.loss.spec.Distillation",
    "mxtrain.logger.base": "mxtrain.logger.spec",
    "mxtrain.logger.durations": "mxtrain.terminal.durations",
    "mxtrain.logger.fonts": "mxtrain.task.figure_fonts",
    "mxtrain.logger.patient_stream": "mxtrain.terminal.patient_stream",
    "mxtrain.logger.progress_display": "mxtrain.terminal.progress",
    "mxtrain.logger.report": "mxtrain.terminal.report",
    "mxtrain.logger.secret_values": "mxtrain.config.secret_values",
    "mxtrain.logger.terminal": "mxtrain.terminal.console",
    "mxtrain.metric.metrics.MaskedAccuracy": "mxtrain.metric.metrics.PositionAccuracy",
    "mxtrain.metric.metrics.MaskedPerplexity": "mxtrain.metric.metrics.PositionPerplexity",
    "mxtrain.metric.metrics.TokenAccuracy": "mxtrain.metric.metrics.PositionAccuracy",
    "mxtrain.model.base": "mxtrain.model.spec",
    "mxtrain.native": "mxtrain.engine.native",
    "mxtrain.optimizer.base": "mxtrain.optimizer.spec",
    "mxtrain.own_gradients": "mxtrain.training.own_gradients",
    "mxtrain.parallel.strategies": "mxtrain.parallel.spec",
    "mxtrain.parts": "mxtrain.composing.parts",
    "mxtrain.process.collection": "mxtrain.engine.collection",
    "mxtrain.process.heartbeat": "mxtrain.cluster.heartbeat",
    "mxtrain.process.stopping": "mxtrain.cluster.stopping",
    "mxtrain.ranking": "mxtrain.checkpoint.ranking",
    "mxtrain.rehearsal": "mxtrain.workflows.dry_run",
    "mxtrain.runs": "mxtrain.archive",
    "mxtrain.runtime.Runtime": "mxtrain.runtime.spec.Runtime",
    "mxtrain.search_path": "mxtrain.config.search_path",
    "mxtrain.server": "mxtrain.kvstore.server",
    "mxtrain.serving.settings": "mxtrain.serving.spec",
    "mxtrain.slim": "mxtrain.training.slimming",
    "mxtrain.task.base": "mxtrain.task.spec",
    "mxtrain.trained": "mxtrain.training.trained",
    "mxtrain.text.language_modeling.python_documentation": "mxtrain.text.python_documentation",
    "mxtrain.tuning.settings": "mxtrain.tuning.spec",
    "mxtrain.verification": "mxtrain.training.verification",
}
"""Old path of a module or class -> its new path. The entry of a module also applies to everything in it."""


def current_path(path: str) -> str:
    """Returns the import path that a module or class has today; `path` itself if it has not moved."""
    parts = path.split(".")
    # The longest path first: a class may have moved to another place than the rest of its module.
    for length in range(len(parts), 1, -1):
        new = MOVED.get(".".join(parts[:length]))
        if new is not None:
            return ".".join([new, *parts[length:]])
    return path


def with_current_paths(node: Any) -> Any:
    """Returns a copy of nested dicts and lists in which each `_target_` is the class's path of today."""
    if isinstance(node, Mapping):
        return {
            name: current_path(value) if name == "_target_" and isinstance(value, str) else with_current_paths(value)
            for name, value in node.items()
        }
    return [with_current_paths(item) for item in node] if isinstance(node, list) else node


def moved_targets(node: object, path: str = "") -> Iterator[Tuple[str, str]]:
    """Yields (dotted path, old import path) of each `_target_` that has moved."""
    items = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else ()
    for name, value in items:
        inner = f"{path}.{name}" if path else str(name)
        if name == "_target_" and isinstance(value, str) and current_path(value) != value:
            yield inner, value
        yield from moved_targets(value, inner)


class MovedModule:
    """Loader that serves a module by the path that it had before. A package whose modules have moved to several others
    is empty itself."""

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        """Lets Python create an empty module."""

    def exec_module(self, module: ModuleType) -> None:
        """Replaces the empty module by the moved one.

        A package is not replaced but delegated to: Python would find its modules by their old paths, too, and import
        each a second time, with classes that are not those of mxtrain.
        """
        new = current_path(module.__name__)
        if new == module.__name__:
            module.__path__ = []
            return
        moved = importlib.import_module(new)
        if hasattr(moved, "__path__"):
            # An empty path: Python then asks the finder for each submodule by its old name, which leads here again.
            module.__dict__.update(__path__=[], __getattr__=functools.partial(getattr, moved))
        else:
            sys.modules[module.__name__] = moved


def find_moved_module(name: str) -> Optional[ModuleSpec]:
    """Returns the spec of a module that has moved, and warns; None if there is no such module."""
    new = current_path(name)
    if new == name:
        # Python imports the package first; the module in it warns.
        is_package = any(old.startswith(f"{name}.") for old in MOVED)
        return ModuleSpec(name, MovedModule()) if is_package else None  # type: ignore[arg-type]
    _warn(name, new, 4)
    return ModuleSpec(name, MovedModule())  # type: ignore[arg-type]


def moved_names(package: str) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a package that serves the classes which have moved into its modules."""

    def find(name: str) -> Any:
        new = current_path(f"{package}.{name}")
        module_name, _, attribute = new.rpartition(".")
        if new == f"{package}.{name}":
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        _warn(f"{package}.{name}", new, 3)
        return getattr(importlib.import_module(module_name), attribute)

    return find


def _warn(old: str, new: str, depth: int) -> None:
    """Warns of the `import` statement that is `depth` calls above this one."""
    warnings.warn(f"{old} has moved to {new}. mxtrain {UNTIL} removes the old path.", DeprecationWarning, depth)
