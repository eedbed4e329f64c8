"""Which process works on a run: the owner that Redis names, and the check of it in every write that depends on it."""
