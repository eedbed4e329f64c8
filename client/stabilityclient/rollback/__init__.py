"""Rollbacks in the training process: read between two steps, agreed by all ranks, carried out by the job's handler."""
