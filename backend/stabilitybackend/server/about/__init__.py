"""Facts of a run's launches, and differences between two runs. Pure."""
