"""Skeletons of what a page shows of a job beside its points: what it is, and what its ranks print."""
