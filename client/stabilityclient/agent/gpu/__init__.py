"""GPUs of the node through NVML: measurements, changes, their ranks, and gaps in visibility."""
