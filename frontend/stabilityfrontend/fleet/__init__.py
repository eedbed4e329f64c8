"""The pages over all runs: their incidents, and their interruptions."""
