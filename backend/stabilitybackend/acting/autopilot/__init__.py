"""Autopilot: permissions (policy) and decisions (ladder). Pure: no clock, no I/O."""
