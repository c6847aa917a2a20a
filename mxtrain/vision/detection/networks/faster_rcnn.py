"""Faster R-CNN as a Gluon block, on a single feature map or a feature pyramid. Imports MXNet.

Blocks and parameters have GluonCV's names, so `.params` files can be exchanged. The computation between the blocks is
our own, because GluonCV's network is bound to one batch size, draws from the device's random generator, and reads
uninitialised memory if regions belong to another map or are fewer than expected.

A sample of regions consists of those with the largest of given random numbers, which are a function of (seed, epoch,
sample), so it is the same for any division of a batch. Proposals are ordered by logits: the sigmoid is 1 for many boxes
of a confident network. The box that covers an object best is always its positive, as in the paper; GluonCV makes it
background again below an intersection over union of 0.3. `eval explain=` is refused, because regions change with the
image.

Legend: B batch, M true boxes of an image, N anchors of an image, A anchors of a cell, P proposals, R regions,
C = P + M candidates of the sample of regions (after B only; else channels), Q = B R regions of the batch, K classes,
h, w height and width of a map. Edges are left, top, right, bottom in pixels of the network's input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, List, Mapping, Optional, Sequence, Tuple

from mxtrain.engine.backend import gluon, mx
from mxtrain.model.networks.train_predict_block import TrainPredictBlock
from mxtrain.model.weights_report import ClassRows
from mxtrain.vision.detection.box_arithmetic import (
    REGION_IOU,
    apply_offsets,
    columns_of,
    is_object,
    match_boxes,
    sampling_keys,
    take_rows,
)
from mxtrain.vision.detection.heads.regions import PROPOSAL_VARIANCES
from mxtrain.vision.detection.networks.region_operators import align_regions, suppress

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule
    from mxtrain.vision.detection.heads.regions import ProposalSettings, RegionAnchors

nn = gluon.nn
NO_PROPOSAL = -1e30
"""Score of dropped proposals, below that of any anchor."""


@dataclass(frozen=True)
class TwoStageBlocks:
    """Uninitialised blocks of GluonCV's network.

    Attributes:
        features: backbone, from images to one or several feature maps.
        region_features: from RoIAlign's output (B R, C, side, side) to the features that all branches share, including
            a mask branch; None = identity.
        box_features: from shared features to features (B R, units) for classes and boxes; None = spatial mean.
        region_side: number of cells along each side of a region in RoIAlign.
        channels: channels of the hidden layer of the region proposal network.
        backbone_names: full name of a backbone parameter -> its name in a file that contains only the backbone.
    """

    features: gluon.HybridBlock
    region_features: Optional[gluon.HybridBlock]
    box_features: Optional[gluon.HybridBlock]
    region_side: int
    channels: int
    backbone_names: Mapping[str, str]


class AnchorGrid(gluon.HybridBlock):
    """Returns the edges (1, h w A, 4) of the anchors of a feature map (B, C, h, w).

    Args:
        boxes: anchors of the map.
        alloc: minimum number of positions along each side of the stored array, equal to that in GluonCV's files.
    """

    def __init__(self, boxes: RegionAnchors, alloc: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        side = max(alloc, boxes.height, boxes.width)
        with self.name_scope():
            # A constant parameter and not an array of the block: GluonCV's files hold the anchors under this name.
            self.anchors = self.params.get_constant("anchor_", boxes.grid(side, side).reshape(1, 1, side, side, -1))

    def hybrid_forward(self, F: OperatorModule, x: Array, anchors: Array) -> Array:
        return F.reshape(F.slice_like(anchors, x, axes=(2, 3)), shape=(1, -1, 4))


class ProposalHead(gluon.HybridBlock):
    """Head of the region proposal network.

    Maps a feature map (B, C, h, w) to objectness logits (B, h w A) and box offsets (B, h w A, 4).

    Args:
        channels: channels of the hidden layer.
        num_shapes: A.
    """

    def __init__(self, channels: int, num_shapes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        normal = {"weight_initializer": mx.init.Normal(0.01)}
        with self.name_scope():
            self.conv1 = nn.HybridSequential()
            self.conv1.add(nn.Conv2D(channels, 3, padding=1, **normal), nn.Activation("relu"))
            self.score = nn.Conv2D(num_shapes, 1, **normal)
            self.loc = nn.Conv2D(num_shapes * 4, 1, **normal)

    def proposed(self, F: OperatorModule, x: Array) -> Tuple[Array, Array]:
        """Returns objectness logits (B, h w A) and offsets (B, h w A, 4) of the anchors of a map."""
        x = self.conv1(x)
        score, offset = (F.transpose(layer(x), axes=(0, 2, 3, 1)) for layer in (self.score, self.loc))
        return F.reshape(score, shape=(0, -1)), F.reshape(offset, shape=(0, -1, 4))

    def hybrid_forward(self, F: OperatorModule, x: Array) -> Tuple[Array, Array]:
        return self.proposed(F, x)


class SingleMapProposals(ProposalHead):
    """Region proposals of a single map: logits (B, N), offsets (B, N, 4) and anchors (1, N, 4).

    Args:
        boxes: anchors of the map.
        channels: see `ProposalHead`.
        alloc: see `AnchorGrid`.
    """

    def __init__(self, boxes: RegionAnchors, channels: int, alloc: int, **kwargs: Any) -> None:
        super().__init__(channels, boxes.num_shapes, **kwargs)
        with self.name_scope():
            self.anchor_generator = AnchorGrid(boxes, alloc)

    def hybrid_forward(self, F: OperatorModule, x: Array) -> Any:
        return (*self.proposed(F, x), self.anchor_generator(x))


class PyramidProposals(gluon.HybridBlock):
    """Region proposals of several maps with a shared head: logits (B, N), offsets (B, N, 4) and anchors (1, N, 4).

    Args:
        maps: anchors of each map, finest first.
        channels: see `ProposalHead`.
        alloc: see `AnchorGrid`; value of the finest map, halved for each coarser map.
    """

    MIN_ALLOC = 16
    """Smallest number of cells along each side of a map whose anchors GluonCV stores in its files."""

    def __init__(self, maps: Sequence[RegionAnchors], channels: int, alloc: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.anchor_generator = nn.HybridSequential()
            for anchors in maps:
                self.anchor_generator.add(AnchorGrid(anchors, alloc))
                alloc = max(alloc // 2, self.MIN_ALLOC)
            self.rpn_head = ProposalHead(channels, maps[0].num_shapes)

    def hybrid_forward(self, F: OperatorModule, *maps: Array) -> Tuple[Array, ...]:
        outputs = [(*self.rpn_head(x), grid(x)) for x, grid in zip(maps, self.anchor_generator)]
        return tuple(F.concat(*arrays, dim=1) for arrays in zip(*outputs))


class TwoStageNetwork(TrainPredictBlock):
    """Two-stage detector: maps images (B, 3, H, W) to the outputs of `RegionCoding`.

    In prediction, the regions are the highest-scoring proposals. In training, the network has two more inputs, true
    boxes (B, M, D) and random numbers from 0 to 1 (B, P + M), and the regions are a random sample of proposals and true
    boxes. Gradients do not flow through the edges of regions.

    Args:
        parts: blocks of the network.
        num_classes: K.
        image: height and width of images in pixels.
        maps: anchors of each map, finest first.
        settings: settings of the selection of proposals.
        alloc: see `AnchorGrid`.
    """

    def __init__(
        self,
        parts: TwoStageBlocks,
        num_classes: int,
        image: Tuple[int, int],
        maps: Sequence[RegionAnchors],
        settings: ProposalSettings,
        alloc: int,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._settings, self._image, self._num_classes = settings, image, num_classes
        self._region_side, self._strides = parts.region_side, [anchors.stride for anchors in maps]
        self._anchors = list(maps)
        self._num_anchors = sum(anchors.height * anchors.width * anchors.num_shapes for anchors in maps)
        self._train_post_nms, self._post_nms = settings.num_proposals(self._num_anchors)
        self._num_samples, self._max_positives = settings.sampled(self._num_anchors)
        is_pyramid = len(maps) > 1
        with self.name_scope():
            self.features = parts.features
            self.top_features = parts.region_features
            self.box_features = parts.box_features
            # The deviations 0.01 and 0.001 are those of the Fast R-CNN paper and of GluonCV.
            self.class_predictor = nn.Dense(1 + num_classes, weight_initializer=mx.init.Normal(0.01))
            self.box_predictor = nn.Dense(4 * num_classes, weight_initializer=mx.init.Normal(0.001))
            self.rpn = (
                PyramidProposals(maps, parts.channels, alloc)
                if is_pyramid
                else SingleMapProposals(maps[0], parts.channels, alloc)
            )
        self.class_heads = {"class_predictor": ClassRows(1, 1), "box_predictor": ClassRows(1, 0, per_class=4)}
        generators = [f".{number}" for number in range(len(maps))] if is_pyramid else [""]
        self.computed = tuple(f"rpn.anchor_generator{generator}.anchors" for generator in generators)
        names = {parameter.name: name for name, parameter in self._collect_params_with_prefix().items()}
        self.backbone_names = {names[full]: name for full, name in parts.backbone_names.items() if full in names}
        self._mark_stages()

    def _mark_stages(self) -> None:
        """Marks the layers that may begin a pipeline stage: stages of the backbone, and the heads."""
        if isinstance(self.features, nn.HybridSequential):
            for layer in list(self.features._children.values())[1:]:
                if isinstance(layer, nn.HybridSequential):
                    layer.begins_stage = True
        for layer in (self.box_features, self.top_features):
            if layer is not None:
                layer.begins_stage = True
        # A pipeline is cut at no other place: between other layers arrays of whole numbers would cross the stages.
        self.rpn.begins_stage = True

    def predict_forward(self, F: OperatorModule, x: Array) -> Any:
        """Computes the outputs for the highest-scoring proposals; see `TrainPredictBlock`."""
        maps, score_BN, offset_BN4, anchor_1N4 = self._extract(F, x)
        settings = self._settings
        region_BR5 = self._propose(F, score_BN, offset_BN4, anchor_1N4, settings.pre_nms, self._post_nms)
        features = self._features_of(F, maps, columns_of(F, region_BR5, 0, 4), self._post_nms)
        regions = (region_BR5, *self._predict_regions(F, features, self._post_nms))
        # Both forms return the same arrays, so that one loss serves training and validation.
        return (score_BN, offset_BN4, *regions, *self._predict_extra(F, maps, regions))

    def train_forward(self, F: OperatorModule, x: Array, *annotations: Array) -> Any:
        """Computes the outputs for sampled regions; see `TrainPredictBlock`.

        Args:
            F: `nd` or `sym`.
            x: images.
            annotations: true boxes (B, M, D), and random numbers (B, P + M).
        """
        box_BMD, noise_BC = annotations
        maps, score_BN, offset_BN4, anchor_1N4 = self._extract(F, x)
        proposal_BP5 = self._propose(
            F, score_BN, offset_BN4, anchor_1N4, self._settings.train_pre_nms, self._train_post_nms
        )
        region_BR5 = self._sample(F, proposal_BP5, box_BMD, noise_BC)
        features = self._features_of(F, maps, columns_of(F, region_BR5, 0, 4), self._num_samples)
        regions = (region_BR5, *self._predict_regions(F, features, self._num_samples))
        return (score_BN, offset_BN4, *regions, *self._train_extra(F, features, region_BR5, box_BMD))

    def _extract(self, F: OperatorModule, x: Array) -> Tuple[List[Array], Array, Array, Array]:
        """Returns the feature maps, and logits (B, N), offsets (B, N, 4) and edges (1, N, 4) of the anchors."""
        maps = self.features(x)
        maps = list(maps) if len(self._strides) > 1 else [maps]
        return (maps, *self.rpn(*maps))

    def _propose(
        self, F: OperatorModule, score_BN: Array, offset_BN4: Array, anchor_1N4: Array, pre_nms: int, post_nms: int
    ) -> Array:
        """Returns the highest-scoring proposals after non-maximum suppression, (B, post_nms, 5).

        A row has the four edges, and 1. If there are fewer proposals, the remaining rows have the edges of the whole
        image, and 0: RoIAlign needs valid regions.

        Args:
            F: `nd` or `sym`.
            score_BN: objectness logits.
            offset_BN4: box offsets.
            anchor_1N4: edges of the anchors.
            pre_nms: number of proposals before the suppression.
            post_nms: number of proposals after the suppression.
        """
        settings, (height, width) = self._settings, self._image
        # The second stage treats proposals as constants, as in the paper's approximate joint training.
        score_BN, offset_BN4 = F.BlockGrad(score_BN), F.BlockGrad(offset_BN4)
        edge_BN4 = F.relu(
            apply_offsets(F, F.BlockGrad(anchor_1N4), offset_BN4, PROPOSAL_VARIANCES, settings.max_log_scale)
        )
        sides = F.split(edge_BN4, 4, axis=2)
        left, top, right, bottom = (F.clip(side, 0, limit) for side, limit in zip(sides, (width, height) * 2))
        # + 1 as in GluonCV, whose boxes include their last pixel.
        is_large_BN1 = (right - left + 1 >= settings.min_size) * (bottom - top + 1 >= settings.min_size)
        # A small proposal keeps its row, since all images need arrays of one shape; its score excludes it.
        score_BN1 = F.where(is_large_BN1, F.expand_dims(score_BN, axis=2), F.ones_like(is_large_BN1) * NO_PROPOSAL)
        row_BN5 = F.concat(score_BN1, left, top, right, bottom, dim=2)
        num_candidates = min(pre_nms, self._num_anchors)
        # int32: the default type of indices is float32, which is not exact from 2^24 on.
        index_BT = F.topk(F.squeeze(score_BN1, axis=2), k=num_candidates, ret_typ="indices", axis=1, dtype="int32")
        proposal_BR5 = suppress(
            F, take_rows(F, row_BN5, index_BT), num_candidates, post_nms, settings.nms_iou, NO_PROPOSAL / 2
        )
        left, top, right, bottom = F.split(columns_of(F, proposal_BR5, 1, None), 4, axis=2)
        # The suppression fills rows without a proposal with -1.
        is_found_BR1 = left >= 0
        image_edges = (F.ones_like(right) * width, F.ones_like(bottom) * height)
        right, bottom = (F.where(is_found_BR1, side, limit) for side, limit in zip((right, bottom), image_edges))
        return F.BlockGrad(F.concat(F.relu(left), F.relu(top), right, bottom, is_found_BR1, dim=2))

    def _sample(self, F: OperatorModule, proposal_BP5: Array, box_BMD: Array, noise_BC: Array) -> Array:
        """Samples training regions from proposals and true boxes, (B, R, 5): four edges, then 1, or 0 for padding.

        Regions with an object come first, at most `self._max_positives` of them.
        """
        settings = self._settings
        object_BM1 = F.expand_dims(is_object(F, box_BMD), axis=2)
        # True boxes are candidates as well: before the proposals are trained, few of them cover an object.
        region_BC5 = F.concat(proposal_BP5, F.concat(columns_of(F, box_BMD, 0, 4), object_BM1, dim=2), dim=1)
        matches = match_boxes(F, columns_of(F, region_BC5, 0, 4), box_BMD)
        is_valid_BC = F.squeeze(columns_of(F, region_BC5, 4, 5), axis=2)
        has_object_BC = matches.iou_BN >= REGION_IOU
        # A region in a crowd may hold an object that nobody marked, so it is no background.
        background_BC = is_valid_BC * (1 - has_object_BC) * (1 - matches.in_crowd_BN)
        key_BC = sampling_keys(
            F, is_valid_BC * has_object_BC, background_BC, noise_BC, self._num_samples, settings.positive_fraction
        )
        # The keys hold given random numbers: the device's own generator would draw other regions in another division
        # of a batch.
        key_BR, index_BR = F.topk(key_BC, k=self._num_samples, ret_typ="both", axis=1, dtype="int32")
        edge_BR4 = columns_of(F, take_rows(F, region_BC5, index_BR), 0, 4)
        return F.BlockGrad(F.concat(edge_BR4, F.expand_dims(key_BR > 0, axis=2), dim=2))

    def _predict_extra(self, F: OperatorModule, maps: Sequence[Array], regions: Sequence[Array]) -> Tuple[Array, ...]:
        """Returns the predictions of an additional head, such as masks, for the detections. By default none.

        Args:
            F: `nd` or `sym`.
            maps: feature maps.
            regions: regions, their class logits and their box offsets.
        """
        return ()

    def _train_extra(self, F: OperatorModule, features: Array, region_BR5: Array, box_BMD: Array) -> Tuple[Array, ...]:
        """Returns the training outputs of an additional head for the sampled regions. By default none.

        Args:
            F: `nd` or `sym`.
            features: features of the regions, see `_features_of`.
            region_BR5: sampled regions, those with an object first.
            box_BMD: true boxes.
        """
        return ()

    def _features_of(self, F: OperatorModule, maps: Sequence[Array], edge_BR4: Array, count: int) -> Array:
        """Returns the features of `count` regions per image that all branches share, (B R, C, h, w)."""
        x = self.align_regions(F, maps, edge_BR4, count, self._region_side)
        return x if self.top_features is None else self.top_features(x)

    def _predict_regions(self, F: OperatorModule, x: Array, count: int) -> Tuple[Array, Array]:
        """Returns class logits (B, R, 1 + K) and box offsets (B, R, 4 K) of `count` regions per image."""
        x = F.mean(x, axis=(2, 3)) if self.box_features is None else self.box_features(x)
        logit, offset = self.class_predictor(x), self.box_predictor(x)
        # -4 splits the axis of all regions into images and regions per image.
        return tuple(F.reshape(output, shape=(-4, -1, count, 0)) for output in (logit, offset))

    def align_regions(self, F: OperatorModule, maps: Sequence[Array], edge_BR4: Array, count: int, side: int) -> Array:
        """Computes RoIAlign of regions, (B R, C, side, side); see `region_operators.align_regions`.

        Args:
            F: `nd` or `sym`.
            maps: feature maps (B, C, h, w), finest first.
            edge_BR4: edges of the regions.
            count: R.
            side: number of cells along each side of a region.
        """
        return align_regions(F, maps, self._anchors, edge_BR4, count, side)
