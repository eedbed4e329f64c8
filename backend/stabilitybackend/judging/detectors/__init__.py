"""Detectors of every run: one file each, and their registry."""
