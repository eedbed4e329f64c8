"""Runs: who follows which, one run as a fold over its frames, its points, what charts ask, what browsers get."""
