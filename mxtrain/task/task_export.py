"""Outputs of exported networks besides the outputs of the network itself, and facts of the task for the reader of an
exported folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Dict, Mapping, Optional, Protocol, Sequence

if TYPE_CHECKING:
    import numpy as np

    from mxtrain.config.parts import RunParts
    from mxtrain.data.exported_folder import ExportedFolder
    from mxtrain.data.signature import Signature
    from mxtrain.engine.predictions import Decode
    from mxtrain.parallel.base import Strategy
    from mxtrain.task.exported_part import ExportedPart
    from mxtrain.types.annotations import Array, Json, OperatorModule


class ExportedTask(Protocol):
    """Task whose networks are exported, see `Task`."""

    def model_dump(self, *, mode: str) -> Dict[str, Any]: ...

    def build_decode(
        self, description: RunParts, signature: Signature, strategy: Optional[Strategy] = None
    ) -> Decode: ...


class TaskExport:
    """Export of the networks of a task. Tasks that export more than the network return a subclass from
    `Task.export_form`.

    Args:
        task: the task, with its settings.
    """

    any_size: ClassVar[bool] = True
    """True if an exported network may take samples of other sizes: false if predictions depend on the trained one."""

    open_set: ClassVar[bool] = False
    """True if `eval` may measure data of other classes than those of the training, with the exported network."""

    has_loss: ClassVar[bool] = True
    """False if the loss of validation cannot be computed from the outputs of the exported network."""

    def __init__(self, task: ExportedTask) -> None:
        self.task = task

    @property
    def evaluates(self) -> bool:
        """True if the exported network has all outputs that evaluation reads, for the classes of the training."""
        return True

    def exported_task(self) -> Any:
        """Returns the task that builds the network to export, by default this one, which exports the whole network:
        tasks leave parts out that only training needs."""
        return self.task

    def exported_weights(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Returns the weights of the network that `exported_task` builds.

        Args:
            arrays: weights of the trained network by structural name.
        """
        return arrays

    def outputs(
        self, F: OperatorModule, outputs: Sequence[Array], description: RunParts, signature: Signature
    ) -> Dict[str, Array]:
        """Returns predictions by name that an exported network makes beside its own outputs, see `Task.decode`.

        Args:
            F: MXNet's operators of symbols.
            outputs: outputs of the network.
            description: description of the run.
            signature: signature of the network.
        """
        return {}

    def facts(self, description: RunParts, signature: Signature, strategy: Strategy) -> Dict[str, Json]:
        """Returns facts of the task for the reader of an exported folder; by default its settings.

        Args:
            description: description of the run.
            signature: signature of the network.
            strategy: strategy that holds the weights.
        """
        return self.task.model_dump(mode="json")

    def parts(
        self, description: RunParts, signature: Signature, strategy: Strategy, inputs: Sequence[np.ndarray]
    ) -> Mapping[str, ExportedPart]:
        """Returns further graphs of an exported network by name, such as the step of a decoder.

        Args:
            description: description of the run.
            signature: signature of the network.
            strategy: strategy that holds the weights.
            inputs: network inputs of real samples, (B, ...) each.
        """
        return {}

    def build_decode(
        self, description: RunParts, signature: Signature, strategy: Strategy, folder: ExportedFolder
    ) -> Decode:
        """Does the same as `Task.build_decode`, with the networks that `parts` returned, in onnxruntime.

        Tasks override it if their predictions are computed by such networks.

        Args:
            description: description of the run.
            signature: signature of the network.
            strategy: strategy that holds the weights.
            folder: runs the parts; its `signature` has their inputs and outputs.
        """
        return self.task.build_decode(description, signature, strategy)
