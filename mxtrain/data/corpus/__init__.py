"""Data that was prepared once and is kept on the disk: named flat arrays of records, mapped into memory."""
