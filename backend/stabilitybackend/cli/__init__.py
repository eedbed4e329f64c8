"""The program ``stabilityboard`` and how it serves."""
