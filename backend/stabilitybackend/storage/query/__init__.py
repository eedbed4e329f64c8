"""What charts ask of a run's points: buckets, smoothing, x axes, and only what is new."""
