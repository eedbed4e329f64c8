"""Shared statistics of detectors: robust levels and noise, blocks, tails, state before a fork."""
