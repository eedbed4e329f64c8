"""Data of a step: ids of its samples become one id of the batch and a few hashes of samples."""
