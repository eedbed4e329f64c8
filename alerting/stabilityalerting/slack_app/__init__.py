"""A Slack app as a receiver: one thread an incident, buttons. Needs ``stabilityboard[slack]``; see docs/slack.md."""

from .receiver import SlackAppSink

__all__ = ["SlackAppSink"]
