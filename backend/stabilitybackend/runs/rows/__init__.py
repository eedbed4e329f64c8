"""Rows that found their segment, into the state of a run."""
