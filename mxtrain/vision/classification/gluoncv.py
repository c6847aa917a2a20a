"""GluonCV's classification networks, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, ClassVar, Dict, Mapping, Sequence, TypeVar

import pydantic

from mxtrain.errors import ConfigError, nearest
from mxtrain.model.spec import Model
from mxtrain.types import Shape
from mxtrain.types.kinds import ClassIndex, ClassSet, Images, Number, Takes
from mxtrain.vision.kinds import Identity
from mxtrain.vision.networks.gluoncv_names import CLASSIFICATION_NAMES, gluoncv_name, sizes_of

if TYPE_CHECKING:
    from mxnet import gluon

T = TypeVar("T")

EXCLUDED_OPTIONS = {
    "classes": "the number of classes comes from the dataset",
    "num_classes": "the number of classes comes from the dataset",
    "ctx": "devices are set by parallel.devices",
    "root": "the folder is models/ in the one that the variable MXNET_HOME names",
}
"""Arguments of GluonCV's functions that other settings define -> reason."""


def no_such_network(kind: str, name: str, known: Sequence[str]) -> str:
    """Returns the message for a name that GluonCV does not have.

    Args:
        kind: kind of networks, such as "classification".
        name: the unknown name.
        known: names of networks of this kind.
    """
    near = " or ".join(f"'{candidate}'" for candidate in nearest(name, known, 3))
    hint = f" Did you mean {near}?" if near else ""
    return f"GluonCV has no {kind} network '{name}'.{hint} There are {len(known)}: {', '.join(known)}"


class GluonCVModel(Model):
    """Base class of GluonCV's networks: passes `options` on, and converts errors to messages that say what to type."""

    excluded_options: ClassVar[Mapping[str, str]] = EXCLUDED_OPTIONS
    """Arguments of GluonCV's functions that must not be in `options` -> reason."""

    name: str
    options: Dict[str, Any] = {}

    @property
    def published_name(self) -> str:
        """Returns the name under which GluonCV publishes weights."""
        return f"gluoncv:{self.name}"

    @pydantic.field_validator("options")
    @classmethod
    def _free_options(cls, options: Dict[str, Any]) -> Dict[str, Any]:
        for key in options:
            if key in cls.excluded_options:
                reason = cls.excluded_options[key]
                raise ValueError(f"'{key}' is not an option here: {reason}. Remove model.options.{key}")
            if key.startswith("pretrained") and options[key]:
                raise ValueError(
                    f"pretrained weights are not an option. Remove model.options.{key} and type "
                    "model.weights=pretrained, model.weights=gluoncv:NAME or model.weights=PATH"
                )
        return options

    def _built(self, name: str, build: Callable[[], T]) -> T:
        """Calls `build`, and converts its exceptions.

        Args:
            name: name of the network, for messages.
            build: function that builds the network.

        Raises:
            ConfigError: GluonCV is not installed, or rejects an option; the message says what to type.
        """
        try:
            return build()
        except ImportError as error:
            raise ConfigError(
                f"GluonCV's {name} needs the package gluoncv, which cannot be imported ({error}). Type pip install "
                "gluoncv 'numpy<1.24', or choose another model, e.g. model=resnet."
            ) from error
        except (TypeError, ValueError, KeyError, AssertionError) as error:
            if not self.options:
                raise
            raise ConfigError(
                f"model.options={dict(self.options)}: GluonCV's {name} refuses them: {error}. Remove or correct "
                "the option, e.g. model.options={}."
            ) from error


class GluonCV(GluonCVModel):
    """A network of GluonCV's model zoo; its parameter names are GluonCV's, so weights can be exchanged.

    `weights=pretrained` starts from the weights that GluonCV publishes.
    """

    takes: ClassVar[Takes] = Takes(Images, ClassIndex, ClassSet, Number, Identity)

    name: str = "resnet18_v1"
    """GluonCV's name, e.g. resnet50_v1b, mobilenetv3_small, cifar_resnet20_v1, densenet121."""
    options: Dict[str, Any] = {}
    """Further arguments of GluonCV's function of that name, e.g. {thumbnail: true} for resnet18_v1."""

    @classmethod
    def hint_for(cls, word: str) -> str:
        """Returns the hint for a model name that is one of GluonCV's networks, or one of their families."""
        name = gluoncv_name(word)
        return f"It is one of GluonCV's networks: write model.name={name}." if name else ""

    @pydantic.field_validator("name")
    @classmethod
    def _known_name(cls, name: str) -> str:
        if name not in CLASSIFICATION_NAMES:
            raise ValueError(no_such_network("classification", name, CLASSIFICATION_NAMES))
        return name

    def input_shape(self, native: Shape) -> Shape:
        """Returns three channels, and the size of the dataset, rounded up to a multiple that the network accepts; or
        the usual size of the network, if that of the dataset is too small or cannot be chosen."""
        sizes = sizes_of(self.name)
        height, width = native[-2:]
        if sizes.is_fixed or min(height, width) < sizes.minimum or height == width == sizes.usual:
            return (3, sizes.usual, sizes.usual)
        return (3, *(-(-side // sizes.multiple) * sizes.multiple for side in (height, width)))

    def build(self, num_classes: int, input_shape: Shape) -> gluon.HybridBlock:
        """Returns the network, uninitialized.

        Raises:
            ConfigError: GluonCV is not installed, or refuses an option.
        """

        def build() -> gluon.HybridBlock:
            from mxtrain.vision.networks import gluoncv as gluoncv_zoo

            return gluoncv_zoo.build(self.name, num_classes, dict(self.options))

        return self._built(self.name, build)
