"""``stabilityboard mcp``: the server of assistants. Their setup is in README.md."""

from __future__ import annotations

from typing import Annotated

import typer

from stabilitybackend.base.errors import StabilityBoardError
from stabilitybackend.cli.options import ApiKey, DataDir, Url, connect

__all__ = ["serve_mcp"]


def serve_mcp(
    allow_orders: Annotated[
        bool,
        typer.Option(
            "--allow-orders", help="It may also propose a rollback, restart, ...: a person has to approve each one."
        ),
    ] = False,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
) -> None:
    """Answer an assistant (Model Context Protocol, over stdin and stdout) about the runs of a server. Read-only."""
    try:
        from stabilityplugins.mcp.server import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise StabilityBoardError(
            "the MCP SDK is not installed", hint="pip install 'stabilityboard[mcp]'", code="not_installed"
        ) from error
    with connect(url, api_key, data_dir) as client:
        run(client, allow_orders=allow_orders)
