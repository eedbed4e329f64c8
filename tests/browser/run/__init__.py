"""Tests of the run page in a real browser."""
