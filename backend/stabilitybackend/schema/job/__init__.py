"""The job of a run besides its points: launches, tags and notes, printed lines."""
