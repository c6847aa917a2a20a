"""Reads slices of volumes with the slices of their label volumes, which contain the class of each voxel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.problems import MASK_SIZE, UNREADABLE_MASK
from mxtrain.errors import LoaderError, MxtrainError
from mxtrain.vision.images.dicom_volume import DicomVolume
from mxtrain.vision.images.nifti import NiftiVolume, distance_of_corners
from mxtrain.vision.images.pixels import REPLACE, unreadable
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.images.volume_files import AnyVolume, SlicedFiles, has_slices, is_volume, open_volume
from mxtrain.vision.segmentation.masked_images import JointAugment, MaskCoding, MaskedImages

if TYPE_CHECKING:
    from PIL import Image


class MaskedVolumes(MaskedImages):
    """Source of slices and, if there are any, their masks. Images that are not volumes have masks in files of one
    image."""

    encoded: SlicedFiles

    def __init__(
        self,
        images: SlicedFiles,
        masks: Sequence[str],
        coding: MaskCoding,
        decoding: Decoding,
        mean: Sequence[float],
        augment: Optional[JointAugment] = None,
    ) -> None:
        """Stores the settings; reads no file yet. Arguments as in `MaskedImages`; `masks` are those of the files."""
        super().__init__(images, [masks[file] for file in images.file_N.tolist()], coding, decoding, mean, augment)
        self._direction = decoding.slice_axis
        self._labels: Dict[str, AnyVolume] = {}

    def open_mask(self, index: int, size: Optional[Tuple[int, int]]) -> Image.Image:
        """Opens the mask of a slice as an image of values; see `MaskedImages.open_mask`."""
        volume = self.encoded.volume(index)
        assert self.masks is not None
        path = self.masks[index]
        kinds = [
            _kind(type(volume)),
            _kind(NiftiVolume if is_volume(path) else DicomVolume if has_slices(path) else None),
        ]
        if kinds[0] != kinds[1]:
            raise LoaderError(
                f"'{path}' is {kinds[1]}, and its image {self.name(index)} is {kinds[0]}.", REPLACE, UNREADABLE_MASK
            )
        if volume is None:
            return super().open_mask(index, size)
        from PIL import Image

        try:
            labels = self._open_labels(path)
            self._require_aligned(path, labels, index, volume)
            return Image.fromarray(labels.labels(int(self.encoded.number_N[index])))
        except LoaderError:
            raise
        except MxtrainError as error:
            raise LoaderError(str(error), kind=UNREADABLE_MASK) from error
        except Exception as error:  # of NumPy and Pillow, for damaged files
            raise unreadable(f"'{path}'", error, "a mask", UNREADABLE_MASK) from error

    def _open_labels(self, path: str) -> AnyVolume:
        if path not in self._labels:
            self._labels[path] = open_volume(path, self._direction)
        return self._labels[path]

    def _require_aligned(self, path: str, labels: AnyVolume, index: int, volume: AnyVolume) -> None:
        """Checks that a label volume has the voxels of its image.

        Raises:
            LoaderError: the sizes differ, or the volumes lie in different places.
        """
        location = self.location(index).file
        sizes = [(each.num_slices, *each.size[::-1]) for each in (labels, volume)]
        if sizes[0] != sizes[1]:
            shown = [" x ".join(map(str, size)) for size in sizes]
            raise LoaderError(
                f"'{path}' has {shown[0]} {self._direction} slices, rows and columns, and its image '{location}' "
                f"{shown[1]}: a label volume has the voxels of its image.",
                REPLACE,
                MASK_SIZE,
            )
        if isinstance(labels, DicomVolume) and isinstance(volume, DicomVolume):
            distance, tolerance = labels.distance(volume)
            source = "ImagePositionPatient, ImageOrientationPatient"
        else:
            assert isinstance(labels, NiftiVolume) and isinstance(volume, NiftiVolume)
            distance, tolerance = distance_of_corners(labels, volume), float(np.min(volume.header.spacing))
            source = "sform, qform"
        if distance > tolerance:
            raise LoaderError(
                f"'{path}' lies up to {distance:.4g} mm away from its image '{location}', by their headers ({source}): "
                "they differ in position, direction or spacing.",
                "Write it with the header of the image, or resample it.",
                MASK_SIZE,
            )


def _kind(volume: Optional[type]) -> str:
    """Returns the kind of a file, for messages."""
    if volume is NiftiVolume:
        return "a volume"
    return "a DICOM file of several frames" if volume is DicomVolume else "an image"
