"""Differences between two runs or two launches: configs key by key, facts one by one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stabilitybackend.schema.job.about import Difference

__all__ = ["config_differences", "differences", "flat", "options"]

#: Keys of a config that are compared, and how deep.
MAX_KEYS, MAX_DEPTH = 20_000, 16
#: Characters of a value that are shown.
MAX_CHARS = 500


def flat(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a config as dotted keys and texts: ``optim.lr`` -> ``0.0003``. A list is one text."""
    return dict(itertools.islice(_flat(config, "", MAX_DEPTH), MAX_KEYS))


def _flat(config: Mapping[str, Any], before: str, depth: int) -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        name = f"{before}{key}"
        if isinstance(value, dict) and value and depth:
            yield from _flat(value, f"{name}.", depth - 1)
        else:
            yield name, _text(value)


def _text(value: Any) -> str:
    """Return a value as JSON, so that 1 and "1" are not the same; words are without quotes."""
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and not _reads_as_json(value):
        text = value
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}…"


def _reads_as_json(text: str) -> bool:
    return not text or text != text.strip() or text in ("true", "false", "null") or text[0] in '"[{-0123456789'


def config_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[Difference], int]:
    """Return the keys of two configs that differ, by name, and how many are equal."""
    was, has = flat(before), flat(now)
    found = differences(was, has)
    return found, len(was.keys() & has.keys()) - sum(one.before is not None and one.now is not None for one in found)


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[Difference]:
    """Return the differences: names of ``before`` and ``now`` in their order, new ones last."""
    names = dict.fromkeys([*before, *now])
    return [Difference(name, before.get(name), now.get(name)) for name in names if before.get(name) != now.get(name)]


def options(arguments: Iterable[str]) -> dict[str, str]:
    """Return a command line as options and their values, so that two can be compared: ``--lr`` -> ``3e-4``.

    An option without a value has "". Other arguments stand under their place.
    """
    found: dict[str, str] = {}
    name, place = "", 0
    for argument in arguments:
        if argument.startswith("-") and not _is_number(argument):
            name, mark, value = argument.partition("=")
            name = _free(found, name)
            found[name] = value
            name = "" if mark else name
        elif name:
            found[name], name = argument, ""
        elif "=" in argument and argument.partition("=")[0].replace(".", "").replace("_", "").isalnum():
            key, _, value = argument.partition("=")
            found[_free(found, key)] = value
        else:
            place += 1
            found[_free(found, f"argument {place}")] = argument
    return found


def _free(found: Mapping[str, str], name: str) -> str:
    further = (f"{name} ({n})" for n in itertools.count(2))
    return name if name not in found else next(one for one in further if one not in found)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
