"""Puts the modules of ``assets/`` into one script, so that a page asks for one file and not for sixty.

It joins texts and understands no JavaScript. Of others a module has the forms read here, at the start of a line:
``import { a, b as c } from "./other.js";``, and ``export`` before a function, class or const. In the bundle a module
is a function that returns its exports; it follows those that it imports. A module keeps its lines, so that
the map, by which developers' tools show the files, holds only the begin of each.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources.abc import Traversable
from posixpath import dirname, join, normpath

__all__ = ["Bundle", "bundle"]

_IMPORT = re.compile(r'^import \{([^}]*)\} from "([^"]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async function|function|class|const) (\w+))", re.MULTILINE)
#: The rest at the start of a line after both: a form that this does not read.
_OTHER = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Bundle:
    """Modules in one text.

    Attributes:
        text: statements that define a constant for each module; ``modules`` maps its name to its exports.
        sources: name and text of each module, in their order in ``text``.
    """

    text: str
    sources: dict[str, str]

    def source_map(self) -> str:
        """Return the map that shows developers the modules in place of the bundle, version 3 as JSON."""
        sections, line = [], 0
        for name, source in self.sources.items():
            line += 1  # the line that opens the module's function
            lines = source.count("\n")
            mapped = {"version": 3, "sources": [name], "sourcesContent": [source], "names": []}
            mappings = "AAAA" + ";AACA" * (lines - 1)
            sections.append({"offset": {"line": line, "column": 0}, "map": mapped | {"mappings": mappings}})
            line += lines + 2  # its return, and its end
        return json.dumps({"version": 3, "sections": sections})


@cache
def bundle(root: Traversable, entry: str) -> Bundle:
    """Join a module and all that it imports, once in a process: a started server serves its first version.

    Args:
        root: the folder of modules.
        entry: name of the module that all others hang on, relative to ``root``.

    Raises:
        ValueError: modules import each other in a circle, or one has an import or export that is not read here.
    """
    sources: dict[str, str] = {}
    _collect(root, entry, sources, ())
    texts = [_wrapped(name, source) for name, source in sources.items()]
    names = ", ".join(f'"{name}": {_constant(name)}' for name in sources)
    return Bundle("".join(texts) + f"const modules = {{ {names} }};\n", sources)


def _collect(root: Traversable, name: str, done: dict[str, str], above: tuple[str, ...]) -> None:
    if name in above:
        raise ValueError(f"modules import each other: {' -> '.join((*above[above.index(name) :], name))}")
    if name in done:
        return
    source = root.joinpath(name).read_text(encoding="utf-8")
    for imported in _IMPORT.finditer(source):
        _collect(root, normpath(join(dirname(name), imported[2])), done, (*above, name))
    done[name] = source


def _wrapped(name: str, source: str) -> str:
    def taken(found: re.Match[str]) -> str:
        return f"const {{{found[1].replace(' as ', ': ')}}} = {_constant(normpath(join(dirname(name), found[2])))};"

    body = _EXPORT.sub("", _IMPORT.sub(taken, source))
    if unread := _OTHER.search(body):
        raise ValueError(f"{name}: {unread[0]!r} is neither `import {{ ... }} from` nor `export function|class|const`")
    given = ", ".join(found[1] for found in _EXPORT.finditer(source))
    return f"const {_constant(name)} = (() => {{\n{body}return {{ {given} }};\n}})();\n"


def _constant(name: str) -> str:
    return re.sub(r"\W", "_", name.removesuffix(".js"))
