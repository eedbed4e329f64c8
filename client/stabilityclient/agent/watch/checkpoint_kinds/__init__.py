"""What a checkpoint on disk is, and whether all of it is there: one file for each kind. Nothing is ever unpickled."""
