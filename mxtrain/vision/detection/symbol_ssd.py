"""SSD detectors from files: the graphs of MXNet's example/ssd, of SageMaker's object detection, and of GluonCV's
export."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Mapping, Optional, Sequence

import numpy as np
import pydantic

from mxtrain.errors import ConfigError
from mxtrain.model.params_file import read_params
from mxtrain.model.symbol.graph_file import parse_graph
from mxtrain.model.symbol.model import GraphFile
from mxtrain.model.symbol.ssd_graph import SSDGraph, find_ssd, is_ssd, stored_anchors
from mxtrain.model.symbol.structure import is_by_structure
from mxtrain.types import OpenFraction, Positive, Shape, Spec
from mxtrain.types.fields import expand_path
from mxtrain.types.kinds import Images, Takes
from mxtrain.vision.detection.heads.anchors import AnchorMap
from mxtrain.vision.detection.heads.base import BoxCoding, Detector
from mxtrain.vision.detection.heads.multibox import MultiBoxCoding
from mxtrain.vision.detection.heads.suppression import Suppression
from mxtrain.vision.kinds import Boxes

if TYPE_CHECKING:
    from mxnet import gluon

_TOLERANCE = 1e-4
"""Largest difference, in pixels, of stored anchors from a regular grid."""


class StoredAnchors(Spec):
    """The anchors of one map, as GluonCV's files have them: a regular grid of the same boxes, in pixels."""

    cells: List[int]
    """Rows and columns of the grid."""
    step: List[float]
    """Distance of neighbouring cells, y and x."""
    shapes: List[List[float]]
    """Width and height of the anchors of a cell."""

    @classmethod
    def of(cls, name: str, array: np.ndarray) -> StoredAnchors:
        """Returns the grid of an array (1, 1, rows, columns, 4 A).

        Raises:
            ValueError: it is no regular grid.
        """
        if array.ndim != 5 or array.shape[-1] % 4:
            raise ValueError(f"'{name}' {array.shape} in the weights has no anchors in the form of GluonCV")
        first_A4 = array[0, 0, 0, 0].reshape(-1, 4).astype(float)
        grid = cls(
            cells=list(array.shape[2:4]),
            # The first cell's centre is half a step from the edge.
            step=[2 * first_A4[0, 1], 2 * first_A4[0, 0]],
            shapes=first_A4[:, 2:].tolist(),
        )
        if np.abs(grid.array() - array).max() > _TOLERANCE * max(1.0, float(np.abs(array).max())):
            raise ValueError(f"the anchors '{name}' in the weights are no regular grid, which is not supported")
        return grid

    def array(self) -> np.ndarray:
        """Returns the anchors as in the file, (1, 1, rows, columns, 4 A)."""
        rows, columns = self.cells
        grid = AnchorMap(rows, columns, self.step[0], self.step[1], [(one[0], one[1]) for one in self.shapes]).boxes()
        return grid.reshape(1, 1, rows, columns, -1).astype(np.float32)


class SymbolSSD(GraphFile, Detector):
    """An SSD detector that is known by its graph and its weights.

    The graph is cut at class scores and box offsets, and its anchors are computed for the size of the images. With
    another number of classes the layers of class scores get that number; they keep the background.
    """

    takes: ClassVar[Takes] = Takes(Images, Boxes)
    loss_option: ClassVar[str] = "multibox"
    weighs_boxes: ClassVar[bool] = True
    option: ClassVar[str] = "symbol_ssd"

    nms_iou: Optional[OpenFraction] = None
    """Threshold of non-maximum suppression; None = as in the graph."""
    nms_candidates: Optional[Positive] = None
    """Number of highest-scoring boxes of an image that enter non-maximum suppression; None = as in the graph."""
    max_detections: Positive = 100
    """Maximum number of detections per image."""
    anchors: Dict[str, StoredAnchors] = {}
    """Anchors that GluonCV keeps among the weights, and a checkpoint here. Leave it out."""

    _coded: Dict[Shape, np.ndarray] = pydantic.PrivateAttr(default_factory=dict)
    """Shape of images -> anchors. A cache: the graph must be evaluated to find them."""

    @classmethod
    def read_further(cls, text: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
        graph = parse_graph(text, values["graph"]["file"])
        weights = values.get("weights")
        if not isinstance(weights, str) or values.get("anchors") or not is_ssd(graph):
            return {}
        names = stored_anchors(graph, find_ssd(graph))
        if not names:
            return {}
        arrays = {name.rpartition(":")[2]: array for name, array in read_params(expand_path(weights)).items()}
        if is_by_structure(arrays):
            by_structure = [array for name, array in arrays.items() if name.endswith(".anchors")]
            arrays.update(zip(names, by_structure) if len(by_structure) == len(names) else ())
        missing = [name for name in names if name not in arrays]
        if missing:
            raise ValueError(f"weights={weights} do not hold '{missing[0]}', the anchors of the graph")
        return {"anchors": {name: StoredAnchors.of(name, arrays[name]).model_dump() for name in names}}

    def check_graph(self) -> None:
        find_ssd(self.parsed)

    @property
    def title(self) -> str:
        return f"model={self.option}"

    @property
    def ssd(self) -> SSDGraph:
        """Returns the parts of the detector."""
        return find_ssd(self.parsed)

    @property
    def recorded(self) -> Mapping[str, object]:
        return {**super().recorded, "anchors": {name: grid.model_dump() for name, grid in self.anchors.items()}}

    def require_sizes(self, sizes: Sequence[Sequence[int]]) -> None:
        """Rejects training with several image sizes.

        Raises:
            ConfigError: there are image sizes.
        """
        if sizes:
            raise ConfigError(
                "dataset.image_sizes: the anchors of model=symbol_ssd are for one size of images. Leave it out."
            )

    def require_known(self, names: Sequence[str]) -> None:
        """Checks that a file is named, and the weights if anchors are among them.

        Raises:
            ConfigError: a file is missing.
        """
        super().require_known(names)
        if not self.ssd.in_corners and not self.anchors:
            raise ConfigError(
                "model.weights: the anchors of this graph, which GluonCV has exported, are among its weights. Type "
                "model.weights=FILE.params."
            )

    def input_shape(self, native: Shape) -> Shape:
        """Returns three channels and the native size."""
        return (3, *native[-2:])

    def box_coding(self, num_classes: int, input_shape: Shape) -> BoxCoding:
        """Returns the box coding with the anchors, variances and non-maximum suppression of the graph.

        Raises:
            ConfigError: images are too small for the network.
        """
        ssd, shape = self.ssd, tuple(input_shape)
        if shape not in self._coded:
            from mxtrain.vision.detection.networks.symbol_ssd import anchors_of

            self._coded[shape] = anchors_of(
                self.parsed, ssd, shape, {name: grid.array() for name, grid in self.anchors.items()}
            )
        anchor_N4 = self._coded[shape]
        most = len(anchor_N4) * (1 if ssd.one_class else num_classes)
        return MultiBoxCoding(
            num_classes,
            anchor_N4,
            Suppression(
                ssd.iou if self.nms_iou is None else self.nms_iou,
                self.nms_candidates or ssd.candidates or most,
                self.max_detections,
                ssd.min_score,
                ssd.across_classes,
            ),
            ssd.variances,
            (shape[2], shape[1]) if ssd.clips else None,
            ssd.one_class,
        )

    def build(self, num_classes: int, input_shape: Shape) -> gluon.HybridBlock:
        """Returns the network, uninitialized.

        Raises:
            ConfigError: an operator is unknown to MXNet, or has arguments that it refuses.
        """
        from mxtrain.model.symbol.network import StructureMatcher
        from mxtrain.vision.detection.networks.symbol_ssd import build_network

        assert self.graph is not None
        network = build_network(self.graph.text, num_classes)
        network.match_structure = StructureMatcher(self.graph.text, input_shape)
        return network
