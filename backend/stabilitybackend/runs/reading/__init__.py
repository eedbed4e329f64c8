"""Runs that another process works on, or none: read here as they are stored, with nothing written."""
