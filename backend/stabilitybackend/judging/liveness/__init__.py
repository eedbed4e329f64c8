"""Hanging jobs, dead processes and lost agents, distinguished. Pure."""
