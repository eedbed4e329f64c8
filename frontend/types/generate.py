"""Writes ``api.d.ts``: what the server's calls answer, as TypeScript, for ``// @ts-check`` in the browser's code.

And the table of calls in ``docs/api.md``. Both are made from the server's OpenAPI, which is made from
``stabilitybackend.schema``. ``make types`` runs it; a test says when that was forgotten. The declarations lie outside
of the package: browsers never get them.
"""

from __future__ import annotations

import inspect
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["FILE", "PAGE", "declarations", "with_calls"]

#: What is written, whole ...
FILE = Path(__file__).with_name("api.d.ts")
#: ... and between two marks.
PAGE = Path(__file__).parents[2] / "docs" / "api.md"
_BEGIN, _END = "<!-- calls: written by `make types` -->\n", "<!-- end of calls -->\n"
_HEAD = "// Made by `make types` from the server's OpenAPI. Change stabilitybackend/schema/ instead.\n"
_SIMPLE = {"string": "string", "boolean": "boolean", "null": "null", "number": "number", "integer": "number"}

Schema = Mapping[str, Any]


def declarations(document: Schema) -> str:
    """Return the declarations: an interface for each component of an OpenAPI document, and ``Answers``.

    Raises:
        ValueError: a schema is of a form that our types have not had so far.
    """
    parts = [_HEAD]
    for name, schema in sorted(document["components"]["schemas"].items()):
        if schema.get("type") == "array":
            parts.append(f"{_comment(schema)}export type {name} = {_type(schema)};\n")
            continue
        members = "".join(_members(schema))
        parts.append(f"{_comment(schema)}export interface {name} {{\n{members}}}\n")
    parts.append(
        "/** Method and path of a call, and what it answers when it succeeds. */\nexport interface Answers {\n"
    )
    answers = "".join(
        f"  {json.dumps(f'{method.upper()} {path}')}: {_answer(operation)};\n"
        for path, operations in sorted(document["paths"].items())
        for method, operation in operations.items()
    )
    return "\n".join(parts) + answers + "}\n"


#: A bar alone ends a cell of the table.
BAR = r"\|"


def with_calls(page: str, document: Schema) -> str:
    """Return a page with the table of calls between its marks: the call, what it answers, what it does."""
    before, _, rest = page.partition(_BEGIN)
    rows = "".join(
        f"| `{method.upper()} {path}` | `{_answer(operation).replace('|', BAR)}` | {_sentence(operation)} |\n"
        for path, operations in sorted(document["paths"].items())
        for method, operation in operations.items()
    )
    head = "| call | answer | what it does |\n|---|---|---|\n"
    return f"{before}{_BEGIN}\n{head}{rows}\n{_END}{rest.partition(_END)[2]}"


def _sentence(operation: Schema) -> str:
    return str(operation["description"]).partition("\n")[0].replace("``", "`")


def _answer(operation: Schema) -> str:
    """Return the type of the first answer that is no error; a file is ``Blob``, a way to another address ``void``."""
    status = min(status for status in operation["responses"] if status.startswith(("2", "3")))
    content = operation["responses"][status]["content"]
    if not content:
        return "void"
    return _type(content["application/json"]["schema"]) if "application/json" in content else "Blob"


def _members(schema: Schema) -> Iterator[str]:
    required = schema.get("required", ())
    for name, inner in schema.get("properties", {}).items():
        text = inner.get("description")
        if text:
            yield f"  /** {text} */\n"
        yield f"  {name}{'' if name in required else '?'}: {_type(inner)};\n"


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(_type(one) for one in schema["anyOf"]))
    kind = schema.get("type")
    if kind == "array":
        if "prefixItems" in schema:
            return f"[{', '.join(map(_type, schema['prefixItems']))}]"
        inner = _type(schema.get("items", {}))
        return f"({inner})[]" if " | " in inner else f"{inner}[]"
    if kind == "object":
        values = schema.get("additionalProperties")  # true: of any type
        return f"Record<string, {_type(values if isinstance(values, dict) else {})}>"
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if kind is None:
        return "unknown"
    raise ValueError(f"no TypeScript for {schema}")


def _comment(schema: Schema) -> str:
    lines = inspect.cleandoc(schema.get("description", "")).splitlines()
    if not lines:
        return ""
    if len(lines) == 1:
        return f"/** {lines[0]} */\n"
    return "/**\n" + "".join(f" * {line}".rstrip() + "\n" for line in lines) + " */\n"


def main() -> None:
    """Write both anew."""
    from stabilitybackend.app import create_app
    from stabilitybackend.settings import Settings

    with tempfile.TemporaryDirectory() as folder:
        app = create_app(Settings(data_dir=Path(folder)), "redis://127.0.0.1:1")  # it is never started
    FILE.write_text(declarations(app.openapi()))
    PAGE.write_text(with_calls(PAGE.read_text(), app.openapi()))
    print(FILE, PAGE, sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main()
