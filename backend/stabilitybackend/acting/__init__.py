"""Commands and the autopilot."""
