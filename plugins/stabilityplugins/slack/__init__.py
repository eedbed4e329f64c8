"""Slack app: incidents as threads, with buttons and commands. Prose: docs/slack.md."""
