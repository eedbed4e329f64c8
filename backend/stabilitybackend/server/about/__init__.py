"""What is known about a run beside its points: facts of its launches, and what differs between two runs. Pure."""
