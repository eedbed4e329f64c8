"""What the server remembers over all runs: what stopped the jobs, what it cost, and which GPUs were faulty."""
