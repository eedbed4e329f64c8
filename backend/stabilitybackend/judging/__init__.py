"""Detectors, incidents, liveness, GPUs: from points to findings."""
