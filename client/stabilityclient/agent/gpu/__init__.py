"""GPUs of the node through NVML: what they measure, what changed, which rank is on which, and what can't be seen."""
