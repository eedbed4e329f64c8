"""Files that the pages load, packed; browsers keep them for good: the name holds a hash of the content."""

from __future__ import annotations

import gzip
import hashlib
import importlib.resources
from functools import lru_cache
from importlib.resources.abc import Traversable

from fastapi import FastAPI, Request, Response

from stabilityfrontend.bundle import bundle
from stabilityfrontend.theme import FONT_FILES

__all__ = ["ASSETS", "packed", "serve_dash_first", "serve_fonts", "serve_for_good", "serve_modules", "serve_styles"]

#: The browser's modules and style sheets.
ASSETS: Traversable = importlib.resources.files(__package__).joinpath("assets")

_PREFIX = "/_stability/"
_SCRIPT = "text/javascript"
_FOR_GOOD = {"Cache-Control": "public, max-age=31536000, immutable"}
#: Packed files that are kept: the board's, and a dozen of Dash's, 2 MB together.
_PACKED_FILES = 32


def packed(answer: Response, request: Request) -> Response:
    """Return an answer packed, where the client reads that and it has content; the same content is packed once."""
    answer.headers["Vary"] = "Accept-Encoding"
    if answer.body and "gzip" in request.headers.get("accept-encoding", ""):
        answer.body = _gzip(bytes(answer.body))
        answer.headers.update({"Content-Encoding": "gzip", "Content-Length": str(len(answer.body))})
    return answer


# Level 6 takes milliseconds once for each file and saves two thirds of its size on each first visit.
@lru_cache(_PACKED_FILES)
def _gzip(content: bytes) -> bytes:
    return gzip.compress(content, 6)


def serve_for_good(api: FastAPI, name: str, content: bytes, media_type: str) -> str:
    """Serve a file, packed once where that helps, and return its address.

    Args:
        api: gets the route.
        name: of the file; the hash goes before its first dot.
        content: of the file.
        media_type: of the file.
    """
    stem, _, suffix = name.partition(".")
    url = f"{_PREFIX}{stem}-{hashlib.sha256(content).hexdigest()[:16]}.{suffix}"

    def file(request: Request) -> Response:
        answer = Response(content, media_type=media_type, headers=_FOR_GOOD)
        return packed(answer, request) if not media_type.startswith("font/") else answer

    api.add_api_route(url, file, methods=["GET"], include_in_schema=False)
    return url


def serve_modules(api: FastAPI) -> str:
    """Serve all modules as one, with a map for developers' tools, and return its address."""
    board = bundle(ASSETS, "page_lifecycle.js")

    def source_map() -> Response:
        return Response(board.source_map(), media_type="application/json")

    api.add_api_route(f"{_PREFIX}board.js.map", source_map, methods=["GET"], include_in_schema=False)
    text = f"{board.text}export {{ modules }};\n//# sourceMappingURL=board.js.map\n"
    return serve_for_good(api, "board.js", text.encode(), _SCRIPT)


def serve_styles(api: FastAPI) -> str:
    """Serve all style sheets as one, in the order of their names, and return its address."""
    sheets = sorted(ASSETS.joinpath("styles").iterdir(), key=lambda sheet: sheet.name)
    return serve_for_good(api, "board.css", "".join(sheet.read_text("utf-8") for sheet in sheets).encode(), "text/css")


def serve_fonts(api: FastAPI) -> dict[str, str]:
    """Serve the files of the font and return the address of each by its name."""
    folder = ASSETS.joinpath("fonts")
    return {name: serve_for_good(api, name, folder.joinpath(name).read_bytes(), "font/woff2") for name in FONT_FILES}


def serve_dash_first(api: FastAPI, names: list[str]) -> str:
    """Serve scripts of Dash's folder ``deps`` as one, in their order, and return its address."""
    folder = importlib.resources.files("dash").joinpath("deps")
    return serve_for_good(api, "react.js", b";\n".join(folder.joinpath(name).read_bytes() for name in names), _SCRIPT)
