"""Reads series that clients of `mxtrain serve` send. Imports no MXNet."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.exported_folder import targets_in
from mxtrain.errors import DamagedCheckpoint
from mxtrain.files.json_form import NUMBER, problems_of
from mxtrain.forecasting.exported_series import ExportedForecaster
from mxtrain.forecasting.kinds import SeriesPasts
from mxtrain.forecasting.series_columns import OBSERVED
from mxtrain.forecasting.series_set import SeriesSet
from mxtrain.forecasting.signature import SeriesSignature
from mxtrain.serving.errors import RequestError
from mxtrain.serving.protocol import parse_json
from mxtrain.serving.readers import JSON_TYPE, BodyLimits, ReadBody

if TYPE_CHECKING:
    from mxtrain.data.exported_folder import ExportedFolder
    from mxtrain.types.annotations import JsonForm

MAX_STEPS = 1 << 20
"""Largest number of past and future steps of a network."""
BODY = "the body"
FORM: Dict[str, JsonForm] = {
    "signature": {**SeriesSignature.form, "shape": [[int]]},
    "facts": {"quantiles": [NUMBER], "time_format?": str, "*": object},
    "outputs": [{"name": str, "*": object}],
    "*": object,
}
"""Form of what is read of a signature.json."""


class SeriesReader:
    """Reads a series as a JSON object with start and target, and predicts its next values.

    Args:
        folder: exported folder, whose signature was checked.
    """

    kind = "json"
    media_types = (JSON_TYPE,)
    columns = ()

    def __init__(self, folder: ExportedFolder) -> None:
        self._folder, self._network = folder, ExportedForecaster(folder.signature)
        form, frequency = self._network.form, folder.signature["signature"]["frequency"]
        target = [round(100 + 10 * float(np.sin(step / 3)), 1) for step in range(min(form.past, 8))]
        example: Dict[str, Any] = {"start": 0 if frequency.endswith("step") else "2024-01-01", "target": target}
        if form.vocabularies:
            example["cat"] = [values[0] if values else "..." for values in form.vocabularies]
        split = form.num_future
        if split:
            example["dynamic_feat"] = [[mean] * (len(target) + form.horizon) for mean in form.known_mean[:split]]
        if form.observed:
            example[OBSERVED] = [[mean] * len(target) for mean in form.known_mean[split:]]
        self.example = json.dumps(example, ensure_ascii=False)

    def read(self, body: bytes, media_type: str, limits: BodyLimits) -> ReadBody:
        """See `BodyReader.read`."""
        try:
            series_set = self._network.series_of_objects([(BODY, parse_json(body))])
        except ValueError as error:
            raise RequestError(400, f"{str(error)[:300]}.") from error
        _, inputs = next(self._network.inputs(series_set))
        return ReadBody(inputs, series_set)

    def describe(
        self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], about: Optional[SeriesSet]
    ) -> Optional[Dict[str, Any]]:
        """Returns the mean and the quantiles of each next time."""
        if about is None:
            return None
        first = next(iter(outputs.values()))
        if first.shape != (1, self._network.form.horizon, len(self._network.levels)):
            raise RequestError(422, "the network has no quantiles for these steps.")
        value_HC = self._network.forecast(outputs, self._folder, inputs)
        rows = self._network.rows(about, 0, value_HC)
        return {"forecast": [{name: value for name, value in row.items() if name != "item"} for row in rows]}


def make_series_reader(folder: ExportedFolder, inputs: Sequence[Any]) -> Optional[SeriesReader]:
    """Returns the reader for a network that forecasts; None for others.

    Raises:
        ValueError: the signature is damaged.
    """
    signature = folder.signature
    if "FutureValues" not in targets_in(signature) or signature.get("predicts") is False:
        return None
    for problem in problems_of(signature, FORM):
        raise ValueError(problem)
    try:
        read = SeriesSignature.from_json(signature["signature"])
    except DamagedCheckpoint as error:
        raise ValueError(str(error)) from error
    if "paths" in signature["facts"]:
        return None  # paths are sampled step by step, and the server runs a network once: it takes arrays
    if read.static_numbers:
        return None  # lines of JSON have none
    past, horizon = read.window.past, read.window.horizon
    if past + horizon > MAX_STEPS:
        raise ValueError(f"a window has more than {MAX_STEPS:,} steps")
    shapes: Tuple[Sequence[int], ...] = ([past], [past], [past + horizon, read.sizes.num_known])
    given = [list(spec.dims[1:]) for spec in inputs]
    expected = [list(shape) for shape in shapes] + [[len(read.window.vocabularies)]] * bool(read.window.vocabularies)
    if given != expected or not signature["outputs"]:
        raise ValueError("the windows are not those of the network's inputs")
    levels = signature["facts"]["quantiles"]
    if sorted(set(levels)) != levels or not levels or not 0 < levels[0] <= levels[-1] < 1:
        raise ValueError("quantiles are not ascending numbers between 0 and 1")
    return SeriesReader(folder)


READERS = {SeriesPasts.name: make_series_reader}
"""Readers for `mxtrain.serving.readers`, by the name of a kind of samples."""
