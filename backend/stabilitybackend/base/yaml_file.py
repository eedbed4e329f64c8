"""Reads YAML; an error names file, line, the given and the expected value."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec
import yaml

from stabilitybackend.base.errors import BadRequest

__all__ = ["MAX_YAML_CHARS", "BadYaml", "YamlPlace", "read_yaml"]

T = TypeVar("T")

#: Longest text, characters: a person wrote it.
MAX_YAML_CHARS = 64 * 1024
#: Levels of nesting.
MAX_DEPTH = 12
#: Values, lists and mappings together: some hundred routes, and 20 ms of CPU.
MAX_VALUES = 5_000
#: Longest plain number, characters: a longer one is a text. Digits are read in a time that grows with their square.
MAX_NUMBER_CHARS = 64
#: Characters of a wrong value that are shown.
_SHOWN = 60
#: libyaml's reader, which every wheel of PyYAML has: the one in Python takes a second for MAX_YAML_CHARS.
_Loader = yaml.CSafeLoader
#: A step of a path such as ``$.routes[0].receivers``.
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


class BadYaml(BadRequest):
    """A YAML text is wrong; ``facts`` has ``file`` and ``line``."""

    default_code = "bad_yaml"


class YamlPlace:
    """A value in a text, with its line.

    Args:
        value: a plain one, a list of places, or a dict of places by name.
        line: counted from 1.
        path: how to get there, for example ``limit.actions``; "" for the whole.
    """

    __slots__ = ("file", "line", "path", "value")

    def __init__(self, value: object, file: str, line: int, path: str) -> None:
        self.value = value
        self.file = file
        self.line = line
        self.path = path

    def wrong(self, expected: str, hint: str = "") -> BadYaml:
        """Return the error of an unexpected value here."""
        what = f"{self.path} is" if self.path else "the file holds"
        return _bad(self.file, self.line, f"{what} {self._given()}, expected {expected}", hint)

    def _given(self) -> str:
        if isinstance(self.value, dict):
            return "a mapping"
        if isinstance(self.value, list):
            return "a list"
        return "empty" if self.value is None else f"{self.value!r:.{_SHOWN}}"

    def fields(self, allowed: Sequence[str]) -> dict[str, YamlPlace]:
        """Return the entries of a mapping by name; nothing for one that is empty.

        Raises:
            BadYaml: another type, or an unexpected name.
        """
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise self.wrong(f"a mapping with some of {', '.join(allowed)}")
        for name, place in self.value.items():
            if name not in allowed:
                where = f" in {self.path}" if self.path else ""
                raise _bad(place.file, place.line, f"{name!r:.{_SHOWN}}{where} is not known", _among(allowed))
        return self.value

    def items(self, expected: str) -> list[YamlPlace]:
        """Return the entries of a list; ``expected`` describes them. Raises BadYaml for another type."""
        if not isinstance(self.value, list):
            raise self.wrong(f"a list of {expected}")
        return self.value

    def plain(self) -> Any:
        """Return the value as plain Python."""
        if isinstance(self.value, dict):
            return {name: place.plain() for name, place in self.value.items()}
        return [place.plain() for place in self.value] if isinstance(self.value, list) else self.value

    def struct(self, form: type[T]) -> T:
        """Return the value as a Struct with ``forbid_unknown_fields``. Raise BadYaml where it does not fit."""
        try:
            return msgspec.convert(self.plain(), form)
        except msgspec.ValidationError as error:
            message, _, path = str(error).partition(" - at ")
            raise self.wrong_at(path.strip("`"), message[:1].lower() + message[1:]) from None

    def wrong_at(self, path: str, message: str) -> BadYaml:
        """Return the error for the value at a path below, such as ``$.routes[0].receivers`` (counted from 0)."""
        place = self
        for name, at in _STEP.findall(path):
            below = place.value
            if isinstance(below, dict) and name in below:
                place = below[name]
            elif isinstance(below, list) and at and int(at) < len(below):
                place = below[int(at)]
            else:
                break
        return _bad(self.file, place.line, f"{place.path}: {message}" if place.path else message)

    def flag(self) -> bool:
        """Return true or false. Raise BadYaml for anything else."""
        if not isinstance(self.value, bool):
            raise self.wrong("true or false")
        return self.value

    def whole(self, low: int, high: int) -> int:
        """Return a whole number in a range, both ends included. Raise BadYaml for anything else."""
        if type(self.value) is not int or not low <= self.value <= high:
            raise self.wrong(f"a whole number from {low:,} to {high:,}")
        return self.value

    def number(self, low: float, high: float) -> float:
        """Return a number in a range, both ends included. Raise BadYaml for anything else."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.wrong(f"a number from {low:g} to {high:g}")
        if not low <= value <= high:
            raise self.wrong(f"a number from {low:g} to {high:g}")
        return float(value)

    def text(self, max_chars: int) -> str:
        """Return a text that is not empty. Raise BadYaml for anything else."""
        if not isinstance(self.value, str) or not 1 <= len(self.value) <= max_chars:
            raise self.wrong(f"a text of 1 to {max_chars:,} characters")
        return self.value

    def word(self, allowed: Sequence[str]) -> str:
        """Return one of some words. Raise BadYaml for anything else."""
        if not isinstance(self.value, str) or self.value not in allowed:
            raise self.wrong(f"one of {', '.join(allowed)}")
        return self.value

    def words(self, allowed: Sequence[str]) -> tuple[str, ...]:
        """Return some of some words, each once, at least one. Raise BadYaml for anything else."""
        found = [one.word(allowed) for one in self.items(", ".join(allowed))]
        if not found or len(set(found)) < len(found):
            raise self.wrong(f"some of {', '.join(allowed)}, each once")
        return tuple(found)


def read_yaml(text: str, file: str) -> YamlPlace:
    """Return the one document in a text.

    Only plain values, lists and mappings are read; anchors, tags and a name that comes twice are refused. The work is
    bounded: nesting is refused as soon as the reader meets it, since libyaml and PyYAML take a time that grows with the
    square of the depth. Still some 20 ms of CPU: call it in a thread where a request brought the text.

    Args:
        file: its name, for messages.

    Raises:
        BadYaml: it is no YAML, too long, or too deep.
    """
    if len(text) > MAX_YAML_CHARS:
        raise _bad(file, 1, f"the text has {len(text):,} characters, expected at most {MAX_YAML_CHARS:,}")
    try:
        _check_events(text, file)
        node = yaml.compose(text, Loader=_Loader)
        loader = yaml.SafeLoader("")
        return YamlPlace(None, file, 1, "") if node is None else _place(node, file, "", loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # libyaml puts the end of a text without a last line break into a line of its own.
        line = 1 if mark is None else min(mark.line + 1, len(text.splitlines()) or 1)
        raise _bad(file, line, f"it is no YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise _bad(file, 1, f"it is no YAML: {error!s:.200}") from error


def _check_events(text: str, file: str) -> None:
    """Refuse anchors, aliases, tags, more than MAX_DEPTH levels or MAX_VALUES, at the event that brings them."""
    depth = count = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.NodeEvent):
            if isinstance(event, yaml.AliasEvent) or event.anchor:
                raise _bad(file, line, "an anchor or alias is there, expected plain values")
            if event.tag:
                raise _bad(file, line, f"a tag ({event.tag:.{_SHOWN}}) is there, expected plain values")
            depth += isinstance(event, yaml.CollectionStartEvent)
            count += 1
        if depth > MAX_DEPTH:
            raise _bad(file, line, f"more than {MAX_DEPTH} levels, expected fewer")
        if count > MAX_VALUES:
            raise _bad(file, line, f"more than {MAX_VALUES:,} values, expected fewer")


def _place(node: yaml.Node, file: str, path: str, loader: yaml.SafeLoader) -> YamlPlace:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        items = [_place(one, file, f"{path}[{at}]", loader) for at, one in enumerate(node.value, 1)]
        return YamlPlace(items, file, line, path)
    if isinstance(node, yaml.MappingNode):
        return YamlPlace(dict(_entries(node, file, path, loader)), file, line, path)
    if len(node.value) > MAX_NUMBER_CHARS and not node.style:
        return YamlPlace(node.value, file, line, path)
    try:
        value = loader.construct_object(node)
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise _bad(file, line, f"{node.value!r:.{_SHOWN}} can't be read as what it is marked as") from error
    if value is not None and not isinstance(value, str | bool | int | float):
        value = node.value  # a date: as it was written
    return YamlPlace(value, file, line, path)


def _entries(node: yaml.MappingNode, file: str, path: str, loader: yaml.SafeLoader) -> Iterator[tuple[str, YamlPlace]]:
    seen: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise _bad(file, line, "a name is a list or a mapping, expected a word")
        name = str(key.value)
        if name in seen:
            raise _bad(file, line, f"{name!r:.{_SHOWN}} is there twice, first in line {seen[name]}, expected once")
        seen[name] = line
        place = _place(value, file, f"{path}.{name}" if path else name, loader)
        place.line = line if place.value is None or isinstance(place.value, dict) else place.line
        yield name, place


def _bad(file: str, line: int, problem: str, hint: str = "") -> BadYaml:
    return BadYaml(f"{file}, line {line}: {problem}", hint=hint or "correct that line; nothing was changed", file=file,
                   line=line)  # fmt: skip


def _among(allowed: Sequence[str]) -> str:
    return f"allowed: {', '.join(allowed)}"
