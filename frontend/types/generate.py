"""Writes ``api.d.ts``: answers of the server's calls, as TypeScript, for ``// @ts-check`` in the browser's code.

Made from the server's OpenAPI, which is made from ``stabilitybackend.schema``. ``make types`` runs it; a test fails for
an old file. The declarations lie outside of the package: browsers never get them.
"""

from __future__ import annotations

import inspect
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["FILE", "declarations"]

FILE = Path(__file__).with_name("api.d.ts")
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
    """Write the file."""
    from stabilitybackend.base.settings import Settings
    from stabilitybackend.plugins import load
    from stabilitybackend.server.app import create_app
    from stabilitybackend.server.stages import Options

    with tempfile.TemporaryDirectory() as folder:
        app = create_app(Options(Settings(data_dir=Path(folder)), "redis://127.0.0.1:1", load({})))
    FILE.write_text(declarations(app.openapi()))
    print(FILE, file=sys.stderr)


if __name__ == "__main__":
    main()
