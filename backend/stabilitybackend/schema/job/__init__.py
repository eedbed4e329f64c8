"""What is known about the job of a run beside its points: its launches, its tags and notes, what its ranks print."""
