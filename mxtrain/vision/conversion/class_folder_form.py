"""Writes a folder of images for each class."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, List

from mxtrain.data.loading.dataset_files import is_hidden
from mxtrain.data.spec import BaseDataset
from mxtrain.errors import DataError
from mxtrain.vision.classification.image_folder import ImageFolder
from mxtrain.vision.conversion.form import Form, refuse_unlisted_names
from mxtrain.vision.conversion.job import Holds


class ClassFolderForm(Form):
    """`train/CLASS/` with images, likewise val and test, as torchvision, Keras and Ultralytics read them."""

    name: ClassVar[str] = "image_folder"
    words: ClassVar[str] = "a folder of images for each class"
    holds: ClassVar[Holds] = Holds(objects=False)

    def check(self) -> None:
        names = list(self.content.class_names)
        refuse_unlisted_names(names, "the names of folders")
        for name in names:
            if "/" in name or "\0" in name or is_hidden(name) or len(name.encode()) > 255:
                raise DataError(f"to=image_folder: the class {name!r:.60} cannot be the name of a folder. Rename it.")
        if names != sorted(names) and "class_order" not in self.job.drop:
            raise DataError(
                f"to=image_folder: the classes are {', '.join(names[:10])}, and folders only have the order of the "
                "alphabet. Type drop=[class_order] to number them so."
            )
        for split, images in self.content.splits.items():
            labels = {images.label(index) for index in range(len(images.encoded))}
            missing = [name for number, name in enumerate(names) if number not in labels]
            if missing:
                raise DataError(
                    f"to=image_folder: the split {split} has no image of '{missing[0]}', and each class needs a folder "
                    "with images in each split. Type to=records."
                )

    def image(self, split: str, index: int) -> str:
        name = self.content.class_names[self.job.label(split, index)]
        return f"{split}/{name}/{self.job.names[split][index]}"

    def option(self) -> str:
        return "image_folder"

    def dataset(self, folder: Path) -> BaseDataset:
        return ImageFolder(root=str(folder))

    def expected_names(self) -> List[str]:
        return sorted(self.content.class_names)

    def expected_label(self, split: str, index: int) -> int:
        return self.expected_names().index(self.content.class_names[self.job.label(split, index)])
