"""Writes a whole run as JSON lines or Parquet."""
