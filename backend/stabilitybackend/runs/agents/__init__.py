"""Reports of a run's agents other than its points: their connections, their Health, output of ranks."""
