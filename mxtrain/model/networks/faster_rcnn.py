"""Faster R-CNN as a Gluon block, on one map or on a feature pyramid. Imports MXNet.

GluonCV's own takes one size of batch, draws from the device's generator, and adds up memory that nothing wrote where
regions are of another map or fewer than it expects. Blocks and parameters here have the names of GluonCV's, so files
can be exchanged; what is computed between them is ours.

Legend: B batch, M true boxes of a picture, N anchors of a picture, A anchors of a place, P proposals, R regions,
C = P + M candidates of the sample of regions (after B only; else channels), Q = B R regions of the batch, K classes,
h, w height and width of a map. Edges are left, top, right, bottom in pixels of what enters the network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, List, Mapping, Optional, Sequence, Tuple

from mxtrain.dataset.image.box_arithmetic import (
    REGION_IOU,
    apply_offsets,
    columns_of,
    is_thing,
    match_boxes,
    sampling_keys,
    take_rows,
)
from mxtrain.engine.backend import gluon, mx, own_operators
from mxtrain.model.detection.regions import PROPOSAL_VARIANCES
from mxtrain.model.networks import fused
from mxtrain.model.networks.two_forms import TwoForms
from mxtrain.model.weights import ClassRows

if TYPE_CHECKING:
    from mxtrain.annotations import Array, OperatorModule
    from mxtrain.model.detection.regions import ProposalSettings, RegionAnchors

nn = gluon.nn
NO_PROPOSAL = -1e30
"""The score of a proposal that is dropped: no map gives a lower one."""
CANONICAL_SIDE, CANONICAL_STRIDE = 224.0, 16
"""A region of this side in pixels is read from the map of this stride, one of half the side from the map of half the
stride. Source: Lin et al., "Feature Pyramid Networks for Object Detection" (2017), equation 1."""
SAMPLES_PER_CELL_SIDE = 2
"""Points along each side of a region's cell at which RoIAlign reads a map."""


@dataclass(frozen=True)
class TwoStageBlocks:
    """The blocks that GluonCV's network consists of, uninitialised.

    Attributes:
        features: from pictures to one map, or to several.
        region_features: from the regions as RoIAlign reads them (B R, C, side, side) to what all branches share (a mask
            branch reads it, too); None: that is what was read.
        box_features: from what is shared to features (B R, units) of classes and boxes; None: the mean over places.
        region_side: cells along each side that RoIAlign divides a region into.
        channels: of the hidden layer of the region proposal network.
        backbone_names: full name of a parameter of the backbone -> its name in a file of the backbone alone.
    """

    features: gluon.HybridBlock
    region_features: Optional[gluon.HybridBlock]
    box_features: Optional[gluon.HybridBlock]
    region_side: int
    channels: int
    backbone_names: Mapping[str, str]


class AnchorGrid(gluon.HybridBlock):
    """A map (B, C, h, w) to the edges of its anchors (1, h w A, 4).

    Args:
        boxes: the anchors of the map.
        alloc: places along each side that the array of anchors has at least: as many as in GluonCV's files.
    """

    def __init__(self, boxes: RegionAnchors, alloc: int, **kwargs):
        super().__init__(**kwargs)
        side = max(alloc, boxes.height, boxes.width)
        with self.name_scope():
            self.anchors = self.params.get_constant("anchor_", boxes.grid(side, side).reshape(1, 1, side, side, -1))

    def hybrid_forward(self, F, x, anchors):
        return F.reshape(F.slice_like(anchors, x, axes=(2, 3)), shape=(1, -1, 4))


class ProposalHead(gluon.HybridBlock):
    """The region proposal network of a map (B, C, h, w): whether each anchor holds a thing, before the sigmoid
    (B, h w A), and offsets to it (B, h w A, 4).

    Args:
        channels: of the hidden layer.
        num_shapes: A.
    """

    def __init__(self, channels: int, num_shapes: int, **kwargs):
        super().__init__(**kwargs)
        normal = {"weight_initializer": mx.init.Normal(0.01)}
        with self.name_scope():
            self.conv1 = nn.HybridSequential()
            self.conv1.add(nn.Conv2D(channels, 3, padding=1, **normal), nn.Activation("relu"))
            self.score = nn.Conv2D(num_shapes, 1, **normal)
            self.loc = nn.Conv2D(num_shapes * 4, 1, **normal)

    def proposed(self, F: OperatorModule, x: Array) -> Tuple[Array, Array]:
        """Scores and offsets of a map's anchors."""
        x = self.conv1(x)
        score, offset = (F.transpose(layer(x), axes=(0, 2, 3, 1)) for layer in (self.score, self.loc))
        return F.reshape(score, shape=(0, -1)), F.reshape(offset, shape=(0, -1, 4))

    def hybrid_forward(self, F, x):
        return self.proposed(F, x)


class SingleMapProposals(ProposalHead):
    """One map to scores (B, N), offsets (B, N, 4) and the anchors that these are of (1, N, 4).

    Args:
        boxes: the anchors of the map.
        channels: see `ProposalHead`.
        alloc: see `AnchorGrid`.
    """

    def __init__(self, boxes: RegionAnchors, channels: int, alloc: int, **kwargs):
        super().__init__(channels, boxes.num_shapes, **kwargs)
        with self.name_scope():
            self.anchor_generator = AnchorGrid(boxes, alloc)

    def hybrid_forward(self, F, x):
        return (*self.proposed(F, x), self.anchor_generator(x))


class PyramidProposals(gluon.HybridBlock):
    """Several maps to scores (B, N), offsets (B, N, 4) and anchors (1, N, 4), with one head for all maps.

    Args:
        maps: the anchors of each map, the finest first.
        channels: see `ProposalHead`.
        alloc: see `AnchorGrid`; of the finest map, halved from map to map.
    """

    LEAST_KEPT = 16

    def __init__(self, maps: Sequence[RegionAnchors], channels: int, alloc: int, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.anchor_generator = nn.HybridSequential()
            for one in maps:
                self.anchor_generator.add(AnchorGrid(one, alloc))
                alloc = max(alloc // 2, self.LEAST_KEPT)
            self.rpn_head = ProposalHead(channels, maps[0].num_shapes)

    def hybrid_forward(self, F, *maps):
        found = [(*self.rpn_head(one), boxes(one)) for one, boxes in zip(maps, self.anchor_generator)]
        return tuple(F.concat(*arrays, dim=1) for arrays in zip(*found))


class TwoStageNetwork(TwoForms):
    """Pictures (B, 3, H, W) to the outputs of `RegionCoding`; in prediction regions are the proposals with the highest
    scores.

    In training it also takes true boxes (B, M, D) and random numbers from 0 to 1 (B, P + M); regions are then a sample
    of the proposals and of the true boxes. No gradient goes through the edges of regions.

    Args:
        parts: its blocks.
        num_classes: K.
        picture: height and width of pictures in pixels.
        maps: the anchors of each map, the finest first.
        settings: which proposals become regions.
        alloc: see `AnchorGrid`.
    """

    def __init__(
        self, parts: TwoStageBlocks, num_classes: int, picture: Tuple[int, int], maps: Sequence[RegionAnchors],
        settings: ProposalSettings, alloc: int, **kwargs,
    ):  # fmt: skip
        super().__init__(**kwargs)
        self._settings, self._picture, self._num_classes = settings, picture, num_classes
        self._region_side, self._strides = parts.region_side, [one.stride for one in maps]
        self._sizes = [(one.height, one.width) for one in maps]
        self._num_anchors = sum(one.height * one.width * one.num_shapes for one in maps)
        self._train_post_nms, self._post_nms = settings.num_proposals(self._num_anchors)
        self._num_samples, self._max_positives = settings.sampled(self._num_anchors)
        is_pyramid = len(maps) > 1
        with self.name_scope():
            self.features = parts.features
            self.top_features = parts.region_features
            self.box_features = parts.box_features
            self.class_predictor = nn.Dense(1 + num_classes, weight_initializer=mx.init.Normal(0.01))
            self.box_predictor = nn.Dense(4 * num_classes, weight_initializer=mx.init.Normal(0.001))
            self.rpn = (
                PyramidProposals(maps, parts.channels, alloc) if is_pyramid
                else SingleMapProposals(maps[0], parts.channels, alloc)
            )  # fmt: skip
        self.class_heads = {"class_predictor": ClassRows(1, 1), "box_predictor": ClassRows(1, 0, per_class=4)}
        generators = [f".{number}" for number in range(len(maps))] if is_pyramid else [""]
        self.computed = tuple(f"rpn.anchor_generator{one}.anchors" for one in generators)
        names = {parameter.name: name for name, parameter in self._collect_params_with_prefix().items()}
        self.backbone_names = {
            names[full]: name for full, name in parts.backbone_names.items() if full in names
        }  # fmt: skip
        self._mark_stages()

    def _mark_stages(self) -> None:
        """Where a pipeline may cut: among features, and before what is made of them and of each region."""
        if isinstance(self.features, nn.HybridSequential):
            for layer in list(self.features._children.values())[1:]:
                if isinstance(layer, nn.HybridSequential):
                    layer.begins_stage = True
        for layer in (self.box_features, self.top_features):
            if layer is not None:
                layer.begins_stage = True
        self.rpn.begins_stage = True

    def predict_forward(self, F, x):
        """See `TwoForms`."""
        maps, score_BN, offset_BN4, anchor_1N4 = self._extract(F, x)
        settings = self._settings
        region_BR5 = self._propose(F, score_BN, offset_BN4, anchor_1N4, settings.pre_nms, self._post_nms)
        seen = self._features_of(F, maps, columns_of(F, region_BR5, 0, 4), self._post_nms)
        judged = (region_BR5, *self._predict_regions(F, seen, self._post_nms))
        return (score_BN, offset_BN4, *judged, *self._found(F, maps, judged))

    def train_forward(self, F, x, *known):
        """See `TwoForms`."""
        box_BMD, noise_BC = known
        maps, score_BN, offset_BN4, anchor_1N4 = self._extract(F, x)
        proposal_BP5 = self._propose(
            F, score_BN, offset_BN4, anchor_1N4, self._settings.train_pre_nms, self._train_post_nms
        )
        region_BR5 = self._sample(F, proposal_BP5, box_BMD, noise_BC)
        seen = self._features_of(F, maps, columns_of(F, region_BR5, 0, 4), self._num_samples)
        judged = (region_BR5, *self._predict_regions(F, seen, self._num_samples))
        return (score_BN, offset_BN4, *judged, *self._learned(F, seen, region_BR5, box_BMD))

    def _extract(self, F: OperatorModule, x: Array) -> Tuple[List[Array], Array, Array, Array]:
        """Maps of pictures; and scores (B, N), offsets (B, N, 4) and edges (1, N, 4) of anchors."""
        maps = self.features(x)
        maps = list(maps) if len(self._strides) > 1 else [maps]
        return (maps, *self.rpn(*maps))

    def _propose(
        self, F: OperatorModule, score_BN: Array, offset_BN4: Array, anchor_1N4: Array, pre_nms: int, post_nms: int
    ) -> Array:  # fmt: skip
        """The proposals with the highest scores that non-maximum suppression keeps: edges, and 1 for each,
        (B, post_nms, 5). Where there are fewer, the rest are the edges of the whole picture, and 0.

        Args:
            pre_nms: proposals that enter the suppression.
            post_nms: proposals that are kept.
        """
        settings, (height, width) = self._settings, self._picture
        score_BN, offset_BN4 = F.BlockGrad(score_BN), F.BlockGrad(offset_BN4)
        edge_BN4 = F.relu(
            apply_offsets(F, F.BlockGrad(anchor_1N4), offset_BN4, PROPOSAL_VARIANCES, settings.max_log_scale)
        )
        sides = F.split(edge_BN4, 4, axis=2)
        left, top, right, bottom = (F.clip(side, 0, most) for side, most in zip(sides, (width, height) * 2))
        # GluonCV's boxes end with their last pixel, so their sides are one longer.
        is_large_BN1 = (right - left + 1 >= settings.min_size) * (bottom - top + 1 >= settings.min_size)
        score_BN1 = F.where(is_large_BN1, F.expand_dims(score_BN, axis=2), F.ones_like(is_large_BN1) * NO_PROPOSAL)
        row_BN5 = F.concat(score_BN1, left, top, right, bottom, dim=2)
        num_candidates = min(pre_nms, self._num_anchors)
        place_BT = F.topk(F.squeeze(score_BN1, axis=2), k=num_candidates, ret_typ="indices", axis=1, dtype="int32")
        found_BR5 = self._suppress(F, take_rows(F, row_BN5, place_BT), num_candidates, post_nms)
        left, top, right, bottom = F.split(columns_of(F, found_BR5, 1, None), 4, axis=2)
        is_found_BR1 = left >= 0  # box_nms writes -1 into all columns of what it suppresses
        whole = (F.ones_like(right) * width, F.ones_like(bottom) * height)
        right, bottom = (F.where(is_found_BR1, side, most) for side, most in zip((right, bottom), whole))
        return F.BlockGrad(F.concat(F.relu(left), F.relu(top), right, bottom, is_found_BR1, dim=2))

    def _suppress(self, F: OperatorModule, row_BT5: Array, num_candidates: int, post_nms: int) -> Array:
        """Of scores and edges in the order of the scores those that stay, (B, R, 5), and rows of -1."""
        if own_operators().path:
            return fused.suppression(
                F, row_BT5, num_candidates, min(post_nms, num_candidates), self._settings.nms_iou, NO_PROPOSAL / 2
            )
        found_BT5 = F.contrib.box_nms(
            row_BT5, overlap_thresh=self._settings.nms_iou, valid_thresh=NO_PROPOSAL / 2, topk=-1, coord_start=1,
            score_index=0, id_index=-1, force_suppress=True,
        )  # fmt: skip
        return F.slice_axis(found_BT5, axis=1, begin=0, end=post_nms)

    def _sample(self, F: OperatorModule, proposal_BP5: Array, box_BMD: Array, noise_BC: Array) -> Array:
        """Regions that are trained on, a sample of proposals and true boxes: edges, and 1 for those that count,
        (B, R, 5). Those with a thing come first, at most `self._max_positives` of them."""
        settings = self._settings
        thing_BM1 = F.expand_dims(is_thing(F, box_BMD), axis=2)
        region_BC5 = F.concat(proposal_BP5, F.concat(columns_of(F, box_BMD, 0, 4), thing_BM1, dim=2), dim=1)
        found = match_boxes(F, columns_of(F, region_BC5, 0, 4), box_BMD)
        counts_BC = F.squeeze(columns_of(F, region_BC5, 4, 5), axis=2)
        holds_BC = found.iou_BN >= REGION_IOU
        background_BC = counts_BC * (1 - holds_BC) * (1 - found.in_crowd_BN)
        key_BC = sampling_keys(
            F, counts_BC * holds_BC, background_BC, noise_BC, self._num_samples, settings.positive_fraction
        )  # fmt: skip
        key_BR, place_BR = F.topk(key_BC, k=self._num_samples, ret_typ="both", axis=1, dtype="int32")
        edge_BR4 = columns_of(F, take_rows(F, region_BC5, place_BR), 0, 4)
        return F.BlockGrad(F.concat(edge_BR4, F.expand_dims(key_BR > 0, axis=2), dim=2))

    def _found(self, F: OperatorModule, maps: Sequence[Array], judged: Sequence[Array]) -> Tuple[Array, ...]:
        """What a further head predicts of what is found.

        Args:
            judged: regions, their scores and their offsets.
        """
        return ()

    def _learned(self, F: OperatorModule, seen: Array, region_BR5: Array, box_BMD: Array) -> Tuple[Array, ...]:
        """What a further head says of a sample of regions, those with a thing first.

        Args:
            seen: see `_features_of`.
            region_BR5: the sample.
            box_BMD: true boxes.
        """
        return ()

    def _features_of(self, F: OperatorModule, maps: Sequence[Array], edge_BR4: Array, count: int) -> Array:
        """What all branches share of regions, `count` of each picture, (B R, C, h, w)."""
        x = self.align_regions(F, maps, edge_BR4, count, self._region_side)
        return x if self.top_features is None else self.top_features(x)

    def _predict_regions(self, F: OperatorModule, x: Array, count: int) -> Tuple[Array, Array]:
        """Scores before the softmax (B, R, 1 + K) and offsets (B, R, 4 K) of regions, `count` of each picture."""
        x = F.mean(x, axis=(2, 3)) if self.box_features is None else self.box_features(x)
        logit, offset = self.class_predictor(x), self.box_predictor(x)
        return tuple(F.reshape(one, shape=(-4, -1, count, 0)) for one in (logit, offset))

    def align_regions(
        self, F: OperatorModule, maps: Sequence[Array], edge_BR4: Array, count: int, side: int
    ) -> Array:  # fmt: skip
        """RoIAlign of regions, (B R, C, side, side): each is read from the map that its size asks for.

        Source: Lin et al., "Feature Pyramid Networks for Object Detection" (2017), equation 1.

        Args:
            maps: (B, C, h, w) each, the finest first.
            edge_BR4: edges of regions.
            count: R.
            side: cells along each side of a region.
        """
        edge_Q4 = F.reshape(edge_BR4, shape=(-3, 0))
        size_Q2 = columns_of(F, edge_Q4, 2, 4) - columns_of(F, edge_Q4, 0, 2) + 1
        num_levels = max(len(maps) - 1, 1)  # the coarsest of a pyramid only proposes
        level_Q = F.log2(F.sqrt(F.prod(size_Q2, axis=1)) / CANONICAL_SIDE + 1e-6)
        level_Q = F.floor(math.log2(CANONICAL_STRIDE / self._strides[0]) + level_Q)
        level_Q = F.clip(level_Q, 0, num_levels - 1)
        if own_operators().path:
            row_Q5 = F.concat(F.expand_dims(level_Q, axis=1), edge_Q4, dim=1)
            return fused.roi_align(
                F, maps[:num_levels], row_Q5, count, side, self._sizes[:num_levels], self._strides[:num_levels]
            )
        return self._align_each(F, maps[:num_levels], edge_BR4, level_Q, count, side)

    def _align_each(
        self, F: OperatorModule, maps: Sequence[Array], edge_BR4: Array, level_Q: Array, count: int, side: int
    ) -> Array:  # fmt: skip
        """`align_regions` by MXNet's operator, which reads all regions from each map.

        Args:
            level_Q: place of the map of each region in `maps`.
        """
        picture_B1 = F.reshape(F.contrib.arange_like(edge_BR4, axis=0), shape=(-1, 1, 1))
        picture_BR1 = F.broadcast_like(picture_B1, columns_of(F, edge_BR4, 0, 1), lhs_axes=(1,), rhs_axes=(1,))
        row_Q5 = F.reshape(F.concat(picture_BR1, edge_BR4, dim=2), shape=(-3, 0))

        def read(number: int, row_Q5: Array) -> Array:
            return F.contrib.ROIAlign(
                maps[number], row_Q5, pooled_size=(side, side), spatial_scale=1.0 / self._strides[number],
                sample_ratio=SAMPLES_PER_CELL_SIDE,
            )  # fmt: skip

        if len(maps) == 1:
            return read(0, row_Q5)
        # Regions of picture -1 cost nothing, but ROIAlign neither writes their own values nor leaves others alone:
        # where row n is one, it sets the n-th number of the whole output to 0. So rows that nobody reads come first,
        # enough of them to hold all of these numbers: `spare` for each picture.
        spare = -(-count // (side * side - 1))
        spare_BS5 = -F.ones_like(F.slice_axis(F.concat(picture_BR1, edge_BR4, dim=2), axis=1, begin=0, end=spare))
        spare_S5 = F.reshape(spare_BS5, shape=(-3, 0))
        found = []
        for number in range(len(maps)):
            is_here_Q = level_Q == number
            here_Q5 = F.where(is_here_Q, row_Q5, -F.ones_like(row_Q5))
            values = read(number, F.concat(spare_S5, here_Q5, dim=0))
            # As (spare + R, B, ...), of which the first are spare: a batch may have any size.
            values = F.slice_axis(F.reshape(values, shape=(-4, spare + count, -1, -2)), axis=0, begin=spare, end=None)
            values = F.reshape(values, shape=(-3, -2))
            found.append(F.where(is_here_Q, values, F.zeros_like(values)))
        return F.add_n(*found)
