"""Moves old frames to files, and brings a run's state back from them."""
