"""Findings about GPUs, from agents' reports. Pure."""
