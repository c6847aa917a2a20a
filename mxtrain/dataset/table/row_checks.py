"""Checks of rows of numbers for `data check`; the cells were checked when their table was read."""

from __future__ import annotations

from mxtrain.dataset.checking.checks import Checked, SourceChecks, digest_of


class RowChecks(SourceChecks):
    """Checks of `Rows`: what is no number was found when the table was read, so rows are only compared."""

    def check(self, index: int) -> Checked:
        """See `Checks`."""
        rows = self._source
        if rows.have_ids:
            return Checked()
        return Checked(digest=digest_of(rows.value_NF[index].tobytes(), rows.target_N[index].tobytes()))
