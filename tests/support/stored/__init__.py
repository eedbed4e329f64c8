"""What earlier processes left in Redis, for tests that begin there."""
