"""Hanging jobs: overdue ranks, awaited ranks, and the verdict. Pure."""
