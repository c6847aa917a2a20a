"""Settings of datasets whose files may be volumes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Dict, Optional, Sequence, Union

import numpy as np
from typing_extensions import Literal

from mxtrain.types import Spec
from mxtrain.vision.images.decoding import EncodedImages
from mxtrain.vision.images.files import ImageFiles, is_medical
from mxtrain.vision.images.settings import Decoding, SliceAxis
from mxtrain.vision.images.volume_files import SlicedFiles


def volume_settings(names: Sequence[str]) -> Dict[str, Union[str, int]]:
    """Returns the settings that `data guess` proposes for files with these volumes: grey, and the window that suits all
    of them."""
    return {"channels": 1, "window": "percentile"} if names else {}


class VolumeSettings(Spec):
    """Base class of datasets whose files may be volumes, with a sample for each slice. It comes first among the base
    classes."""

    splits_folders: ClassVar[bool] = True
    """True if `split_by=auto` keeps the files of a folder together."""
    slice_axis: SliceAxis = "axial"
    """Direction of the slices of volumes (NIfTI): axial, coronal, sagittal, or i, j, k = along a stored axis."""
    split_by: Literal["auto", "file", "folder"] = "auto"
    """Samples that stay together if validation samples are held out: file = those of a file (all slices of a volume);
    folder = those of the files in a folder, such as a patient; auto = folder for folders with DICOM or volumes,
    otherwise file."""

    def decoding(self) -> Decoding:
        """Returns the settings by which files become samples."""
        return replace(super().decoding(), slice_axis=self.slice_axis)  # type: ignore[misc]  # of the other base class

    def decoded_as(self, decoding: Decoding) -> Any:
        """Returns this dataset with the settings of a decoding."""
        dataset = super().decoded_as(decoding)  # type: ignore[misc]  # as above
        return dataset.model_copy(update={"slice_axis": decoding.slice_axis})

    def units(self, encoded: EncodedImages) -> Optional[np.ndarray]:
        """Returns the number of the unit of each sample, whose samples belong to one split; None: each sample is one.

        Args:
            encoded: the samples.
        """
        files = encoded.files if isinstance(encoded, SlicedFiles) else encoded
        if not isinstance(files, ImageFiles):
            return None
        file_N = encoded.file_N if isinstance(encoded, SlicedFiles) else np.arange(len(files))
        owned = list(zip(files.owners, files.paths))
        is_auto = self.split_by == "auto" and self.splits_folders
        patients = {owner for owner, path in owned if self.split_by == "folder" or is_auto and is_medical(path)}
        if not patients:
            return None if files is encoded else file_N
        unit_F = np.unique([owner if owner in patients else path for owner, path in owned], return_inverse=True)[1]
        return unit_F[file_N]
