"""Long history of a run as Parquet: parts, their aggregates per block of steps, and the place they lie in."""
