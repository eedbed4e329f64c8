"""Prints lines that hold names of files, runs and metrics: a terminal obeys nothing in them."""

from __future__ import annotations

import typer

__all__ = ["echo", "printable"]

_UNPRINTABLE = "\N{REPLACEMENT CHARACTER}"


def echo(text: str, *, err: bool = False) -> None:
    """Print a text, on standard error where ``err`` is set."""
    typer.echo(printable(text), err=err)


def printable(text: str) -> str:
    """Return a text without a terminal's commands: escapes, and marks that turn the direction of a line."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else _UNPRINTABLE for one in text)
