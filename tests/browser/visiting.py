"""Goes from page to page of ours as a link does: 0.5 s of CPU, where loading all again takes 0.8 to 1.8."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.waiting import wait_in

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ["go_to", "leave"]

#: Seconds for a page of ours to be there; `wait_in` gives a loaded machine more.
_THERE_S = 30
#: The page that has come to life: its skeleton stands before that. Dash puts its own pages there more than once.
_OPEN = """((root) => root && (root === stability.opened.root || root.dataset.page === "server")
  ? root.dataset.page : undefined)(document.querySelector("#page > .page"))"""
#: Ends the page that is open. It leaves nothing of a test behind: what people chose is forgotten.
_LEAVE = """(to) => {
  localStorage.clear();
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  document.activeElement?.blur();
  stability.go(to);
}"""
#: What was drawn is told of one page alone, as after a load; a page that ends may have kept something.
_GO = """(to) => {
  localStorage.clear();
  Object.assign(stability.drawLog, { lastDrawn: null, drawn: [], first: {} });
  stability.go(to);
}"""


def leave(page: Page) -> None:
    """End the page that is open: one that stays goes on drawing what its run logs. No page is the cheapest one."""
    page.mouse.move(0, 0)
    page.evaluate(_LEAVE, "/left")
    wait_in(page, f"{_OPEN} === 'missing'", _THERE_S)


def go_to(page: Page, url: str) -> None:
    """Open a page of ours in a window that has `handle.js`; by our own links where it is on that server already."""
    origin = "/".join(url.split("/")[:3])
    if page.url.startswith(f"{origin}/"):
        leave(page)
        page.evaluate(_GO, url.removeprefix(origin) or "/")
        wait_in(page, f"!['missing', undefined].includes({_OPEN})", _THERE_S)
    else:
        page.mouse.move(0, 0)
        page.goto(url)
        wait_in(page, f"window.stability && {_OPEN} !== undefined", _THERE_S)
