"""Engine of one curve, and the detector of a run's curves."""
