"""Rows of a run to its detectors, and evidence for their findings."""
