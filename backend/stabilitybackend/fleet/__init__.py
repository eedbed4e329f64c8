"""Memory over all runs: interruptions, their costs, faulty GPUs."""
