"""Writes PASCAL VOC's folders."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Dict
from xml.sax.saxutils import escape

from mxtrain.data.recognition import Setting
from mxtrain.data.spec import BaseDataset
from mxtrain.terminal.progress import WorkProgress
from mxtrain.vision.conversion.content import ConvertedObject
from mxtrain.vision.conversion.form import Form, plain_number, refuse_unlisted_names, text_file
from mxtrain.vision.conversion.job import Holds
from mxtrain.vision.detection.boxes import Flag
from mxtrain.vision.detection.voc import Voc


class VocForm(Form):
    """`JPEGImages/`, `Annotations/`, and lists of the splits in `ImageSets/Main/`. The first pixel is 1, and the last
    one belongs to the box, so that edges of 0 and 10 are 1 and 10."""

    name: ClassVar[str] = "voc"
    words: ClassVar[str] = "PASCAL VOC's folders"
    holds: ClassVar[Holds] = Holds(difficult=True, separate=False)
    exact: ClassVar[str] = "decimals of 64-bit floats, read as 32-bit floats"

    def check(self) -> None:
        refuse_unlisted_names(list(self.content.class_names), "classes.txt")

    def image(self, split: str, index: int) -> str:
        return f"JPEGImages/{self.job.names[split][index]}"

    def option(self) -> str:
        return "voc"

    def settings(self) -> Dict[str, Setting]:
        settings: Dict[str, Setting] = {} if "val" in self.content.splits else {"val_split": "null"}
        return {**settings, **({"test_split": "test"} if "test" in self.content.splits else {})}

    def dataset(self, folder: Path) -> BaseDataset:
        val, test = ("val" if "val" in self.content.splits else None, "test" if "test" in self.content.splits else None)
        return Voc(root=str(folder), train_split="train", val_split=val, test_split=test)

    def write_annotations(self, folder: Path, progress: WorkProgress) -> None:
        progress.begin("writing annotations", self.content.num_images)
        for split, images in self.content.splits.items():
            for index in range(len(images.encoded)):
                stem = Path(self.job.names[split][index]).stem
                with text_file(folder / "Annotations" / f"{stem}.xml") as stream:
                    stream.write(self._xml(split, index))
                progress.advance(1)
        lists = {split: [split] for split in self.content.splits}
        if "val" in self.content.splits:
            lists["trainval"] = ["train", "val"]  # the default of some readers, such as GluonCV's
        for name, splits in lists.items():
            with text_file(folder / "ImageSets" / "Main" / f"{name}.txt") as stream:
                stream.writelines(f"{Path(image).stem}\n" for split in splits for image in self.job.names[split])
        with text_file(folder / "classes.txt") as stream:
            stream.writelines(f"{name}\n" for name in self.content.class_names)
        with text_file(folder / "labelmap.txt") as stream:  # CVAT and Datumaro know no classes without it
            stream.write("# label:color_rgb:parts:actions\nbackground:::\n")
            stream.writelines(f"{name}:::\n" for name in self.content.class_names)

    def _xml(self, split: str, index: int) -> str:
        width, height = self.job.size(split, index)
        objects = "".join(map(self._object, self.job.objects(split, index)))
        return (
            f"<annotation>\n\t<folder>JPEGImages</folder>\n\t<filename>{escape(self.job.names[split][index])}</filename>\n"
            f"\t<size>\n\t\t<width>{width}</width>\n\t\t<height>{height}</height>\n\t\t<depth>3</depth>\n\t</size>\n"
            f"\t<segmented>0</segmented>\n{objects}</annotation>\n"
        )

    def _object(self, each: ConvertedObject) -> str:
        left, top, right, bottom = each.edges
        edges = {"xmin": left + 1, "ymin": top + 1, "xmax": right, "ymax": bottom}
        lines = "".join(f"\t\t\t<{name}>{plain_number(edge)}</{name}>\n" for name, edge in edges.items())
        return (
            f"\t<object>\n\t\t<name>{escape(self.content.class_names[each.class_index])}</name>\n"
            "\t\t<pose>Unspecified</pose>\n\t\t<truncated>0</truncated>\n"
            f"\t\t<difficult>{int(bool(each.flags & Flag.DIFFICULT))}</difficult>\n"
            f"\t\t<bndbox>\n{lines}\t\t</bndbox>\n\t</object>\n"
        )
