"""Contract of detectors, their input, the bank that feeds a run's detectors, and their conformance checks."""
