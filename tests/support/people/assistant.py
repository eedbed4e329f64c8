"""How the MCP SDK's own client starts ``stabilityboard mcp``."""

from __future__ import annotations

import os
import sys
from typing import Any

from mcp import StdioServerParameters, stdio_client

__all__ = ["spoken_to"]


def spoken_to(url: str, *options: str) -> Any:
    """Return what the SDK's client takes: the program ``stabilityboard mcp`` as a process of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STABILITY_")}
    return stdio_client(StdioServerParameters(
        command=sys.executable, args=["-m", "stabilitybackend.cli", "mcp", *options],
        env=environment | {"STABILITY_URL": url},
    ))  # fmt: skip
