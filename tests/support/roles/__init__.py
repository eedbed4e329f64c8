"""A server of several processes for tests: real roles, a real Redis, and what stands before the doors."""
