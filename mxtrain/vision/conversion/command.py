"""Converts a dataset of images; see `mxtrain.data.conversion`."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import Dict, Iterator, List, Sequence, Type

from mxtrain.data.conversion import ConversionRequest, ConvertedData
from mxtrain.data.spec import BaseDataset
from mxtrain.errors import DataError
from mxtrain.terminal.progress import WorkProgress
from mxtrain.vision.conversion.class_folder_form import ClassFolderForm
from mxtrain.vision.conversion.coco_form import CocoForm
from mxtrain.vision.conversion.comparison import compare
from mxtrain.vision.conversion.content import LeftOut
from mxtrain.vision.conversion.form import Form
from mxtrain.vision.conversion.job import ConversionJob
from mxtrain.vision.conversion.reading import Wanted, read_content
from mxtrain.vision.conversion.record_form import BoxRecordForm, ClassRecordForm
from mxtrain.vision.conversion.unfinished import UnfinishedFolder, require_free
from mxtrain.vision.conversion.voc_form import VocForm
from mxtrain.vision.conversion.yolo_form import YoloForm

MIN_MOVE = 0.01
"""Pixels from which moved edges are told."""
_KINDS: Sequence[Type[Form]] = (CocoForm, VocForm, YoloForm, BoxRecordForm, ClassFolderForm, ClassRecordForm)
FORMS: Dict[bool, Dict[str, Type[Form]]] = {
    has_objects: {kind.name: kind for kind in _KINDS if kind.holds.objects == has_objects}
    for has_objects in (True, False)
}
"""Formats by their names, for objects (True) and for classes of images (False)."""


def convert(dataset: BaseDataset, request: ConversionRequest, progress: WorkProgress) -> ConvertedData:
    """Converts a dataset; arguments and errors as in `Convert`."""
    require_free(request.target)
    form = _prepare(dataset, request, progress)
    form.check()
    dropped = form.job.refuse_losses(f"to={request.to}")
    with UnfinishedFolder(request.target, {**request.description, "digest": form.job.digest}) as unfinished:
        form.write(unfinished.path, progress)
        found = compare(form, unfinished.path, progress)
        unfinished.finish()
    return ConvertedData(
        found.num_images,
        found.num_objects,
        form.expected_names(),
        found.largest,
        dropped,
        _notes(form.job),
        form.task(),
        form.option(),
        form.settings(),
    )


def _prepare(dataset: BaseDataset, request: ConversionRequest, progress: WorkProgress) -> Form:
    """Reads the source, and returns the format that is to be written.

    Raises:
        DataError: the format cannot hold such a dataset.
    """
    left_out = LeftOut()
    progress.begin("reading annotations", 0)
    wants = Wanted("masks" not in request.drop, "key_points" not in request.drop)
    with _collected_remarks() as remarks:
        content = read_content(dataset, request.name, left_out, wants)
    kind = FORMS[content.has_objects].get(request.to)
    if kind is None:
        has = "objects with boxes" if content.has_objects else "one class for each image"
        allowed = ", ".join(FORMS[content.has_objects])
        raise DataError(f"to={request.to}: {request.name} has {has}, which can be written to: {allowed}.")
    job = ConversionJob(content, kind.holds, request.drop, left_out)
    job.notes += remarks
    job.survey(progress)
    return kind(job, request.links)


class _Collector(logging.Handler):
    """Collects the text of log records."""

    def __init__(self, texts: List[str]) -> None:
        super().__init__(logging.INFO)
        self._texts = texts

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        self._texts.append(record.getMessage())


@contextmanager
def _collected_remarks() -> Iterator[List[str]]:
    """Yields a list, to which the remarks of readers are added: a reader logs how it has decided on an ambiguous
    format, and nothing else says it here."""
    remarks: List[str] = []
    logger, collector = logging.getLogger("mxtrain"), _Collector(remarks)
    level = logger.level
    logger.addHandler(collector)
    logger.setLevel(min(logger.getEffectiveLevel(), logging.INFO))
    try:
        yield remarks
    finally:
        logger.setLevel(level)
        logger.removeHandler(collector)


def _notes(job: ConversionJob) -> List[str]:
    notes = list(job.notes)
    if job.counts["sizes"]:
        notes.append(
            f"{job.counts['sizes']:,} images have another size than their annotation says: that of the file is used"
        )
    if job.counts["outside"]:
        notes.append(f"{job.counts['outside']:,} boxes outside of their images are left out, as wrong_boxes=mend says")
    if job.largest_move > MIN_MOVE:
        notes.append(
            "boxes of polygons are the smallest ones around them, which differ from those of the source by up to "
            f"{job.largest_move:.2g} pixels"
        )
    return notes
