"""Incidents, one per real event, and advice about them. Pure."""
