"""Autopilot: what it may order by itself (policy), and when it does (ladder). Pure: no clock, no I/O."""
