"""Calls about people: what they propose and approve, and what was done by whom."""
