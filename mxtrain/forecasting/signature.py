"""The signature of series: the grid of their times, the length of windows, and the scale of covariates."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Dict, NamedTuple, Sequence, Tuple

from mxtrain.data.signature import REQUIRED, Signature
from mxtrain.errors import DamagedCheckpoint
from mxtrain.files.json_form import NUMBER
from mxtrain.forecasting.model import build_forecaster
from mxtrain.forecasting.series_set import WindowForm
from mxtrain.forecasting.time_grid import parse_frequency

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.model.spec import Model
    from mxtrain.types import Shape
    from mxtrain.types.annotations import Json, JsonForm


class SeriesSizes(NamedTuple):
    """Sizes of the inputs of a forecasting network.

    Attributes:
        past, horizon: steps before and after the cut, P and H.
        season: steps after which values repeat; 1 = they do not.
        num_known: facts of a step, K.
        num_static: numbers of an item, S.
        category_sizes: number of ids of each category of an item.
    """

    past: int
    horizon: int
    season: int
    num_known: int
    num_static: int
    category_sizes: Tuple[int, ...]


@dataclass(frozen=True)
class SeriesSignature(Signature):
    """Windows of series.

    Attributes:
        frequency: distance of two times, such as "h".
        season: number of steps after which values repeat.
        window: form of the inputs.
        known_columns: names of the covariates; the last ones may be known for the past alone, see `WindowForm`.
        static_numbers, static_texts: names of the numbers and of the texts of items.
    """

    form: ClassVar[Dict[str, JsonForm]] = {
        **Signature.form,
        "frequency": str,
        "season": int,
        "window": {
            "past": int,
            "horizon": int,
            "known_mean": [NUMBER],
            "known_std": [NUMBER],
            "static_mean": [NUMBER],
            "static_std": [NUMBER],
            "vocabularies": [[str]],
            "observed?": int,
        },
        "known_columns": [str],
        "static_numbers": [str],
        "static_texts": [str],
    }
    known_names: ClassVar[Tuple[str, ...]] = ("past", "horizon", "season", "num_known", "num_static", "category_sizes")
    exported_reader: ClassVar[str] = "mxtrain.forecasting.exported_series"

    frequency: str = REQUIRED
    season: int = REQUIRED
    window: WindowForm = REQUIRED
    known_columns: Sequence[str] = ()
    static_numbers: Sequence[str] = ()
    static_texts: Sequence[str] = ()

    @property
    def future_columns(self) -> Sequence[str]:
        """Returns the names of the covariates that are needed of the steps to predict."""
        return self.known_columns[: self.window.num_future]

    @property
    def sizes(self) -> SeriesSizes:
        """Returns the sizes of the inputs."""
        window = self.window
        num_known = self.shape[2][1]  # type: ignore[index]  # of several inputs
        categories = tuple(1 + len(values) for values in window.vocabularies)
        return SeriesSizes(window.past, window.horizon, self.season, num_known, len(window.static_mean), categories)

    def build_network(self, model: Model, num_classes: int, output_shapes: Sequence[Shape]) -> gluon.Block:
        return build_forecaster(model, num_classes, self.sizes)

    def to_json(self) -> Dict[str, Json]:
        values = asdict(self.window)
        window = {name: _plain(value) for name, value in values.items()}
        names = {name: list(getattr(self, name)) for name in ("known_columns", "static_numbers", "static_texts")}
        return {**super().to_json(), "frequency": self.frequency, "season": self.season, "window": window, **names}

    @classmethod
    def _arguments(cls, values: Dict[str, Any]) -> Dict[str, Any]:
        window = WindowForm(**values["window"])
        try:
            parse_frequency(values["frequency"])
        except ValueError as error:
            raise DamagedCheckpoint(f"The checkpoint cannot be used: {error}.") from error
        lengths = (len(window.known_mean) == len(window.known_std), len(window.static_mean) == len(window.static_std))
        scales = [*window.known_std, *window.static_std]
        is_window = min(window.past, window.horizon, values["season"]) >= 1 and all(lengths)
        if not is_window or min(scales, default=1) <= 0 or not 0 <= window.observed <= len(window.known_mean):
            raise DamagedCheckpoint("The checkpoint cannot be used: it holds no windows of series.")
        return {**super()._arguments(values), "window": window}


def _plain(value: Any) -> Any:
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value
