"""What agents of a run bring beside its points: their connections, their Health, what ranks print."""
