"""Slack app: incidents as threads, with buttons and commands. Prose: README of the Slack plug-in."""
