"""A Slack app as a receiver: one thread an incident, buttons. Needs ``stabilityboard[slack]``."""

from .channel import SlackAppSink

__all__ = ["SlackAppSink"]
