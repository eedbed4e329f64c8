"""Fixture of `support.outside.http_receiver`: `receiver`."""

from support.outside.http_receiver import receiver

__all__ = ["receiver"]
