"""Two ways to use a page at 1280x800: a mouse whose clicks and scrolls are counted, and a keyboard without a mouse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ["SIZE", "Eyes", "Keyboard", "Mouse"]

SIZE = {"width": 1280, "height": 800}
#: A turn of the wheel that somebody makes without looking, pixels.
TURN_PX = 700
#: The first element that matches and says the words, and whether all of it is in sight: not beyond an edge of the
#: window, and not behind anything.
SEEN = """([selector, words]) => {
  for (const one of document.querySelectorAll(selector)) {
    if (!one.innerText?.includes(words) || !one.checkVisibility({ visibilityProperty: true })) continue;
    const { left, right, top, bottom } = one.getBoundingClientRect();
    if (left < 0 || top < 0 || right > innerWidth + 1 || bottom > innerHeight + 1 || right <= left) continue;
    const there = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
    if (there && (one.contains(there) || there.contains(one))) return [(left + right) / 2, (top + bottom) / 2];
  }
  return null;
}"""
#: For anything to come into sight, seconds.
PATIENCE_S = 20


class Eyes:
    """What is in sight of a page. It never scrolls."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def place(self, selector: str, words: str = "") -> Any:
        """Wait until an element that says ``words`` is in sight; return its middle."""
        what = f"{selector} says {words!r} in sight"
        return wait_until(lambda: self.page.evaluate(SEEN, [selector, words]), PATIENCE_S, what)

    def sees(self, selector: str, *words: str) -> None:
        """Fail where something is not in sight."""
        for one in words or ("",):
            self.place(selector, one)


class Mouse(Eyes):
    """At most two clicks and one scroll; typing into a field that has the focus is free."""

    def __init__(self, page: Page) -> None:
        super().__init__(page)
        self.clicks = self.scrolls = 0

    def click(self, selector: str, words: str = "") -> None:
        """Click what is in sight, where it is."""
        self.clicks += 1
        assert self.clicks <= 2, f"a third click, on {selector}"
        self.page.mouse.click(*self.place(selector, words))

    def scroll(self) -> None:
        """Turn the wheel once."""
        self.scrolls += 1
        assert self.scrolls <= 1, "a second scroll"
        self.page.mouse.move(SIZE["width"] / 2, SIZE["height"] / 2)
        self.page.mouse.wheel(0, TURN_PX)

    def type(self, words: str) -> None:
        """Type and press Enter."""
        self.page.keyboard.type(words)
        self.page.keyboard.press("Enter")


class Keyboard(Eyes):
    """Keys alone."""

    def press(self, *keys: str) -> None:
        """Press keys one after the other."""
        for key in keys:
            self.page.keyboard.press(key)

    def search(self, words: str, found: str) -> None:
        """Ctrl-K, words, and Enter once ``found`` is what Enter would open."""
        self.press("Control+k")
        self.page.wait_for_selector("#palette-input")
        self.page.keyboard.type(words)
        self.place("#palette-list [aria-selected=true]", found)
        self.press("Enter")
