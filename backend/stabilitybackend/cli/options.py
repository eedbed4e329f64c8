"""The options of all commands that talk to a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["ApiKey", "DataDir", "Url"]

Url = Annotated[str | None, typer.Option(help="The server. (default: STABILITY_URL, or the one running here)")]
ApiKey = Annotated[str | None, typer.Option(envvar="STABILITY_API_KEY", help="API key, where the server needs one.")]
DataDir = Annotated[Path | None, typer.Option(help="Data folder of the server running here, to find its URL.")]
