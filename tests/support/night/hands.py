"""Two ways to use a page at 1280x800: a mouse whose clicks and scrolls are counted, and a keyboard without a mouse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ["SIZE", "Eyes", "Keyboard", "Mouse"]

SIZE = {"width": 1280, "height": 800}
#: A turn of the wheel that somebody makes without looking, pixels.
TURN_PX = 700
#: Which of the elements that match is the first that says the words, and is in sight as a whole: not beyond an edge of
#: the window, and not behind anything; counted from 1. It looks for a second: to ask anew for each look costs four
#: processes more than the look.
SEEN = """async ([selector, words]) => {
  const inSight = (one) => {
    if (!one.innerText?.includes(words) || !one.checkVisibility({ visibilityProperty: true })) return false;
    const { left, right, top, bottom } = one.getBoundingClientRect();
    if (left < 0 || top < 0 || right > innerWidth + 1 || bottom > innerHeight + 1 || right <= left) return false;
    const there = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
    return there !== null && (one.contains(there) || there.contains(one));
  };
  for (let look = 0; look < 33; look += 1) {
    const index = [...document.querySelectorAll(selector)].findIndex(inSight);
    if (index >= 0) return index + 1;
    await new Promise((done) => setTimeout(done, 30));
  }
  return null;
}"""
#: For anything to come into sight, seconds.
PATIENCE_S = 20


class Eyes:
    """What is in sight of a page. It never scrolls."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def place(self, selector: str, words: str = "") -> int:
        """Wait until an element that says ``words`` is in sight; return which of those that match it is, from 0 on."""
        what = f"{selector} says {words!r} in sight"
        found: int = wait_until(lambda: self.page.evaluate(SEEN, [selector, words]), PATIENCE_S, what)
        return found - 1

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
        """Click what is in sight, once it stands still: a page that opens still moves."""
        self.clicks += 1
        assert self.clicks <= 2, f"a third click, on {selector}"
        self.page.locator(selector).nth(self.place(selector, words)).click()

    def scroll(self) -> None:
        """Turn the wheel once."""
        self.scrolls += 1
        assert self.scrolls <= 1, "a second scroll"
        self.page.mouse.move(SIZE["width"] / 2, SIZE["height"] / 2)
        self.page.mouse.wheel(0, TURN_PX)


#: Rows of lists; the one in which the focus is, in words.
ROW = "tr, .incident-row"
FOCUSED = f"document.activeElement.closest({ROW!r})?.innerText ?? ''"
#: Rows that somebody goes down at most.
ROWS = 12


class Keyboard(Eyes):
    """Keys alone."""

    def down_to(self, words: str) -> None:
        """Press j until the focus is in the row that says ``words``, once it is there."""
        self.place(ROW, words)
        for _ in range(ROWS):
            self.press("j")
            if words in self.page.evaluate(FOCUSED):
                return
        raise AssertionError(f"no row of the first {ROWS} that j goes to says {words!r}")

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
