"""Runs for assistants: an MCP server next to the program, which asks a running server over HTTP."""

from __future__ import annotations

import typer

from stabilitybackend.hooks import hook


@hook
def commands_of_the_program(cli: typer.Typer) -> None:
    from stabilityplugins.mcp.cli import serve_mcp

    cli.command("mcp")(serve_mcp)
