"""Cells of tables that mean a missing value. Exported folders have a copy of this module."""

from __future__ import annotations

MISSING_CELLS = (
    "",
    "NA",
    "N/A",
    "n/a",
    "NaN",
    "nan",
    "-NaN",
    "-nan",
    "null",
    "NULL",
    "None",
    "<NA>",
    "#N/A",
    "#N/A N/A",
    "#NA",
    "1.#IND",
    "1.#QNAN",
    "-1.#IND",
    "-1.#QNAN",
    "\\N",
    "?",
)
"""Cells that mean a missing value by default: those of pandas, SQL's \\N and UCI's question mark."""
MISSING_NUMBERS = ("-", "--", "\u2013", "\u2014", ".")
"""Further cells without a value, in columns of numbers alone."""
