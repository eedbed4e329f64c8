"""Follows runs: one worker a run folds its stream into the run's state; the rest stores and publishes the result."""
