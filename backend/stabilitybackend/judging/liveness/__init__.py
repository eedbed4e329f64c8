"""Hanging jobs, dead processes and lost agents, told apart. Pure."""
