"""The options of all commands that talk to a server, and the server that they mean."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import orjson
import typer

from stabilitybackend.base.api_client import ApiClient
from stabilitybackend.base.errors import WRONG_USE, BadRequest
from stabilitybackend.base.settings import Settings
from stabilitybackend.cli.serving import read_server_file

__all__ = ["ApiKey", "AsJson", "DataDir", "Url", "check_unasked", "connect", "show_json"]

#: Where a server listens that was started with no options.
DEFAULT_URL = "http://127.0.0.1:8080"

Url = Annotated[str | None, typer.Option(help="The server. (default: STABILITY_URL, or the one running here)")]
ApiKey = Annotated[str | None, typer.Option(envvar="STABILITY_API_KEY", help="API key, where the server needs one.")]
DataDir = Annotated[Path | None, typer.Option(help="Data folder of the server running here, to find its URL.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document, errors too.")]


def show_json(document: Any) -> None:
    """Print the one JSON document of a command called with ``--json``: JSON, or Structs in it."""
    text = orjson.dumps(document, msgspec.to_builtins, orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)
    sys.stdout.write(text.decode() + "\n")
    sys.stdout.flush()


def check_unasked(yes: bool) -> None:
    """Raise BadRequest where ``--json`` is given to a command that would ask, without ``--yes``."""
    if not yes:
        raise BadRequest("--json asks no question, and this needs a yes", hint="add --yes", code=WRONG_USE)


def connect(url: str | None, api_key: str | None, data_dir: Path | None) -> ApiClient:
    """Return the client of the server as given, else of ``STABILITY_URL``, else of the one that runs on the folder."""
    settings = Settings.from_env_and_args(os.environ, data_dir=data_dir)
    found = url or os.environ.get("STABILITY_URL") or read_server_file(settings.data_dir).get("url") or DEFAULT_URL
    return ApiClient(str(found), api_key)
