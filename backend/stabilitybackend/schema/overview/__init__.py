"""Answers about many runs at once."""
