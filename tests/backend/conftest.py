"""Fixtures of `support.server_fixtures`: `server`, `stage` and `program`."""

from support.server_fixtures import program, server, stage

__all__ = ["program", "server", "stage"]
