"""Stored points: Redis, Parquet archive, queries, export."""
