"""Feeds a run's rows to the detectors, and adds the evidence to what they find."""
