"""Reading of table files (CSV, TSV, Parquet): cells, columns, and what kind of values a column has."""
