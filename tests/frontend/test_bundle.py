"""The modules of the browser in one script: in their order, with what each exports, and a map to where they stand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stabilityfrontend.bundle import bundle
from stabilityfrontend.served import ASSETS


def written(folder: Path, **modules: str) -> Path:
    """Write modules by their names; ``__`` stands for a folder."""
    for name, text in modules.items():
        path = folder / f"{name.replace('__', '/')}.js"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


def test_a_module_stands_behind_those_that_it_imports_and_gives_what_it_exports(tmp_path: Path) -> None:
    root = written(
        tmp_path,
        page='import { draw as paint } from "./chart/line.js";\nexport const shown = paint();\n',
        chart__line='import { round } from "./ticks.js";\nexport function draw() {\n  return round(1.5);\n}\n',
        chart__ticks="export const round = Math.round;\n",
    )

    assert bundle(root, "page.js").text == (
        "const chart_ticks = (() => {\nconst round = Math.round;\nreturn { round };\n})();\n"
        "const chart_line = (() => {\nconst { round } = chart_ticks;\n"
        "function draw() {\n  return round(1.5);\n}\nreturn { draw };\n})();\n"
        "const page = (() => {\nconst { draw: paint } = chart_line;\nconst shown = paint();\nreturn { shown };\n})();\n"
        'const modules = { "chart/ticks.js": chart_ticks, "chart/line.js": chart_line, "page.js": page };\n'
    )


def test_modules_that_import_each_other_are_refused_by_their_names(tmp_path: Path) -> None:
    root = written(tmp_path, a='import { b } from "./b.js";\n', b='import { a } from "./a.js";\n')

    with pytest.raises(ValueError, match=r"a\.js -> b\.js -> a\.js"):
        bundle(root, "a.js")


@pytest.mark.parametrize(
    "form",
    [
        'import * as dom from "./dom.js";',
        'import dom from "./dom.js";',
        'import "./dom.js";',
        "export default 1;",
        "export { draw };",
        "export let count = 0;",
    ],
)
def test_a_form_that_is_not_read_is_refused(tmp_path: Path, form: str) -> None:
    root = written(tmp_path, a=f"{form}\n", dom="export const h = 1;\n")

    with pytest.raises(ValueError, match="is neither"):
        bundle(root, "a.js")


def test_the_map_says_where_each_module_begins() -> None:
    joined = bundle(ASSETS, "page_lifecycle.js")
    lines = joined.text.splitlines()

    for section in json.loads(joined.source_map())["sections"]:
        (source,) = section["map"]["sourcesContent"]
        begin = section["offset"]["line"]
        assert lines[begin] == source.splitlines()[0]
        assert lines[begin + source.count("\n")].startswith("return {")


def test_every_module_is_reached_from_the_page() -> None:
    files = {path.relative_to(str(ASSETS)).as_posix() for path in Path(str(ASSETS)).rglob("*.js")}

    assert files == {*bundle(ASSETS, "page_lifecycle.js").sources, "preload.js"}
