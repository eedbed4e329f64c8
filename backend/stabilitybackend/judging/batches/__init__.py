"""Which data each step of a run saw: ids of batches, repeats of them, and samples seen once, twice or more."""
