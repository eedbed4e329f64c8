"""Statistics that detectors share: robust levels and noise, blocks, tails, what was before a fork."""
