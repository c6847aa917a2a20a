"""MovieLens in each form in which GroupLens publishes it: ratings.csv, u.data and ratings.dat."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Literal, Mapping, Optional, Sequence, Tuple

from mxtrain.data.checking.problems import STRICT, Findings
from mxtrain.data.loading.dataset_files import exists, suggest_existing
from mxtrain.data.loading.public_files import PublicDataset
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.data.table.columns import stream_rows
from mxtrain.errors import DataError
from mxtrain.recommendation.base import InteractionDataset
from mxtrain.recommendation.given_features import GivenFeatures
from mxtrain.recommendation.interaction_cache import cached_interactions
from mxtrain.recommendation.movielens_features import film_titles, movielens_features
from mxtrain.recommendation.rows import Columns, read_pairs, separated_rows
from mxtrain.recommendation.source import InteractionRows
from mxtrain.types import PathText, Positive

CSV = "ratings.csv"
CSV_COLUMNS = ("userId", "movieId", "rating", "timestamp")
SEPARATORS: Dict[str, str] = {"u.data": "\t", "ratings.dat": "::"}
"""Separator by file name. The files have no header; their columns are user, item, rating and time."""
NAMES: Tuple[str, ...] = (CSV, *SEPARATORS)


class MovieLens(PublicDataset, InteractionDataset):
    """Ratings of films: 100K (u.data), 1M and 10M (ratings.dat), and the later ones (ratings.csv)."""

    root: PathText = "data/movielens"
    """The unpacked folder, or the file itself; by default in the folder that MXTRAIN_DATA names, else in data/."""
    version: Literal["100k", "1m", "10m", "20m", "25m"] = "1m"
    """The version that `download=true` puts into the folder ml-VERSION of `root`, and reads."""
    min_rating: Optional[float] = None
    """Minimum rating; lower ratings are ignored; null = all ratings count as interactions, as in papers on implicit
    feedback."""

    features: bool = False
    """If true, the files of users and films beside the ratings are read (u.user, u.item, users.dat, movies.dat,
    movies.csv), for networks for features (model=factorization_machine, wide_deep, deepfm)."""
    buckets: Positive = 1000
    """Number of ids of the zip codes of users: each has the id crc32(value) modulo this."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        names = files.named("ratings.csv") + files.named("u.data") + files.named("ratings.dat")
        if not names or (names[0].endswith(".csv") and "movieId" not in files.columns(names[0])):
            return None
        return Recognised("MovieLens", {"root": files.typed()}, "recommendation", Certainty.SURE)

    @property
    def public_names(self) -> Sequence[str]:
        """Returns the chosen version."""
        return [f"movielens-{self.version}"]

    @property
    def data_name(self) -> str:
        return f"dataset.root={self.root}"

    @property
    def feature_setting(self) -> str:
        """See `InteractionDataset.feature_setting`."""
        return "features" if self.features else ""

    def side_file(self, side: str) -> Optional[GivenFeatures]:
        """See `InteractionDataset.side_file`."""
        return movielens_features(self._file().parent, side, self.buckets, STRICT) if self.features else None

    def item_titles(self) -> Mapping[str, str]:
        """See `InteractionDataset.item_titles`."""
        return film_titles(self._file().parent)

    def read(self, findings: Findings) -> InteractionRows:
        """See `InteractionDataset.read`."""
        self.fetch()
        path = self._file()
        columns = Columns(True, True, self.min_rating)

        def read() -> InteractionRows:
            if path.name == CSV:
                return read_pairs(path, stream_rows(path, CSV_COLUMNS, True, findings=findings), columns, findings)
            rows = separated_rows(path, SEPARATORS[path.name], len(CSV_COLUMNS), findings)
            return read_pairs(path, rows, columns, findings)

        return cached_interactions(path, path.name, columns, read, findings)

    def _file(self) -> Path:
        root = Path(self.root) / f"ml-{self.version}" if self.download else Path(self.root)
        path = root if root.name in NAMES else next((root / name for name in NAMES if exists(root / name)), None)
        if path is None or not exists(path):
            problem = (
                f"none of {', '.join(NAMES)} in it." if exists(root) else f"no such folder.{suggest_existing(root)}"
            )
            raise DataError(
                f"{self.data_name}: there is {problem} Name the folder that GroupLens' archive unpacks to"
                f"{self._inside(root)}."
            )
        return path

    def _inside(self, root: Path) -> str:
        """Returns a hint with the subfolders that contain such a file."""
        folders = sorted({str(file.parent) for name in NAMES for file in root.glob(f"*/{name}")})
        return f": dataset.root={' or '.join(folders)}" if folders else ""
