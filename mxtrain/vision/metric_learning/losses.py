"""Losses of metric learning: softmax losses of cosines with a margin, and the triplet loss. Does not import MXNet.

The losses of cosines compare an embedding with a centre of each identity, which is a parameter of the network; the
triplet loss compares the embeddings of a batch with each other.

Legend: B batch, D embedding size, K identities.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal, Sequence, Tuple

import pydantic
from typing_extensions import Annotated

from mxtrain.loss.spec import FunctionLoss
from mxtrain.task.needs import WHOLE_BATCH
from mxtrain.types import NonNegativeFloat, Positive, PositiveFloat
from mxtrain.types.kinds import Takes
from mxtrain.vision.kinds import Identity

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule

MIN_SQUARE = 1e-7
"""Lower limit of arguments of square roots, whose derivative at 0 is infinite. It is about the rounding error of a
squared cosine in float32."""
FARTHEST, NEAREST = 8.0, -1.0
"""Values above and below all squared distances of two vectors of length 1, which are between 0 and 4."""
Angle = Annotated[float, pydantic.Field(ge=0.0, lt=math.pi)]


class EmbeddingLoss(FunctionLoss):
    """Base class of the losses of embeddings."""

    takes: ClassVar[Takes] = Takes(Identity)
    uses_centres: ClassVar[bool] = True
    """True: `compute` takes cosines with the centres (B, K); False: embeddings of length 1 (B, D)."""
    if TYPE_CHECKING:

        @property
        def sub_centres(self) -> int:
            """Returns the number of centres of each identity."""

    @pydantic.model_validator(mode="after")
    def _check_unsmoothed(self) -> EmbeddingLoss:
        self.require_unsmoothed()
        return self

    def used(self, *arrays: Array) -> Sequence[Array]:
        """Returns the cosines, or the embeddings of losses without centres, and the identities."""
        *outputs, class_B = arrays
        return outputs[-1 if self.uses_centres else 0], class_B


class CosineLoss(EmbeddingLoss):
    """Base class of the losses of cosines: the cross entropy of softmax(scale * cosine), in which the cosine with the
    own centre is replaced by `with_margin` of it."""

    scale: PositiveFloat = 64.0
    """Factor of the cosines before the softmax, the inverse of a temperature."""
    sub_centres: Positive = 1
    """Number of centres of each identity, of which the nearest one counts; with several, images with wrong labels
    gather at other centres."""

    def with_margin(self, F: OperatorModule, cosine_B1: Array) -> Array:
        """Returns the function of the cosine with the own centre, (B, 1)."""
        raise NotImplementedError

    def compute(self, F: OperatorModule, cosine_BK: Array, class_B: Array) -> Array:
        """Returns the loss, (B,), of cosines and class indices from 0 to K - 1."""
        own_B1 = F.pick(cosine_BK, class_B, axis=1, keepdims=True)
        change_B1 = self.with_margin(F, own_B1) - own_B1
        logits_BK = self.scale * (cosine_BK + F.broadcast_mul(_one_hot(F, cosine_BK, class_B), change_B1))
        return -F.pick(F.log_softmax(logits_BK), class_B, axis=1)


class ArcFace(CosineLoss):
    """ArcFace: cos(angle + margin) of the angle to the own centre.

    With a cosine margin, too, it is insightface's combined margin, cos(angle + margin) - cosine_margin.

    Source: Deng et al., "ArcFace" (2019), arXiv 1801.07698, equations 3 and 4. Gradients are those of the formula, as
    in insightface's MXNet code; its PyTorch code (losses.py) instead passes the gradient of the changed cosine on to
    the cosine itself.
    """

    margin: Angle = 0.5
    """Angle in radians that is added to that of the own centre, below pi."""
    form: Literal["monotone", "plain", "easy"] = "monotone"
    """Large angles: plain = the formula for all, as in insightface's code, which rises again where angle + margin
    exceeds pi; monotone = cos(angle) - margin * sin(margin) there; easy = no margin for angles above 90 degrees
    (easy_margin)."""
    cosine_margin: NonNegativeFloat = 0.0
    """Subtracted from the cosine, too, as CosFace does."""

    def with_margin(self, F: OperatorModule, cosine_B1: Array) -> Array:
        # A cosine may exceed 1 by a rounding error, which would make the argument of the root negative.
        sine_B1 = F.sqrt(F.maximum(1 - F.square(cosine_B1), MIN_SQUARE))
        result_B1 = cosine_B1 * math.cos(self.margin) - sine_B1 * math.sin(self.margin)
        if self.form == "easy":
            result_B1 = F.where(cosine_B1 > 0, result_B1, cosine_B1)
        elif self.form == "monotone":
            below_pi_B1 = cosine_B1 > math.cos(math.pi - self.margin)
            result_B1 = F.where(below_pi_B1, result_B1, cosine_B1 - self.margin * math.sin(self.margin))
        return result_B1 - self.cosine_margin


class SubCentreArcFace(ArcFace):
    """ArcFace with several centres of each identity, so that images with wrong labels gather at other centres.

    Source: Deng et al., "Sub-center ArcFace" (ECCV 2020), section 3.3.
    """

    sub_centres: Positive = 3
    """Centres of each identity, of which the nearest one counts."""


class CosFace(CosineLoss):
    """CosFace: the cosine with the own centre minus a margin.

    Source: Wang et al., "CosFace" (2018), arXiv 1801.09414, equation 4.
    """

    margin: NonNegativeFloat = 0.35
    """Subtracted from the cosine with the own centre."""

    def with_margin(self, F: OperatorModule, cosine_B1: Array) -> Array:
        return cosine_B1 - self.margin


class Triplet(EmbeddingLoss):
    """Triplet loss with the hardest pairs of the batch: for each sample, max(0, margin + distance to the farthest
    sample of its identity - distance to the nearest one of another).

    It is the mean over the samples of the global batch that have both. Batches need several images of each identity.

    Source: Hermans et al., "In Defense of the Triplet Loss" (2017), arXiv 1703.07737, equation 5; squared distances as
    in Schroff et al., "FaceNet" (2015), arXiv 1503.03832, equation 3.
    """

    needs: ClassVar[Tuple[str, ...]] = (WHOLE_BATCH,)
    uses_centres: ClassVar[bool] = False
    weighted: ClassVar[bool] = True
    least_weight: ClassVar[float] = 1.0

    margin: PositiveFloat = 0.3
    """Difference of the two distances from which the loss is 0; embeddings have length 1."""
    squared: bool = False
    """Compare squared distances, as FaceNet and insightface do."""

    @property
    def sub_centres(self) -> int:
        return 1

    def compute(self, F: OperatorModule, embedding_BD: Array, class_B: Array) -> Tuple[Array, Array]:
        """Returns the loss and the weight, (B,), of embeddings of length 1."""
        distance_BB = 2 - 2 * F.dot(embedding_BD, embedding_BD, transpose_b=True)
        same_BB = _equal(F, class_B, class_B)
        position_B = F.contrib.arange_like(class_B)
        positive_BB = same_BB - _equal(F, position_B, position_B)
        farthest_B = F.argmax(F.where(positive_BB, distance_BB, F.zeros_like(same_BB) + NEAREST), axis=1)
        nearest_B = F.argmin(F.where(same_BB, F.zeros_like(same_BB) + FARTHEST, distance_BB), axis=1)
        # `pick` gives the gradient to one sample; that of `max` would go to all of several equal ones.
        positive_B, negative_B = (F.pick(distance_BB, index_B, axis=1) for index_B in (farthest_B, nearest_B))
        if not self.squared:
            positive_B, negative_B = (F.sqrt(F.maximum(each, MIN_SQUARE)) for each in (positive_B, negative_B))
        weight_B = (F.max(positive_BB, axis=1) > 0) * (F.min(same_BB, axis=1) < 1)
        return weight_B * F.maximum(self.margin + positive_B - negative_B, 0), weight_B


def _equal(F: OperatorModule, row_B: Array, column_K: Array) -> Array:
    """Returns (B, K): 1 where entries are equal, else 0."""
    return F.broadcast_equal(F.reshape(row_B, shape=(-1, 1)), F.reshape(column_K, shape=(1, -1)))


def _one_hot(F: OperatorModule, cosine_BK: Array, class_B: Array) -> Array:
    """Returns the one-hot encoding of the classes, (B, K). K is that of the array, because the cosines may be those of
    a sample of the centres."""
    return _equal(F, class_B, F.contrib.arange_like(cosine_BK, axis=1))
