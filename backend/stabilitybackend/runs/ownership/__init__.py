"""The process that works on a run: the owner in Redis, and the check of ownership in every write that depends on it."""
