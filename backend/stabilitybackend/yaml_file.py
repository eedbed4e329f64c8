"""Reads YAML that people write into a Struct; what is wrong is told with file, line and what is allowed."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
import yaml

from stabilitybackend.errors import SettingsError

__all__ = ["MAX_YAML_BYTES", "read_yaml", "wrong_at"]

T = TypeVar("T")

#: Longest text, bytes: some thousand routes. YAML of a few lines can stand for gigabytes (aliases of aliases), so
#: aliases are refused too.
MAX_YAML_BYTES = 256 * 1024
_PATH = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")


def read_yaml(text: str, form: type[T], name: str) -> T:
    """Return what a YAML text holds.

    Args:
        form: a Struct with ``forbid_unknown_fields``: what is not one of its fields is refused.
        name: what the message calls the text, such as its file.

    Raises:
        SettingsError: it is no YAML, holds an alias, or does not fit ``form``: ``name``, line, what was given and
            what was expected.
    """
    if len(text.encode()) > MAX_YAML_BYTES:
        raise SettingsError(f"{name}: {len(text.encode()):,} bytes, expected at most {MAX_YAML_BYTES:,}")
    try:
        for event in yaml.parse(text, yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise SettingsError(f"{name}, line {event.start_mark.line + 1}: an alias (*), write the value again")
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise SettingsError(f"{name}{line}: no YAML: {getattr(error, 'problem', None) or error}") from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{name}: no YAML that can be read: {error}") from None
    try:
        return msgspec.convert(found, form)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at ")
        raise wrong_at(text, name, path.strip("`"), message[:1].lower() + message[1:]) from None


def wrong_at(text: str, name: str, path: str, message: str) -> SettingsError:
    """Return the error for what stands at ``path`` of a text, such as ``$.routes[0].receivers``, with its line."""
    node = yaml.compose(text, yaml.SafeLoader)
    for key, index in _PATH.findall(path):
        below = None
        if isinstance(node, yaml.MappingNode):
            below = next((value for name_, value in node.value if name_.value == key), None)
        elif isinstance(node, yaml.SequenceNode) and index.isdigit() and int(index) < len(node.value):
            below = node.value[int(index)]
        if below is None:
            break
        node = below
    line = f", line {node.start_mark.line + 1}" if node is not None else ""
    where = path.removeprefix("$").lstrip(".")
    return SettingsError(f"{name}{line}: {f'{where}: ' if where else ''}{message}")
