"""The signature of a network: its inputs and outputs. Checkpoints store it, so that a network runs without its data."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple, Type

from typing_extensions import Self

from mxtrain.checkpoint.contents import STATE, Checkpoint
from mxtrain.data.loading.samples import REQUIRED as REQUIRED  # part of the API for own signatures
from mxtrain.data.loading.samples import refuse_missing
from mxtrain.errors import CheckpointError, DamagedCheckpoint, LaterCheckpoint
from mxtrain.files.json_form import NUMBER, problems_of, unknown_keys
from mxtrain.types import Shape, Shapes, shapes_of

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.data.corruption import Corruption
    from mxtrain.data.loading.samples import Samples
    from mxtrain.data.passes import TiledSamples, Variant
    from mxtrain.model.spec import Model
    from mxtrain.types.annotations import Json, JsonForm, JsonObject


class TargetScale(NamedTuple):
    """A number to predict, of several: its name, and its statistics over the training samples."""

    name: str
    mean: float
    std: float


@dataclass(frozen=True)
class Signature:
    """Shapes of the inputs, and names of the predicted values. Each field has a subclass that adds its preprocessing;
    datasets name it in `signature_class`.

    Attributes:
        shape: shape of one sample as it enters the network, or of each of several inputs.
        mean, std: per channel of images, in units where white is 1; empty for other samples.
        class_names: names of the predicted classes, if they have names.
        target_mean, target_std: statistics of a target over the training samples: networks learn it standardised.
        targets: names and statistics of several targets; empty: there is one.
    """

    form: ClassVar[Dict[str, JsonForm]] = {
        "shape": [(int, list)],
        "mean": [NUMBER],
        "std": [NUMBER],
        "class_names": [str],
        "target_mean?": NUMBER,
        "target_std?": NUMBER,
        "targets?": [{"name": str, "mean": NUMBER, "std": NUMBER}],
    }
    """The form of a signature in a checkpoint, which may come from anybody."""

    exported_reader: ClassVar[str] = ""
    """Module whose `predict` reads samples of files for an exported network (`exporting.bundle`); empty: none."""
    known_names: ClassVar[Tuple[str, ...]] = ("input_shape",)
    """Arguments that a user's own network gets besides the number of classes, if it accepts them."""

    held_settings: ClassVar[Tuple[str, ...]] = ()
    """Settings of the dataset that only define how samples become inputs. The signature contains them, so they are not
    needed with a signature."""

    shape: Shapes
    mean: Sequence[float] = ()
    std: Sequence[float] = ()
    class_names: Sequence[str] = ()
    target_mean: float = 0.0
    target_std: float = 1.0
    targets: Sequence[TargetScale] = ()

    def __post_init__(self) -> None:
        refuse_missing(self)
        # Outputs are multiplied by the deviation, so a damaged one would spoil every prediction without an error.
        for name, mean, std in (("", self.target_mean, self.target_std), *self.targets):
            if not (math.isfinite(mean) and 0 < std < math.inf):
                which = f"target '{name}' has" if name else "targets have"
                raise DamagedCheckpoint(f"The checkpoint cannot be used: its {which} mean {mean} and deviation {std}.")
        if len({name for name, _, _ in self.targets}) < len(self.targets):
            raise DamagedCheckpoint("The checkpoint cannot be used: two of its targets have the same name.")

    @classmethod
    def cast(cls, signature: Signature) -> Self:
        """Returns a signature as one of this class.

        Raises:
            TypeError: it is one of other samples.
        """
        if not isinstance(signature, cls):
            raise TypeError(
                f"the dataset's `infer_signature` gives a {type(signature).__name__}, and this needs a {cls.__name__}"
            )
        return signature

    @classmethod
    def extending(cls, signature: Signature, **more: Any) -> Self:
        """Builds a signature of this class from the fields that it shares with another one, and further arguments.

        Args:
            signature: signature of another class, such as that of the base class of a dataset.
            more: further arguments.
        """
        values = vars(signature)
        return cls(**{**{field.name: values[field.name] for field in fields(cls) if field.name in values}, **more})

    @property
    def scales_targets(self) -> bool:
        """Returns True if the number to predict is learned standardised."""
        return (self.target_mean, self.target_std) != (0.0, 1.0)

    @property
    def learned_names(self) -> Sequence[str]:
        """Returns the names whose order the network has learned."""
        return self.class_names

    def build_network(self, model: Model, num_classes: int, output_shapes: Sequence[Shape]) -> gluon.Block:
        """Builds the network of a model for such samples, uninitialized; by default the one for a single array.

        Args:
            model: description of the model.
            num_classes: width of its first output.
            output_shapes: shape of each output for one sample; empty where only the network knows.
        """
        return model.build(num_classes, shapes_of(self.shape)[0])

    def set_initial_values(self, model: Model, network: gluon.Block) -> None:
        """Sets parameters whose initial values depend on the samples, such as embeddings of words; by default none.

        Args:
            model: description of the model.
            network: its network, initialised.
        """

    @classmethod
    def corruptions(cls) -> Mapping[str, Corruption]:
        """Returns the ways in which `eval` can corrupt samples, by name; by default none."""
        return {}

    def variants(self, names: Sequence[str], scales: Sequence[float]) -> Sequence[Variant]:
        """Returns the variants of samples for test-time augmentation, the unchanged one first; by default none.

        Args:
            names: kinds of variants, as `augment` of `eval` and `predict` names them.
            scales: factors of the sides of samples, for variants of other sizes.

        Raises:
            ConfigError: there is no such variant.
        """
        return ()

    def tiled(self, source: Samples, tile: Optional[Sequence[int]], overlap: float) -> Optional[TiledSamples]:
        """Returns the tiles of samples in their original size; by default None: such samples have no tiles.

        Args:
            source: the samples.
            tile: (height, width) of a tile in pixels; None: those of the network's input.
            overlap: share of a tile that overlaps the next one.
        """
        return None

    def require_tile(self, tile: Optional[Sequence[int]]) -> None:
        """Checks the (height, width) of tiles, see `tiled`.

        Raises:
            ConfigError: they would be reduced to the network's input.
        """

    def unseen_values(self, source: Samples) -> Sequence[str]:
        """Returns a sentence for each column of samples with values that the network does not know from training.

        Args:
            source: samples to predict for or to evaluate.
        """
        return ()

    def exported_facts(self) -> Tuple[Dict[str, Json], Dict[str, bytes]]:
        """Returns what `exported_reader` needs beside the signature: facts, and the content of further files."""
        return {}, {}

    def to_json(self) -> Dict[str, Json]:
        """Returns the plain values that a checkpoint holds. Subclasses add theirs."""
        values: Dict[str, Json] = {name: list(getattr(self, name)) for name in ("shape", "mean", "std", "class_names")}
        if self.scales_targets:
            values.update(target_mean=self.target_mean, target_std=self.target_std)
        if self.targets:
            values["targets"] = [target._asdict() for target in self.targets]
        return values

    @classmethod
    def from_json(cls, values: JsonObject) -> Self:
        """Builds a signature from what `to_json` returns.

        Raises:
            DamagedCheckpoint: the values do not define how samples become inputs.
        """
        return cls(**cls._arguments({name: value for name, value in values.items() if value is not None}))

    @classmethod
    def _arguments(cls, values: Dict[str, Any]) -> Dict[str, Any]:
        """Converts plain values to arguments of the class."""
        shape = tuple(tuple(size) if isinstance(size, (list, tuple)) else size for size in values["shape"])
        targets = tuple(
            TargetScale(one["name"], float(one["mean"]), float(one["std"])) for one in values.get("targets", ())
        )
        return {**values, "shape": shape, "targets": targets}


def signature_of(checkpoint: Checkpoint, kind: Type[Signature]) -> Signature:
    """Returns the signature that a checkpoint holds.

    Args:
        checkpoint: checkpoint of a run.
        kind: signature class of the dataset. If the checkpoint lacks fields of this class, it is read as the nearest
            base class that fits, e.g. frames of handwriting for a dataset of recordings; the dataset then reports what
            it lacks.

    Raises:
        DamagedCheckpoint: names the first field that is missing or of another type.
        LaterCheckpoint: names all unknown fields: another kind of dataset or a later version wrote them.
    """
    misfits = []
    for base_class in kind.__mro__:
        if issubclass(base_class, Signature):
            misfit = _misfit(checkpoint, base_class)
            if misfit is None:
                return base_class.from_json(checkpoint.state["run"]["input"])
            misfits.append(misfit)
    raise misfits[0]  # the reason for `kind` itself, not for one of its base classes


def _misfit(checkpoint: Checkpoint, kind: Type[Signature]) -> Optional[CheckpointError]:
    """Returns the reason why a checkpoint's values are not a signature of this class; None if they are."""
    values = checkpoint.state["run"]["input"]
    for problem in problems_of(values, kind.form, "run.input"):
        return DamagedCheckpoint(f"The checkpoint {checkpoint.path} cannot be used: in {STATE}, {problem}.")
    unknown = list(unknown_keys(values, kind.form, "run.input"))
    if not unknown:
        return None
    return LaterCheckpoint(
        f"The checkpoint {checkpoint.path} cannot be used: {STATE} holds {', '.join(unknown)}, which this version "
        f"of mxtrain does not know for {kind.__name__}. Another kind of dataset or a later version made it."
    )
