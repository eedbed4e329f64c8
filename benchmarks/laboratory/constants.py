"""A table of the numbers that rules are made of, from the comments above them: ``constants.py [FOLDER ...]``.

Prints Markdown. Folders are of the backend; without one, all of it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["constants_of", "page"]

_BACKEND = Path(__file__).parents[2] / "backend" / "stabilitybackend"
_HEAD = """# Constants of rules

Fixed numbers that decide the findings, the advice and the actions: value, unit, effect, and reason or source.
"""


def page(*folders: str) -> str:
    """Return the page of these folders of the backend."""
    parts = [_HEAD]
    for path in (path for folder in folders or (".",) for path in sorted((_BACKEND / folder).rglob("*.py"))):
        rows: dict[str, list[tuple[str, str]]] = {}
        for name, value, text in constants_of(path.read_text()):
            rows.setdefault(text, []).append((name, value))
        if rows:
            parts.append(f"\n## {path.relative_to(_BACKEND)}\n\n| constant | value | meaning |\n|---|---|---|\n")
        for text, several in rows.items():
            names, values = (", ".join(column) for column in zip(*several, strict=True))
            parts.append(f"| `{names}` | {values} | {text} |\n")
    return "".join(parts)


def constants_of(source: str) -> Iterator[tuple[str, str, str]]:
    """Yield (name, value, comment) of each numeric constant of a module that has a comment, or follows one that has."""
    lines, text, end = source.splitlines(), "", -1
    for node in ast.parse(source).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        first = node.lineno - 1
        above = first
        while above and lines[above - 1].startswith("#:"):
            above -= 1
        if above < first:
            text = " ".join(line.removeprefix("#:").strip() for line in lines[above:first])
        elif end != first:
            text = ""
        end = node.end_lineno or first + 1
        if target is not None and value is not None and text and _is_number(value):
            yield _plain(target), _plain(value), text.replace("|", "\\|")


def _plain(node: ast.expr) -> str:
    """Return the source of an expression, a tuple's without its brackets."""
    return ", ".join(map(ast.unparse, node.elts)) if isinstance(node, ast.Tuple) else ast.unparse(node)


def _is_number(value: ast.expr) -> bool:
    if isinstance(value, ast.Tuple):
        return bool(value.elts) and all(map(_is_number, value.elts))
    if isinstance(value, ast.BinOp):
        return _is_number(value.left) or _is_number(value.right)
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


if __name__ == "__main__":
    print(page(*sys.argv[1:]), end="")
