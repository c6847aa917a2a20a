"""Base of the descriptions of networks: weights, freezing, parameter groups, initialisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Dict, List, Literal, Mapping, Optional, Sequence, Tuple

import pydantic

from mxtrain.errors import ConfigError
from mxtrain.model.published import require_published
from mxtrain.types import NonNegativeFloat, PathText, Positive, Shape, Spec

if TYPE_CHECKING:
    from mxnet import gluon

Init = Literal["xavier", "msra", "orthogonal", "normal", "default"]


class ParamGroup(Spec):
    """Parameters that learn at another pace. A multiplier of 0 for the rate stops learning but not the gradient."""

    pattern: str
    """A glob over structural parameter names, e.g. `output.*` or `features.0.weight`."""
    lr_mult: NonNegativeFloat = 1.0
    """The learning rate is multiplied by this."""
    wd_mult: Optional[NonNegativeFloat] = None
    """The weight decay is multiplied by this; None leaves it as it is (0 for norm and bias, if so configured)."""


class Model(Spec):
    """The description of a network. Subclasses add fields and implement `build`.

    Structural parameter names are the names in `network.save_parameters`, e.g. `features.0.weight`; patterns are globs
    over them, in which `*` also matches dots.
    """

    input_types: ClassVar[Tuple[str, ...]] = ("images",)
    """Sample type that it accepts, as `sample_type` of datasets: "images" or "numbers", for example; empty if only its
    code determines it."""

    tasks: ClassVar[Tuple[str, ...]] = ()
    """Names of the tasks that it is made for, the first of which is meant where only the model is named; empty: any."""

    dataset_hints: ClassVar[Mapping[str, str]] = {"": "dataset=digits", "regression": ""}
    """Advice for datasets with another sample type than the first of `input_types`: by task, and under "" for all
    others; empty: only a user's dataset has that type. Classes that set `input_types` set this, too."""

    weights: Optional[PathText] = None
    """Initial weights: path of a `.params` file (Gluon, GluonCV, or exported by Module); pretrained = the weights that
    GluonCV or GluonNLP publishes for this network; gluoncv:NAME or gluonnlp:NAME = published weights of another
    network. Published files are read from $MXNET_HOME/models (default: ~/.mxnet/models), or downloaded into it. None
    starts from `init`."""
    freeze: List[str] = []
    """Patterns of parameters that stay as they are, e.g. ["features.*"]; a BatchNorm whose statistics are matched keeps
    them too."""
    param_groups: List[ParamGroup] = []
    """Learning rates and weight decays of their own, e.g. [{pattern: "output.*", lr_mult: 10.0, wd_mult: 1.0}]; where
    several patterns match, the last one counts."""
    no_decay_norm_and_bias: bool = True
    """No weight decay for biases and for the scale and shift of normalisation layers."""
    widths: Dict[str, Positive] = {}
    """Channels of convolutions and units of dense layers that differ from what the other settings give, by structural
    name, e.g. {features.0: 24, features.3: 17}. `mxtrain slim` writes it; layers that are joined, e.g. by a sum, must
    agree."""
    init: Init = "xavier"
    """Initializer of weights whose layer has none; `default` is Gluon's Uniform(0.07)."""

    @pydantic.model_validator(mode="after")
    def _check_published(self) -> Model:
        if self.weights:
            require_published(self.weights, self.published_name)
        return self

    @property
    def published_name(self) -> str:
        """Returns the name of the weights that `weights=pretrained` means, e.g. gluoncv:resnet18_v1; empty if there are
        none."""
        return ""

    @property
    def usual_side(self) -> Optional[int]:
        """Returns the side in pixels of the images that it was published for, which `image_size=auto` of files of any
        size means; None if there is none."""
        return None

    @property
    def num_auxiliary(self) -> int:
        """Returns the number of auxiliary outputs, each like the first and used only in training; a task weighs their
        loss."""
        return 0

    @property
    def state_shapes(self) -> Sequence[Shape]:
        """Returns the shapes of the recurrent state of one row, carried from batch to batch as the last inputs and
        outputs of the network. Empty for most networks."""
        return ()

    @property
    def classes_in_weights(self) -> Sequence[str]:
        """Returns the classes of the file in `weights`, in the order of its scores; empty if unknown."""
        return ()

    @classmethod
    def option_of(cls, name: str, task: str) -> str:
        """Returns the option of conf/model/ that `model.name=NAME` means where no model is chosen; empty if this class,
        which has a setting `name`, knows none.

        Args:
            name: as typed, perhaps misspelt.
            task: the option of conf/task/ that was typed, or "".
        """
        return ""

    @classmethod
    def hint_for(cls, word: str) -> str:
        """Returns a sentence that says what to type in place of `model=WORD` if this class, which has a setting `name`,
        knows the meaning; else empty."""
        return ""

    def input_shape(self, native: Shape) -> Shape:
        """Returns the (C, H, W) that the network wants for data whose own shape is `native`. Imports no MXNet."""
        return tuple(native)

    def build(self, num_classes: int, input_shape: Shape) -> gluon.Block:
        """Returns the network, uninitialized.

        Args:
            num_classes: length of the output vector.
            input_shape: (C, H, W) of one sample.
        """
        raise missing_method(self, "build")

    def build_filled(self, num_classes: int, **known: object) -> gluon.Block:
        """Returns the network for samples of a field by a model of no class of this field, uninitialized. A class or
        function of the user's own takes the arguments that it names (`CustomModel`).

        Args:
            num_classes: length of the output vector.
            known: what the signature says of samples, by the names in `Signature.known_names`.
        """
        raise ConfigError(
            f"model: {type(self).__name__} cannot be built from {', '.join(known)}, which this dataset gives. Derive "
            "it from the base class of the models of this field, or choose another dataset."
        )

    def set_initial_values(self, network: gluon.Block) -> None:
        """Sets parameters of the initialised network that do not start from `init`; by default none."""

    def require_known(self, names: Sequence[str]) -> None:
        """Checks that a user's own class or function needs no argument that is neither given nor known.

        Args:
            names: what the dataset's signature will say, see `build_filled`.

        Raises:
            ConfigError: it does.
        """


def missing_method(model: Model, method: str) -> ConfigError:
    """Returns the error for a class of the user's own that lacks a method which its base class declares."""
    name = f"{type(model).__module__}.{type(model).__qualname__}"
    return ConfigError(
        f"model: {name} has no method '{method}', which builds the network "
        "for this dataset. Write it, or choose another model or dataset."
    )
