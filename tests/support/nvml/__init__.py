"""A libnvidia-ml.so.1 of ours that the real pynvml calls, and a process that watches its GPUs as an agent does."""
