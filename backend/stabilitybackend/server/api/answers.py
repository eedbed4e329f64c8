"""Answers of each route, declared once: ``responses=answers(Run)``. The OpenAPI and the tests read it from there.

The types only describe. FastAPI's own ``response_model`` would copy each answer through pydantic
and turn NaN into null in silence, so routes hand over bytes and ``responses`` only describes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import msgspec
from fastapi import Response
from fastapi.routing import APIRoute
from msgspec import UNSET, inspect
from starlette.routing import BaseRoute

from stabilitybackend.schema.server import ErrorAnswer

__all__ = ["JSON", "DeclaredAnswer", "DeclaredBody", "always_there", "answer", "answers", "complete", "declared"]

JSON = "application/json"
_REF = "#/components/schemas/{name}"


class DeclaredBody(dict[str, Any]):
    """One entry of ``responses``, as FastAPI takes it.

    Args:
        kind: the type of the body; None for one that is no JSON.
        media_types: of the body.
    """

    def __init__(self, kind: Any, *media_types: str) -> None:
        super().__init__(content={name: {} for name in media_types})
        self.kind = kind


class DeclaredAnswer(NamedTuple):
    """An answer of a route: for example ``GET``, ``/api/v1/runs``, ``200``. Status ``default`` is every other one."""

    method: str
    path: str
    status: str
    answer: DeclaredBody


def answers(kind: Any, *statuses: int, media_types: Sequence[str] = (JSON,)) -> dict[int | str, dict[str, Any]]:
    """Return the ``responses`` of a route: ``kind`` with these statuses, 200 if left out; ErrorAnswer with the others.

    Args:
        kind: the type of the body; None for one that is no JSON.
    """
    one = DeclaredBody(kind, *media_types)
    return {**dict.fromkeys(statuses or (200,), one), "default": DeclaredBody(ErrorAnswer, JSON)}


def answer(content: Any, status: int = 200) -> Response:
    """Return ``content`` as JSON: Structs and builtins. NaN becomes null: see ``schema.numbers``."""
    return Response(msgspec.json.encode(content), status, media_type=JSON)


def declared(routes: Sequence[BaseRoute]) -> Iterator[DeclaredAnswer]:
    """Yield the declarations of the routes of an app, in order, without those left out of the OpenAPI."""
    for route in routes:
        router = getattr(route, "original_router", None)  # how FastAPI keeps one that was included
        if router is not None:
            yield from declared(router.routes)
        elif isinstance(route, APIRoute) and route.include_in_schema:
            for method, (status, one) in product(sorted(route.methods or ()), route.responses.items()):
                if isinstance(one, DeclaredBody):
                    yield DeclaredAnswer(method, route.path_format, str(status), one)


def always_there(kind: type[msgspec.Struct]) -> frozenset[str]:
    """Return the fields of a Struct that no answer leaves out; those with a default are included."""
    fields = msgspec.structs.fields(kind)
    if kind.__struct_config__.omit_defaults:
        return frozenset(one.encode_name for one in fields if one.required)
    return frozenset(one.encode_name for one in fields if one.required or one.default is not UNSET)


def _structs(kinds: Iterable[Any]) -> set[type[msgspec.Struct]]:
    """Return the Structs that types consist of and that are objects in JSON."""
    found, ahead = set(), list(kinds)
    while ahead:
        one = ahead.pop()
        if isinstance(one, inspect.StructType):
            if one.cls in found:
                continue
            if not one.array_like:  # an array has no names
                found.add(one.cls)
            ahead += [field.type for field in one.fields]
        names = ("type", "item_type", "key_type", "value_type", "types", "item_types")
        for inner in (getattr(one, name, ()) for name in names):
            ahead += inner if isinstance(inner, tuple) else (inner,)
    return found


def complete(document: dict[str, Any], routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """Write the declarations of routes into an OpenAPI document; return it."""
    found = list(declared(routes))
    kinds = list({id(one.answer.kind): one.answer.kind for one in found if one.answer.kind is not None}.values())
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    for struct in _structs(inspect.multi_type_info(kinds)):
        schema = components[struct.__name__]
        there = {*schema["required"], *always_there(struct)}
        schema["required"] = [name for name in schema["properties"] if name in there]
    by_kind = {id(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    for method, path, status, one in found:
        content = document["paths"][path][method.lower()]["responses"][status]["content"]
        for media_type in one["content"]:
            content[media_type]["schema"] = by_kind.get(id(one.kind), {"type": "string", "format": "binary"})
    known = document.setdefault("components", {}).setdefault("schemas", {})
    assert not known.keys() & components.keys(), "two types of one name: of a request and of an answer"
    known.update(components)
    return document
