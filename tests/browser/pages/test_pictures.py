"""Every page and dialog at four widths in both themes, compared with the stored picture: ``make soak``.

The runs are recorded traces, so a picture changes only with the pages. What the clock changes (ages, the state of the
feed) is not drawn, animations stand at their end, and times are told in one zone. ``make screenshots`` writes the
pictures at full size to ``build/pictures`` and the stored ones, a fifth as wide, to ``tests/golden/pictures``.

A picture differs where more than ``MOST_PIXELS`` of its small form are off by more than ``MOST_OFF`` of 255 in any
channel: a moved panel or another colour does, another rasterizer of letters does not.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image, ImageChops

from support.ports import free_port
from support.processes import Server
from support.recorded_runs import import_recorded
from support.waiting import wait_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parents[3]
STORED = ROOT / "tests" / "golden" / "pictures"
#: Folder of the pictures at full size; with it the stored ones are written and not compared.
WRITTEN = os.environ.get("STABILITY_PICTURES", "")
#: A page rests when it has fetched nothing and kept its layout for so long, milliseconds; it looks for its panels, its
#: sparklines and what comes into sight one after the other.
RESTS_MS = 1000
#: Share of the pixels of a small picture that may be off, and by how much of 255.
MOST_PIXELS, MOST_OFF = 0.01, 40
#: A stored picture is this many times narrower, and has so many colours.
SMALLER, COLORS = 5, 64
SIZES = {1280: 800, 390: 844, 1920: 1080, 3840: 2160}
RUNS = ("killed_by_lr", "healthy_rollback", "corrupt_dataset")
#: What the clock changes.
QUIET = """time, .wall-foot, #live-pill, .incident-age, .since-age, .wall-since, #run-foot, #runs-body td:last-child,
  .timeline, .over, .checkpoint .sub, .details .age, .rail-count { visibility: hidden !important }
  *, *::before, *::after { animation: none !important; transition: none !important }"""
DRAWN = "window.stability?.page?.ready && stability.drawLog.first.focus > 0"
#: Resolves when the page rests: its heights and those of its panels, and how often it has fetched anything. It stays
#: scrolled to ``begins`` meanwhile, as what loads above moves that.
AT_REST = """([rests, begins]) => new Promise((done) => {
  let was = "", since = performance.now();
  const look = () => {
    if (begins) document.querySelector(begins).scrollIntoView();
    const boxes = [document.documentElement, ...document.querySelectorAll("main, section, .panel, dialog")];
    const now = [performance.getEntriesByType("resource").filter((one) => !one.name.includes("/healthz")).length,
      ...boxes.map((one) => [one.scrollHeight, one.scrollTop, one.getBoundingClientRect().top])].join();
    if (now !== was) [was, since] = [now, performance.now()];
    if (performance.now() - since > rests) done(null);
    else requestAnimationFrame(look);
  };
  look();
})"""
#: What a picture begins with, where that is not the top of the page.
BEGINS_AT = {"run-about": "#about-panel"}
#: Name -> address, what is there when it is drawn, and what is done before the picture is taken.
PICTURES = {
    "runs": ("/", "document.querySelectorAll('#runs-body tr[data-run]').length === 3", ""),
    "run": ("/runs/killed_by_lr", DRAWN, ""),
    "run-rolled-back": ("/runs/healthy_rollback", DRAWN, ""),
    "run-rollback": ("/runs/killed_by_lr", DRAWN, "stability.page.dialog.show(null)"),
    "run-task": ("/runs/killed_by_lr", DRAWN, "stability.page.task.show()"),
    "run-annotate": ("/runs/killed_by_lr", DRAWN, "document.querySelector('#annotate').click()"),
    "run-quieter": (
        "/runs/killed_by_lr",
        f"{DRAWN} && document.querySelector('[data-less]')",
        "document.querySelector('[data-less]').click()",
    ),
    "run-about": ("/runs/killed_by_lr", DRAWN, "document.querySelector('#about-fold').click()"),
    "run-keys": ("/runs/killed_by_lr", DRAWN, "document.querySelector('#keys-open').click()"),
    "incident": ("/runs/killed_by_lr/incidents/{incident}", "document.querySelector('.verdict-words')", ""),
    "incident-restart": (
        "/runs/killed_by_lr/incidents/{incident}",
        "document.querySelector('.verdict-words')",
        "stability.page.restart.show()",
    ),
    "incidents": ("/incidents", "document.querySelector('main')", ""),
    "interruptions": ("/interruptions", "document.querySelector('main')", ""),
    "compare": ("/compare?run=killed_by_lr&run=corrupt_dataset", "document.querySelector('#compare-table tr')", ""),
    "attempts": ("/runs/healthy_rollback/attempts", "document.querySelector('#attempts-table tr')", ""),
    "gallery": ("/gallery", "window.stability?.page?.plots?.size > 0", ""),
    "login": ("/login", "document.querySelector('#login-key')", ""),
    "missing": ("/no/such/page", "document.querySelector('main a')", ""),
    "waiting": ("/runs/not-there-yet", "document.querySelector('#run-empty h2')", ""),
    "palette": ("/", "document.querySelector('#runs-body tr')", "document.querySelector('#palette-open').click()"),
    "wall": ("/?wall=1&rotate=0", "document.querySelector('.wall-head h1')", ""),
    "wall-run": ("/runs/killed_by_lr?wall=1", "document.querySelector('.wall-numbers b')", ""),
}

#: Ten minutes: only where somebody asks for it.
pytestmark = [] if WRITTEN else [pytest.mark.soak]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with three recorded runs."""
    folder = tmp_path_factory.mktemp("pictures")
    with Server(folder / "data", free_port()) as server:
        import_recorded(server, folder, RUNS)
        yield server


@pytest.fixture(scope="module")
def incident(server: Server) -> str:
    found = server.get("/runs/killed_by_lr/incidents")["incidents"]
    return str(next(one["incident_id"] for one in found if one["kind"] == "spike"))


@pytest.fixture(scope="module", params=[(width, scheme) for width in SIZES for scheme in ("dark", "light")], ids=str)
def window(request: pytest.FixtureRequest, chromium: Browser) -> Iterator[tuple[Page, str]]:
    """A window of one size and theme, and what its pictures are called."""
    width, scheme = request.param
    context = chromium.new_context(
        viewport={"width": width, "height": SIZES[width]},
        color_scheme=scheme,
        timezone_id="UTC",
        locale="en-US",
        reduced_motion="reduce",
    )
    context.set_default_timeout(90_000)
    context.add_init_script((Path(__file__).parents[1] / "handle.js").read_text())
    yield context.new_page(), f"{width}-{scheme}"
    context.close()


@pytest.mark.parametrize("name", PICTURES)
def test_a_page_looks_as_its_stored_picture(server: Server, incident: str, window: tuple[Page, str], name: str) -> None:
    page, look = window
    path, there, act = PICTURES[name]
    page.goto(server.url + path.format(incident=incident))
    wait_in(page, f"Boolean({there})")
    if act:
        page.evaluate(f"() => {{ {act}; }}")
    page.evaluate("document.fonts.ready.then(() => null)")
    page.evaluate(AT_REST, [RESTS_MS, BEGINS_AT.get(name)])
    taken = page.screenshot(style=QUIET, animations="disabled", caret="hide")
    stored = STORED / f"{name}-{look}.png"
    small = smaller(taken)
    if WRITTEN:
        full = Path(WRITTEN) / f"{name}-{look}.png"
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(taken)
        STORED.mkdir(exist_ok=True)
        small.quantize(COLORS).save(stored, optimize=True)
    assert stored.exists(), "there is no stored picture: make screenshots takes it"
    assert off(small, Image.open(stored).convert("RGB")) <= MOST_PIXELS


def smaller(taken: bytes) -> Image.Image:
    """Return the small form of a picture: each pixel is the mean of what it stands for."""
    picture = Image.open(io.BytesIO(taken)).convert("RGB")
    return picture.resize((picture.width // SMALLER, picture.height // SMALLER), Image.Resampling.BOX)


def off(one: Image.Image, other: Image.Image) -> float:
    """Return the share of pixels that differ by more than ``MOST_OFF`` in a channel; 1 where the sizes differ."""
    if one.size != other.size:
        return 1.0
    bands = ImageChops.difference(one, other).split()
    worst = ImageChops.lighter(ImageChops.lighter(bands[0], bands[1]), bands[2])
    return sum(worst.histogram()[MOST_OFF + 1 :]) / (one.width * one.height)


def test_a_moved_panel_differs_and_the_noise_of_few_colours_does_not() -> None:
    picture = Image.new("RGB", (256, 160), "#0f141b")
    picture.paste("#6aa0ff", (20, 20, 120, 100))
    moved = Image.new("RGB", (256, 160), "#0f141b")
    moved.paste("#6aa0ff", (40, 20, 140, 100))
    assert off(picture, picture.quantize(COLORS).convert("RGB")) == 0
    assert off(picture, moved) > MOST_PIXELS
