"""Base of the descriptions of networks: weights, freezing, parameter groups, initialisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, Literal, Mapping, Optional, Sequence, Tuple

from mxtrain.dataset.recommendation.fields import RecommenderFields
from mxtrain.types import NonNegativeFloat, PathText, Shape, Shapes, Spec

if TYPE_CHECKING:
    from mxnet import gluon
    from mxnet.ndarray import NDArray

    from mxtrain.dataset.acting.policy import Actions

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

    Structural parameter names are those of `network.save_parameters`, e.g. `features.0.weight`; patterns are globs
    over them, in which `*` also matches dots.
    """

    reads: ClassVar[Tuple[str, ...]] = ("images",)
    """What it takes, as `gives` of datasets says: "images", "text", "numbers", "features", "interactions"; empty where
    only its code knows."""

    serves: ClassVar[Tuple[str, ...]] = ()
    """Names of the tasks that it is made for, the first of which is meant where only the model is named; empty: any."""

    num_token_types: ClassVar[int] = 2
    """Of a network for text: the token types that it knows, from 0."""

    reads_history: ClassVar[bool] = False
    """Of a network for recommendation: whether it takes the items that a user has, and how many these are, as third and
    fourth input."""

    weights: Optional[PathText] = None
    """Path of a `.params` file to start from (Gluon, GluonCV, or exported by Module); None starts from `init`."""
    freeze: List[str] = []
    """Patterns of parameters that stay as they are; a BatchNorm whose statistics are matched keeps them too."""
    param_groups: List[ParamGroup] = []
    """Learning rates and weight decays of their own; where several patterns match, the last one counts."""
    no_decay_norm_and_bias: bool = True
    """No weight decay for biases and for the scale and shift of normalisation layers."""
    init: Init = "xavier"
    """How weights are drawn where a layer has no initializer of its own; `default` is Gluon's Uniform(0.07)."""

    @property
    def usual_side(self) -> Optional[int]:
        """The side in pixels of the pictures that it was published for, which `image_size=auto` of files of any size
        means; None where there is none."""
        return None

    @property
    def num_auxiliary(self) -> int:
        """How many further outputs the network returns, each like the first, which only train: a task weighs their
        loss."""
        return 0

    @property
    def state_shapes(self) -> Sequence[Shape]:
        """What the network carries from each batch to the next, for one row of it: shapes of its last inputs, which are
        those of its last outputs. Empty: nothing, as most networks."""
        return ()

    @property
    def classes_in_weights(self) -> Sequence[str]:
        """The classes that the file in `weights` knows, in the order of its scores; empty: nothing is said of them."""
        return ()

    def input_shape(self, native: Shape) -> Shape:
        """The (C, H, W) that the network wants for data whose own shape is `native`. Imports no MXNet."""
        return tuple(native)

    def count_scores(self, frames: int) -> Optional[int]:
        """The count of scores of a network that scores characters along frames, (B, T, F) and numbers of frames (B,) to
        (B, T', K): T' for a sample of T frames; None where only its code knows. Imports no MXNet."""
        return None

    def build(self, num_classes: int, input_shape: Shape) -> gluon.Block:
        """The network, uninitialised.

        Args:
            num_classes: length of the output vector.
            input_shape: (C, H, W) of one sample.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how to build its network")

    def build_policy(self, actions: Actions, input_shape: Shape) -> gluon.Block:
        """The network that acts, uninitialised: (B, ...) to (B, O), see `dataset.acting.policy`. By default the network
        for O numbers.

        Args:
            actions: what it may do.
            input_shape: of one observation.
        """
        return self.build(actions.num_outputs, input_shape)

    def build_text(self, num_classes: int, input_shape: Shapes, vocab_size: int) -> gluon.Block:
        """The network for text, uninitialised. It takes tokens, token types (B, T) and valid lengths (B,).

        Args:
            num_classes: length of the output vector.
            input_shape: of each input of one sample, T being the longest; a fourth is that of masked positions, (M,),
                for which the network returns (B, M, num_classes).
            vocab_size: tokens are from 0 to this.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how to build its network for text")

    def build_tagger(self, num_classes: int, input_shape: Shapes, vocab_size: int) -> gluon.Block:
        """The network for text that scores each token, (B, T, num_classes), uninitialised; arguments as of
        `build_text`, which a class of the user's own may have alone."""
        return self.build_text(num_classes, input_shape, vocab_size)

    def build_translator(
        self, num_classes: int, input_shape: Shapes, vocab_size: int, is_joint: bool
    ) -> gluon.Block:  # fmt: skip
        """The network that translates, uninitialised. It takes a source (B, S), its lengths (B,), a target (B, T) and
        the tokens that follow in it (B, T), and returns -log p of each and the mean of -log p over the vocabulary.

        Args:
            num_classes: tokens of the target's vocabulary.
            input_shape: of each input of one sample, S and T being the longest.
            vocab_size: tokens of the source's vocabulary.
            is_joint: whether both are one.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how to build a network that translates")

    def build_features(self, num_classes: int, field_sizes: Sequence[int], num_numbers: int) -> gluon.Block:
        """The network for features of a table, uninitialised. It takes ids (B, F) int32 and numbers (B, N) float32;
        where F or N is 0, only the other.

        Args:
            num_classes: length of the output vector.
            field_sizes: how many ids each of the F fields has; they are ids of one joined table, in which those of a
                field begin at the sum of the sizes of the fields before it.
            num_numbers: N.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how to build its network for features")

    def build_indexed(self, num_classes: int, num_indices: int) -> gluon.Block:
        """The network for features by index, as in libsvm's files, uninitialised. It takes ids (B, L) int32 and their
        values (B, L) float32, which are 0 behind a row's last one.

        Args:
            num_classes: length of the output vector.
            num_indices: ids are from 0 to this.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how to build its network for indexed features")

    def build_recommender(self, num_users: int, num_items: int, mean: float) -> gluon.Block:
        """The network for recommendation, uninitialised. It takes users (B,), candidates (B, C) and, where
        `reads_history`, the items that each user has, (B, H), all int32, and how many these are, (B,); it returns
        (B, C).

        By default it is that of `build_feature_recommender`, of no features but user and item.

        Args:
            num_users: users are from 0 to this.
            num_items: items are from 0 to this.
            mean: of ratings in training; 0 where there are none.
        """
        return self.build_feature_recommender(RecommenderFields((num_users,), (num_items,)))

    def build_feature_recommender(self, fields: RecommenderFields) -> gluon.Block:
        """The network for recommendation where users and items are rows of features, uninitialised. It takes ids (B, K)
        int32 of one joined table, those of the user and then those of each of C candidates; where there are numbers,
        these, (B, C N) float32, of each candidate the user's and its own; and returns (B, C).

        Args:
            fields: of users and items, whose first are user and item themselves.
        """
        from mxtrain.model.networks.recommendation import FeatureScores

        return FeatureScores(self.build_features(1, fields.sizes, fields.num_numbers), fields, prefix="")

    @property
    def recommends_by_features(self) -> bool:
        """Whether its network for recommendation is that of `build_feature_recommender`."""
        return type(self).build_recommender is Model.build_recommender

    def score_all(self, values: Mapping[str, NDArray], inputs: Sequence[NDArray]) -> Optional[NDArray]:
        """The scores of all items for users, (B, I), where the network has a faster way to them than to score each as
        a candidate; None where it has not.

        Args:
            values: parameters by structural name, in float32.
            inputs: users (B,) and, where `reads_history`, the items that each has (B, H) and how many, (B,), on their
                device.
        """
        return None
