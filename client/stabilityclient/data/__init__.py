"""What a step saw: ids of its samples become one id of the batch and a few hashes of samples."""
