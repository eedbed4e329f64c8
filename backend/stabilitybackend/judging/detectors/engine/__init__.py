"""What a detector is, what it may see, and how a run's detectors are fed; the law that each keeps."""
