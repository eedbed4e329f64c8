"""Data of each step of a run: ids of batches, repeats, and samples seen once, twice or more."""
