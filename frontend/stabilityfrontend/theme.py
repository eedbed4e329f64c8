"""The colours and measures of both themes, in one place: CSS, charts and sparklines all take them from here.

A canvas can't read CSS variables, so the same tables go to the browser twice: as custom properties in the page's head
(``css_variables``) and as JSON (``figures.browser_config``). Contrast of text on its panel is at least 4.5 : 1 in both;
``tests/frontend`` holds that.
"""

from __future__ import annotations

__all__ = ["FONT", "FONT_FILES", "MONO", "THEMES", "css_variables", "font_faces"]

#: The font that is shipped (``assets/fonts``, SIL Open Font License 1.1), for one look everywhere; the next ones
#: are for signs that it does not have, and for a browser that refuses fonts.
FONT = '"Inter Variable", system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", sans-serif'
#: Its files, and which characters each has. The first is in the page's head; a browser fetches the other only when a
#: name on the page needs it. The ranges are those of the files (Fontsource 5.3.0, Inter 4).
FONT_FILES = {
    "inter-latin-wght-normal.woff2": "U+0000-00FF,U+0131,U+0152-0153,U+02BB-02BC,U+02C6,U+02DA,U+02DC,U+0304,U+0308,"
    "U+0329,U+2000-206F,U+20AC,U+2122,U+2191,U+2193,U+2212,U+2215,U+FEFF,U+FFFD",
    "inter-latin-ext-wght-normal.woff2": "U+0100-02BA,U+02BD-02C5,U+02C7-02CC,U+02CE-02D7,U+02DD-02FF,U+0304,U+0308,"
    "U+0329,U+1D00-1DBF,U+1E00-1E9F,U+1EF2-1EFF,U+2020,U+20A0-20AB,U+20AD-20C0,U+2113,U+2C60-2C7F,U+A720-A7FF",
}
MONO = '"JetBrains Mono", ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace'

#: One table per theme. ``series`` is the order in which lines take their colours: apart in lightness as well as hue,
#: so that all eight differ without green too (``tests/frontend/test_deuteranopia.py``).
#: ``rank-*``: state of a rank (``rank_grid.js``); good ones stay dim, so that the others stand out.
#: ``ramp``: the more, the worse; ``load``: the more, the busier. Both go evenly from dim to bright.
THEMES: dict[str, dict[str, str | list[str]]] = {
    "dark": {
        "bg": "#090c11",
        "panel": "#0f141b",
        "raised": "#171e28",
        "sunken": "#0b0f15",
        "border": "#1e2733",
        "strong": "#2d3947",
        "text": "#e8edf4",
        "soft": "#b4bfcd",
        "muted": "#8592a4",
        "grid": "#19212b",
        "accent": "#6aa0ff",
        "accent-ink": "#06101f",
        "accent-soft": "#14233f",
        "ghost": "#7c8798",
        "critical": "#ff6272",
        "critical-soft": "#331820",
        "warning": "#ffb43d",
        "warning-soft": "#31240f",
        "good": "#3fd79f",
        "good-soft": "#0f2b23",
        "info": "#7cc4ff",
        "info-soft": "#10263a",
        "rank-running": "#1d5f4b",
        "rank-waits": "#6a5427",
        "rank-long": "#2b6cb0",
        "rank-behind": "#ffb43d",
        "rank-over": "#ff6272",
        "rank-dead": "#c2334b",
        "rank-unheard": "#8592a4",
        "rank-unread": "#8592a4",
        "rank-finished": "#2d3947",
        "scrim": "rgba(3, 6, 10, 0.78)",
        "shadow": "0 18px 50px rgba(0, 0, 0, 0.55)",
        "series": ["#6aa0ff", "#3fd79f", "#ffb43d", "#c39bff", "#ffccd5", "#5fd4e8", "#d8e06a", "#e750c5"],
        "ramp": ["#1d3a4a", "#2b5a5a", "#6a6a3a", "#a87a34", "#e08a3c", "#ff6272"],
        "load": ["#172430", "#1a3648", "#1d4b66", "#226486", "#2c80a8", "#43a2cc"],
    },
    "light": {
        "bg": "#f4f6f9",
        "panel": "#ffffff",
        "raised": "#f2f5f9",
        "sunken": "#f7f9fb",
        "border": "#e1e7ee",
        "strong": "#c9d3de",
        "text": "#17202c",
        "soft": "#3f4c5c",
        "muted": "#5c6a7b",
        "grid": "#eaeff4",
        "accent": "#2a5fd6",
        "accent-ink": "#ffffff",
        "accent-soft": "#e5edfd",
        "ghost": "#98a4b3",
        "critical": "#cc2540",
        "critical-soft": "#fde8eb",
        "warning": "#9a5b00",
        "warning-soft": "#fdf1dc",
        "good": "#0b7a57",
        "good-soft": "#e1f5ed",
        "info": "#0b6aa8",
        "info-soft": "#e3f1fb",
        "rank-running": "#a3d9c6",
        "rank-waits": "#ecd9ae",
        "rank-long": "#6ba6dd",
        "rank-behind": "#d98a12",
        "rank-over": "#cc2540",
        "rank-dead": "#8a1229",
        "rank-unheard": "#5c6a7b",
        "rank-unread": "#5c6a7b",
        "rank-finished": "#c9d3de",
        "scrim": "rgba(20, 28, 40, 0.48)",
        "shadow": "0 18px 50px rgba(26, 39, 58, 0.20)",
        "series": ["#2a5fd6", "#0b8a62", "#c07000", "#7b4fd0", "#da606f", "#0d8599", "#616b00", "#7e3571"],
        "ramp": ["#d9e8ee", "#bcd8c9", "#e6d58a", "#e8b055", "#dd7a33", "#cc2540"],
        "load": ["#e4edf3", "#c6dbe8", "#a3c6dc", "#7aadcc", "#4f91b8", "#2a729c"],
    },
}


def css_variables() -> str:
    """Return the style sheet that makes every colour of both themes a custom property."""
    blocks = []
    for name, table in THEMES.items():
        rules = [f"--{key}: {value};" for key, value in table.items() if isinstance(value, str)]
        rules += [f"--series-{index}: {value};" for index, value in enumerate(table["series"])]
        blocks.append(f':root[data-theme="{name}"] {{ color-scheme: {name}; {" ".join(rules)} }}')
    blocks.append(f":root {{ --font: {FONT}; --mono: {MONO}; }}")
    return "\n".join(blocks)


def font_faces(addresses: dict[str, str]) -> str:
    """Return the style sheet of the shipped font.

    ``font-display: optional``: words never jump. The first file is asked for before any script, so it is there when
    the first word is drawn; on a line so slow that it is not, a first visit keeps the system's font.

    Args:
        addresses: name of each file of ``FONT_FILES`` -> where it is served.
    """
    return "\n".join(
        f'@font-face {{ font-family: "Inter Variable"; font-style: normal; font-weight: 100 900; '
        f'font-display: optional; src: url("{addresses[name]}") format("woff2"); unicode-range: {characters}; }}'
        for name, characters in FONT_FILES.items()
    )
