"""The engine of one curve, and the detector that judges the curves of a run with it."""
