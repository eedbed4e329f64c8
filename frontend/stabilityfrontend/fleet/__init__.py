"""The pages over all runs: their incidents, and what interrupted them."""
