"""Base class of results that are tables."""

from __future__ import annotations

from typing import Any, Dict, List


class ResultTable:
    """A result with a row for each run, trial or job."""

    def rows(self) -> List[Dict[str, Any]]:
        """Returns a dict for each row, in their order."""
        raise NotImplementedError

    def frame(self) -> Any:
        """Returns the rows as a pandas DataFrame. Raises: ImportError if pandas is not installed."""
        import pandas  # type: ignore[import-untyped]

        return pandas.DataFrame(self.rows())
