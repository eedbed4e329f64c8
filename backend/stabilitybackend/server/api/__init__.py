"""HTTP and WebSocket routes; thin: they check who asks, read the request, and answer from the run's worker."""
