"""Saved views of the pages. Shapes: docs/api.md."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from stabilitybackend.access.auth import Principal
from stabilitybackend.base.errors import Forbidden
from stabilitybackend.schema.pages.views import View, ViewKind, Views
from stabilitybackend.server.api.access import Commander, Reader, audit, server_of
from stabilitybackend.server.api.answers import answer, answers
from stabilitybackend.server.stages import Reading
from stabilitybackend.storage.views import SavedViews

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/views", tags=["views"])


class ViewBody(BaseModel):
    """A view and its name."""

    model_config = ConfigDict(extra="forbid")

    kind: ViewKind
    project: str = Field("", max_length=200, description="whose runs it is for; left out: of all")
    name: str = Field(description="1 to 80 characters; an older view of this name is replaced")
    state: dict[str, Any] = Field(description="what the page needs to show it again, at most 64 KiB as JSON")


@router.get("", responses=answers(Views))
async def views(
    request: Request,
    reader: Reader,
    kind: Annotated[ViewKind, Query(description="runs or layout")],
    project: Annotated[str | None, Query(description="those of this project and of all; left out: every one")] = None,
) -> Response:
    """Saved views of a kind, by name."""
    wanted = {"", project} if project is not None else None
    if reader.project is not None:
        wanted = {"", reader.project} & (wanted or {"", reader.project})
    return answer(Views(await _saved(request).all(kind, wanted)))


@router.put("", responses=answers(View))
async def save(body: ViewBody, request: Request, commander: Commander) -> Response:
    """Save a view under a name, in place of an older one of this name."""
    _may_write(commander, body.project)
    view = await _saved(request).save(body.kind, body.project, body.name, body.state, commander.name)
    await audit(request, commander, "view.save", view.name, f"{view.kind}, project {view.project!r}")
    return answer(view)


@router.delete("", responses=answers(Views))
async def delete(
    request: Request,
    commander: Commander,
    kind: Annotated[ViewKind, Query(description="runs or layout")],
    name: Annotated[str, Query(description="of the view")],
    project: Annotated[str, Query(description="of the view; left out: one of all projects")] = "",
) -> Response:
    """Delete a view; the answer has those of its kind and project that are left."""
    _may_write(commander, project)
    await _saved(request).delete(kind, project, name)
    await audit(request, commander, "view.delete", name, f"{kind}, project {project!r}")
    return answer(Views(await _saved(request).all(kind, {project})))


def _saved(request: Request) -> SavedViews:
    return server_of(request)[Reading].views


def _may_write(who: Principal, project: str) -> None:
    """Raise Forbidden where a key of one project would change the views of others."""
    if who.project is not None and project != who.project:
        raise Forbidden(
            f"this key is of project {who.project!r} and can't change a view of "
            + (f"project {project!r}" if project else "all projects"),
            hint=f"give project={who.project!r}",
        )
