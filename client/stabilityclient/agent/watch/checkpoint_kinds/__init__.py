"""Kind of a checkpoint on disk, and whether it is complete: one file for each kind. Nothing is ever unpickled."""
