"""Teacher of a distillation: a trained network whose outputs become additional targets of training batches.

The reading thread computes them when it builds a batch, so strategies, stores and the training step need no changes.

The teacher runs in one thread for all epochs, because MXNet keeps about 5 MB for each thread that has called an
operator. Precomputed outputs would not fit augmented samples. The hash of its weights is state of the run.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Sequence, Tuple, Union

import numpy as np

from mxtrain.checkpoint import Checkpoint, canonical_sha256, open_checkpoint, require_run_state
from mxtrain.checkpoint.average import weights_to_use
from mxtrain.config.groups import GROUPS, NAMED_GROUPS, Description, describe
from mxtrain.config.trust import require_trusted
from mxtrain.data.signature import Signature, signature_of
from mxtrain.engine.backend import mx, nd
from mxtrain.errors import CheckpointError, ConfigError, run_dir_setting
from mxtrain.loss.distillation import expose_layers
from mxtrain.loss.distillation_blocks import attention_maps
from mxtrain.model.graph.trace import NotTraceable, input_names, symbol_of, trace
from mxtrain.model.lora import merge
from mxtrain.model.parameters import distinct_parameters
from mxtrain.training.network import build_network
from mxtrain.types import Batch, shapes_of

if TYPE_CHECKING:
    from mxnet import Context, gluon
    from mxnet.ndarray import NDArray

    from mxtrain.data.loading.loader import Collate
    from mxtrain.types.annotations import Json, JsonObject

SETTING = "distillation.teacher"
OWN_GROUPS = ("parallel", "kvstore", "cluster", "runtime", "amp", "distillation")
"""Groups of the teacher's description that are replaced by those of the run."""


class Teacher:
    """A trained network on a device, in inference mode.

    Its first output becomes the last target, followed by the activities of the layers in `distillation.features`.

    Args:
        checkpoint: checkpoint with the teacher's weights.
        description: description of the teacher's run.
        signature: signature of the checkpoint.
        run: description of the student's run.
        student: signature of the student's run.
        device: device of the batches.

    Raises:
        ConfigError: the teacher does not fit this run.
        CheckpointError: the weights do not fit the teacher's description.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        description: Description,
        signature: Signature,
        run: Description,
        student: Signature,
        device: Context,
    ):
        self._path = str(checkpoint.path)
        self._features = list(run.distillation.features.values())
        arrays = merge(weights_to_use(checkpoint), description.model.lora)
        self._sha256 = canonical_sha256(arrays)
        # The teacher is never trained, so it needs no gradient arrays, which would take as much memory as its weights.
        # The checkpoint has all weights, so the file that model.weights once named need not exist any more.
        description = replace(description, model=description.model.for_trained_weights())
        network = build_network(description, signature, device, learns=False)
        parameters = distinct_parameters(network)
        if {name: tuple(one.shape) for name, one in parameters.items()} != {
            name: array.shape for name, array in arrays.items()
        }:
            raise CheckpointError(f"{SETTING}: {self._path} is of another network than its description.")
        for name, parameter in parameters.items():
            parameter.set_data(nd.array(arrays[name], ctx=device, dtype=arrays[name].dtype))
        self._build_operator(network, signature, device)
        # Outputs are standardised by the targets of the teacher's run. Convert them to those of the student's run.
        (mean, std), (own_mean, own_std) = description.task.output_scale(signature), run.task.output_scale(student)
        self._scale, self._shift = std / own_std, (mean - own_mean) / own_std

    def _build_operator(self, network: gluon.Block, signature: Signature, device: Context) -> None:
        shapes = shapes_of(signature.shape)
        self.feature_shapes: List[Tuple[int, ...]] = []
        """Shape of each feature, for one sample."""
        if self._features:
            expose_layers(network, self._features, "distillation.features")
        try:
            symbol, _ = symbol_of(network, training=False, num_inputs=len(shapes))
        except NotTraceable as error:
            raise ConfigError(f"{SETTING}: the network of {self._path} cannot be traced ({error}).") from error
        outputs: List[mx.sym.Symbol] = list(symbol)
        features = outputs[len(outputs) - len(self._features) :] if self._features else []
        self._inputs = input_names(len(shapes))
        graph = mx.sym.Group([outputs[0], *(attention_maps(mx.sym, one) for one in features)])
        if features:
            input_shapes = {name: (1, *shape) for name, shape in zip(self._inputs, shapes)}
            _, inferred, _ = mx.sym.Group(features).infer_shape_partial(**input_shapes)
            self.feature_shapes = [tuple(shape[1:]) for shape in inferred]
            require_maps(self._features, self.feature_shapes)
        # Gluon blocks must be called in the thread that created them; a CachedOp may be called in any thread. MXNet
        # never frees the 5 MB that it keeps for each thread that has called one, and each epoch has a new reading
        # thread, so a single thread makes all calls.
        self._thread = ThreadPoolExecutor(1, "teacher")
        self._operator = nd.CachedOp(graph, ())
        values_of = {one.name: one.data(device) for one in network.collect_params().values()}
        self._arguments = [values_of.get(name) for name in graph.list_inputs()]
        self._argument_inputs = [name if name in self._inputs else "" for name in graph.list_inputs()]

    def add_outputs(self, batch: Batch) -> Batch:
        """Returns the batch with the teacher's outputs as additional targets."""
        return replace(batch, targets=(*batch.targets, *self._thread.submit(self._compute, batch).result()))

    def _compute(self, batch: Batch) -> Tuple[NDArray, ...]:
        inputs = dict(zip(self._inputs, batch.inputs))
        arguments = [inputs[name] if name else value for name, value in zip(self._argument_inputs, self._arguments)]
        outputs = self._operator(*arguments)
        output, *activities = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        if (self._scale, self._shift) != (1.0, 0.0):
            output = output * self._scale + self._shift
        return (output, *activities)

    def after(self, collate: Union[Collate, None]) -> Collate:
        """Returns a function that applies `collate` and then adds the teacher's outputs."""

        def complete(batch: Batch, epoch: int) -> Batch:
            return self.add_outputs(batch if collate is None else collate(batch, epoch))

        return complete

    def require_same_maps(self, network: gluon.Block, shape: object, layers: Sequence[str]) -> None:
        """Checks that the feature maps of student and teacher have equal sizes.

        Args:
            network: student network, which returns its features as last outputs.
            shape: shapes of its inputs.
            layers: layers of the student, in the order of the teacher's.

        Raises:
            ConfigError: the sizes differ.
        """
        if not layers:
            return
        outputs = trace(network, shape).output_shapes[-len(layers) :]  # type: ignore[arg-type]
        shapes = [tuple((output or ())[1:]) for output in outputs]
        require_maps(layers, shapes)
        for layer, teacher_layer, map_shape, teacher_shape in zip(layers, self._features, shapes, self.feature_shapes):
            if map_shape[1:] != teacher_shape[1:]:
                raise ConfigError(
                    f"distillation.features: '{layer}' gives maps of {_shown(map_shape[1:])}, and the teacher's "
                    f"'{teacher_layer}' of {_shown(teacher_shape[1:])}. Name layers whose maps have the same size."
                )

    def save_state(self) -> Tuple[Mapping[str, Union[NDArray, np.ndarray]], Mapping[str, Json]]:
        """See `Stateful`."""
        return {}, {"weights_sha256": self._sha256}

    def load_state(self, arrays: Mapping[str, np.ndarray], values: JsonObject, source: str) -> None:
        """See `Stateful`."""
        if values.get("weights_sha256") != self._sha256:
            raise CheckpointError(
                f"{source} was trained with another teacher than the one that is now in {self._path}. Put it back, or "
                f"choose another {run_dir_setting()}."
            )


def require_maps(layers: Sequence[str], shapes: Sequence[Tuple[int, ...]]) -> None:
    """Raises a `ConfigError` if the output of a layer is no map."""
    for layer, shape in zip(layers, shapes):
        if len(shape) < 2:
            raise ConfigError(
                f"distillation.features: '{layer}' gives vectors, and only maps (batch, channels, ...) are compared. "
                "Name a layer before it."
            )


def _shown(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def load_teacher(run: Description, student: Signature, device: Context) -> Teacher:
    """Loads the teacher that `distillation.teacher` names.

    Args:
        run: description of the student's run.
        student: signature of the student's run.
        device: device of the batches.

    Raises:
        CheckpointError: there is no usable checkpoint.
        ConfigError: the checkpoint names untrusted code, or does not fit this run.
    """
    spec = run.distillation
    assert spec.teacher is not None
    checkpoint = open_checkpoint(spec.teacher, which=spec.which)
    require_run_state(checkpoint)
    path = str(checkpoint.path)
    # A teacher needs none of these groups, whose classes an untrusted checkpoint could choose.
    config: Dict[str, Any] = {**checkpoint.state["run"]["description"], **dict.fromkeys(NAMED_GROUPS, {})}
    # These groups can start programs or set the environment, so they come from the command, never from the checkpoint.
    config.update({group: run.config[group] for group in OWN_GROUPS})
    config = {group: config[group] for group in config if group in GROUPS}
    if not spec.trust_code:
        of_teacher = {group: node for group, node in config.items() if group not in OWN_GROUPS}
        require_trusted(of_teacher, path, SETTING, [], [], "Type distillation.trust_code=true to run it")
    description = describe(config, lambda group: f"the teacher's own {group.split('.')[0]}", check_rules=False)
    description = replace(description, distillation=type(spec)())
    signature = signature_of(checkpoint, description.dataset.signature_class)
    require_fit(path, description, signature, run, student)
    return Teacher(checkpoint, description, signature, run, student, device)


def require_fit(
    path: str, description: Description, signature: Signature, run: Description, student: Signature
) -> None:
    """Checks that teacher and student have the same task, inputs and outputs.

    Raises:
        ConfigError: they differ; the message names the first difference.
    """
    if description.task.name != run.task.name:
        raise ConfigError(
            f"{SETTING}: {path} was trained with task={description.task.name}, and this run has task={run.task.name}."
        )
    if description.model.state_shapes:
        raise ConfigError(f"{SETTING}: the network of {path} carries state from batch to batch, so it cannot teach.")
    teacher_fields, student_fields = dict(signature.to_json()), dict(student.to_json())
    for fields in (teacher_fields, student_fields):
        for name in SCALED:
            fields.pop(name, None)
    teacher_shape = description.task.output_shapes(description, signature)[0]
    student_shape = run.task.output_shapes(run, student)[0]
    if teacher_shape != student_shape:
        raise ConfigError(
            f"{SETTING}: {path} has outputs of {_shown(teacher_shape)} numbers for a sample, and this run of "
            f"{_shown(student_shape)}. Choose a teacher of the same data."
        )
    for name in sorted({*teacher_fields, *student_fields}):
        if teacher_fields.get(name) != student_fields.get(name):
            raise ConfigError(
                f"{SETTING}: the samples of {path} differ from those of this run in {name}: "
                f"{_brief(teacher_fields.get(name))} there, {_brief(student_fields.get(name))} here. A teacher must "
                "read the same inputs and tell the same outputs apart: give the same dataset settings, or choose "
                "another teacher."
            )


SCALED = ("target_mean", "target_std")
"""Fields of a signature that may differ: outputs are scaled."""


def _brief(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def teachers_of(run: Description, student: Signature, device: Context) -> Dict[str, Teacher]:
    """Returns {"distillation": teacher} for the states of a run; {} without a teacher. Raises like `load_teacher`."""
    return {"distillation": load_teacher(run, student, device)} if run.distillation.teacher is not None else {}
