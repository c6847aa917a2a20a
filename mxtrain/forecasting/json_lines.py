"""Series as lines of JSON, in the form of SageMaker's DeepAR."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

import pydantic

from mxtrain.data.checking.problems import (
    UNREADABLE_ROW,
    DataLocation,
    DataLocations,
    Findings,
    NoUsableSamples,
    Problem,
)
from mxtrain.data.exported_data import DatasetExport
from mxtrain.data.loading.text_stream import open_text
from mxtrain.data.predict_inputs import rows_from
from mxtrain.data.recognition import Certainty, FileTree, Recognised, Setting
from mxtrain.data.signature import Signature
from mxtrain.data.table.columns import require_file
from mxtrain.errors import DataError
from mxtrain.files.json_text import JsonTextError, parse_json
from mxtrain.forecasting.dataset import ReadSeries, SeriesDataset, inputs_of
from mxtrain.forecasting.series_columns import OBSERVED, series_of_objects
from mxtrain.forecasting.series_set import SeriesSet, missing_covariates
from mxtrain.forecasting.signature import SeriesSignature
from mxtrain.forecasting.time_grid import parse_frequency
from mxtrain.types import PathText

if TYPE_CHECKING:
    from mxtrain.data.spec import Samples


class DeepARLines(SeriesDataset):
    """Lines of JSON of SageMaker's DeepAR: `{"start": "2024-01-01 00:00:00", "target": [1.5, null, "NaN"], "cat": [0],
    "dynamic_feat": [[...]]}`, perhaps with an `item_id`."""

    path: PathText = "data/series.jsonl"
    """File of lines, .json, .jsonl, .json.gz or .jsonl.gz."""
    frequency: Optional[str] = None
    """Distance of the values, which the lines do not say and which must be given: s, min, h, D, B (business days), W,
    M, Q, Y or step, with a number in front, such as 15min."""
    time_format: Optional[str] = None
    """Form of start for Python's strptime, such as %d.%m.%Y; null = ISO 8601."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        for name in files.find(".jsonl", ".json", ".jsonl.gz", ".json.gz"):
            lines = files.lines(name, 1)
            try:
                value = parse_json(lines[0], allow_nan=True) if lines else None
            except JsonTextError:
                continue
            if isinstance(value, dict) and "start" in value and isinstance(value.get("target"), list):
                form, settings = "DeepAR's lines of JSON", {"path": files.typed(name), **_gluonts_settings(files)}
                asks = () if "frequency" in settings else ("dataset.frequency=FREQUENCY",)
                return Recognised(form, settings, "", Certainty.SURE, asks=asks)
        return None

    @pydantic.model_validator(mode="after")
    def _check_frequency(self) -> DeepARLines:
        if self.frequency is not None:
            parse_frequency(self.frequency)
        return self

    @property
    def data_name(self) -> str:
        return f"dataset.path={self.path}"

    def read(self, findings: Findings) -> ReadSeries:
        """See `SeriesDataset.read`."""
        if self.frequency is None:
            raise DataError(
                "dataset.frequency: the lines of DeepAR do not say how far apart the values are. Type e.g. "
                "dataset.frequency=h, for hours; others are min, D, W and M."
            )
        return read_deepar_lines(self.path, self.frequency, self.time_format, findings)

    def read_inputs(self, path: str, signature: SeriesSignature) -> ReadSeries:
        """See `SeriesDataset.read_inputs`."""
        return read_deepar_lines(path, signature.frequency, self.time_format, signature=signature)

    def samples_from(self, value: Any, signature: Signature) -> Samples:
        """Returns series to predict for, of objects in memory: dicts with start and target."""
        signature = SeriesSignature.cast(signature)
        objects = [
            (f"input {number}", dict(row))
            for number, row in enumerate(rows_from(value, "dicts with start and target, and paths of files"))
        ]
        return inputs_of(self.checked_objects(objects, signature), signature.season)

    def checked_objects(self, objects: List[Tuple[str, Any]], signature: SeriesSignature) -> SeriesSet:
        """Returns the series of objects to predict for.

        Raises:
            DataError: an object has another form than the network was trained with.
        """
        window = signature.window
        counts = len(window.vocabularies), window.num_future, window.observed
        try:
            series_set = series_of_objects(objects, signature.frequency, self.time_format, *counts)
        except ValueError as error:
            raise DataError(f"{error}.") from error
        lacking = missing_covariates(series_set, signature.future_columns, window.horizon)
        if lacking is not None:
            raise DataError(f"{lacking[1]}.")
        return series_set

    def exported(self, signature: Signature) -> DatasetExport:
        """See `BaseDataset.exported`: how the start is read."""
        return DatasetExport(signature.exported_reader, {"time_format": self.time_format})


def _gluonts_settings(files: FileTree) -> Dict[str, Setting]:
    """Returns the frequency and the horizon in the metadata that GluonTS writes beside train/data.json.gz; nothing if
    there are none."""
    metadata = next((files.json(name) for name in files.named("metadata.json")), None)
    settings: Dict[str, Setting] = {}
    if isinstance(metadata, dict):
        try:
            parse_frequency(str(metadata.get("freq")))
        except ValueError:
            return {}
        settings["frequency"] = metadata["freq"]
        horizon = metadata.get("prediction_length")
        if isinstance(horizon, int) and horizon > 0:
            settings["horizon"] = horizon
    return settings


def read_deepar_lines(
    path: str,
    frequency: str,
    time_format: Optional[str],
    findings: Optional[Findings] = None,
    signature: Optional[SeriesSignature] = None,
) -> ReadSeries:
    """Reads the series of a file of lines of JSON.

    Args:
        path: the file.
        frequency: distance of the values.
        time_format: form of start; None: ISO 8601.
        findings: collects problems.
        signature: signature of a trained network, by which the series have as many categories and covariates.

    Raises:
        DataError: the file cannot be read, or a line is no such series.
    """
    findings = Findings() if findings is None else findings
    require_file(path)
    counts: Tuple[Optional[int], ...] = (None, None, None)
    if signature is not None:
        window = signature.window
        counts = len(window.vocabularies), window.num_future, window.observed
    objects: List[Tuple[str, Any]] = []
    lines: List[int] = []
    with open_text(path, "\n", findings) as stream:
        for line, text in enumerate(stream, start=1):
            if not text.strip():
                continue
            place = DataLocation(str(path), line)
            try:
                value = parse_json(text, allow_nan=True)
                # Alone, so that `data check` names each line.
                series_of_objects([(str(place), value)], frequency, time_format, *counts)
            except JsonTextError as error:
                findings.refuse(Problem(UNREADABLE_ROW, place, f"{place} {error}."))
            except ValueError as error:
                findings.refuse(Problem(UNREADABLE_ROW, place, f"{error}."))
            else:
                objects.append((str(place), value))
                lines.append(line)
    if not objects:
        raise (
            NoUsableSamples(f"{path}: there is no series.")
            if findings.keeps_going
            else DataError(f"{path} holds no series.")
        )
    try:
        series_set = series_of_objects(objects, frequency, time_format, *counts)
    except ValueError as error:
        raise DataError(f"{error}.") from error
    first = series_set.series[0]
    num_observed = len(objects[0][1].get(OBSERVED) or ()) if signature is None else signature.window.observed
    known = [f"dynamic_feat {number}" for number in range(first.known_NC.shape[1] - num_observed)]
    known += [f"{OBSERVED} {number}" for number in range(num_observed)]
    categories = [f"cat {number}" for number in range(len(first.categories))]
    return ReadSeries(series_set, DataLocations([str(path)], lines), known, (), categories, num_observed)
