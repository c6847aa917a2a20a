"""Base class of network descriptions: weights, freezing, parameter groups, initialisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Collection, Dict, List, Literal, Mapping, Optional, Sequence, Union

import pydantic
from typing_extensions import Self

from mxtrain.errors import ConfigError
from mxtrain.model.lora import Lora
from mxtrain.model.published import require_published
from mxtrain.types import NonNegativeFloat, PathText, Positive, ProperFraction, Shape, Spec
from mxtrain.types.kinds import Images, Takes

if TYPE_CHECKING:
    from mxnet import gluon

Init = Literal["xavier", "msra", "orthogonal", "normal", "default"]


class ParamGroup(Spec):
    """Parameters with their own learning rate and weight decay. With `lr_mult` 0 they stay fixed, but their gradients
    are still computed."""

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

    takes: ClassVar[Takes] = Takes(Images)
    """Kinds of samples that the network accepts and of targets that it predicts; without a kind of either, any. The
    first kind of target decides the task if only the model is chosen."""

    loss_option: ClassVar[str] = ""
    """Option of conf/loss/ with the loss for its outputs, if only one fits; empty: any for its targets."""

    weights: Optional[PathText] = None
    """Initial weights: path of a `.params` file (Gluon, GluonCV, or exported by Module), or of a `.safetensors` file of
    transformers, timm or torchvision, or its folder; hf:ORG/NAME = such a file of the Hugging Face Hub; pretrained =
    the weights that GluonCV or GluonNLP publishes for this network; gluoncv:NAME or gluonnlp:NAME = published weights
    of another network. Published files are read from $MXNET_HOME/models (default: ~/.mxnet/models), or downloaded into
    it. None starts from `init`."""
    freeze: List[str] = []
    """Patterns of parameters that stay as they are, e.g. ["features.*"]; a BatchNorm whose statistics are matched keeps
    them too."""
    freeze_batch_norm: Union[bool, Literal["statistics"]] = False
    """true = all batch norms normalise by their moving statistics, which stay, and so do scale and shift; statistics =
    scale and shift are trained."""
    layer_decay: Optional[ProperFraction] = None
    """Factor of the learning rate from one numbered layer to the one before, e.g. 0.9: a layer of a pretrained network
    changes less, the nearer it is to the input. null = all layers have the same rate."""
    lora: Lora = Lora()
    """Low-rank additions that are trained in place of the weights."""
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
        elif self.lora.adapter is not None:
            raise ValueError(
                f"lora.adapter={self.lora.adapter} adds to the weights that it was trained on. Name their file by "
                "model.weights="
            )
        return self

    @property
    def published_name(self) -> str:
        """Returns the name of the weights for `weights=pretrained`, e.g. gluoncv:resnet18_v1; empty if none exist."""
        return ""

    def for_trained_weights(self) -> Self:
        """Returns the description for weights of a checkpoint, to which the additions of LoRA are merged: no weights
        are read, nothing is frozen."""
        return self.model_copy(
            update={"weights": None, "freeze": [], "freeze_batch_norm": False, "layer_decay": None, "lora": Lora()}
        )

    def for_resumed_weights(self) -> Self:
        """Returns the description for a run that a checkpoint continues: files of initial values that the checkpoint
        replaces are not read. `weights` stays, as the additions of LoRA depend on it."""
        return self.model_copy(update={"lora": self.lora.model_copy(update={"adapter": None})})

    def require_files(self) -> None:
        """Checks the files of initial values before the data are opened, which may take minutes.

        Raises:
            WeightsError, DataError, ConfigError: a file is missing, or does not fit.
        """
        if self.weights:
            from mxtrain.model.weights_files import find_weights

            find_weights(self.weights, self.published_name)
        if self.lora.adapter is not None:
            from mxtrain.model.foreign.peft import read_adapter

            read_adapter(self.lora.adapter).require_settings(self.lora)

    @property
    def usual_side(self) -> Optional[int]:
        """Returns the image side in pixels for which the network was published; None if there is none.

        `image_size=auto` uses it for images of varying size.
        """
        return None

    @property
    def num_auxiliary(self) -> int:
        """Returns the number of auxiliary outputs, which are only used in training and have the shape of the first."""
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

    @property
    def recorded(self) -> Mapping[str, object]:
        """Returns settings with the contents of files that the network is built from. A checkpoint keeps them, so that
        it needs no other file."""
        return {}

    @property
    def takes_pixels(self) -> bool:
        """Returns True if the network itself normalises images: it takes pixels from 0 to 255."""
        return False

    @classmethod
    def option_of(cls, name: str, task: str) -> str:
        """Returns the option of conf/model/ for `model.name=NAME` without a model; empty if this class has none.

        Args:
            name: name as the user gave it, possibly misspelled.
            task: option of conf/task/ that the user gave; empty if none.
        """
        return ""

    @classmethod
    def hint_for(cls, word: str) -> str:
        """Returns advice on what to type instead of `model=WORD`; empty if this class does not know the word."""
        return ""

    def input_shape(self, native: Shape) -> Shape:
        """Returns the input shape (C, H, W) of the network for samples of shape `native`. Does not import MXNet."""
        return tuple(native)

    def build(self, num_classes: int, input_shape: Shape) -> gluon.Block:
        """Returns the network, uninitialized.

        Args:
            num_classes: length of the output vector.
            input_shape: (C, H, W) of one sample.
        """
        raise missing_method(self, "build")

    def build_filled(self, num_classes: int, **known: object) -> gluon.Block:
        """Returns the uninitialized network for a dataset whose field this class does not belong to.

        `CustomModel` passes the arguments that the user's class or function declares; other classes raise an error.

        Args:
            num_classes: length of the output vector.
            known: facts about the samples from the signature, by the names in `Signature.known_names`.
        """
        raise ConfigError(
            f"model: {type(self).__name__} cannot be built from {', '.join(known)}, which this dataset gives. Derive "
            "it from the base class of the models of this field, or choose another dataset."
        )

    def valued_parameters(self) -> Collection[str]:
        """Returns the structural names of the parameters that `set_initial_values` sets."""
        return ()

    def set_initial_values(self, network: gluon.Block) -> None:
        """Sets parameters of the initialised network that have other initial values than `init`; by default none."""

    def require_known(self, names: Sequence[str]) -> None:
        """Checks that all arguments of a user's class or function are set or known from the dataset.

        Args:
            names: names of the arguments that the dataset's signature provides, see `build_filled`.

        Raises:
            ConfigError: an argument is missing.
        """


def missing_method(model: Model, method: str) -> ConfigError:
    """Returns the error for a user-defined class without a required method."""
    name = f"{type(model).__module__}.{type(model).__qualname__}"
    return ConfigError(
        f"model: {name} has no method '{method}', which builds the network "
        "for this dataset. Write it, or choose another model or dataset."
    )
