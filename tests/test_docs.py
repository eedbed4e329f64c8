"""The documentation is true of the code: links, files, commands, settings, words."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer

REPOSITORY = Path(__file__).resolve().parents[1]
_PAGES = sorted(
    page.relative_to(REPOSITORY).as_posix()
    for folder in (
        ".",
        "docs",
        "examples",
        "examples/laboratory",
        "benchmarks",
        "client",
        "deploy/kubernetes",
        "plugins",
    )
    for page in REPOSITORY.joinpath(folder).glob("**/*.md" if folder in ("docs", "plugins") else "*.md")
)
#: Targets of make.
_TARGETS = {
    *("help", "demo", "up", "test", "check", "fix", "soak", "scores", "integrations", "bench", "screenshots"),
    *("types", "docs", "clean"),
}
#: Columns of a line in a document. Rows of tables and pictures can't wrap.
_LINE_COLUMNS = 120
#: The changelog keeps its lines.
_UNWRAPPED = {"CHANGELOG.md"}
#: Private word, as a pattern -> the field's word. In no page and no sentence of the product.
_PRIVATE = {
    "hearts?": "heartbeat",
    "ghosts?": "discarded",
    "goodbyes?": "clean exit",
    "last words?": "last message",
    "newest words?": "newest value, newest writes",
    "without a word": "without any call, without a log line",
    "left behind": "discarded, superseded by rollback",
    "wall screen": "live dashboard",
    "told(?! apart)": "reported, notified, given",
    "heard": "reported",
    "close look": "dump",
    "stands(?! for| out)": "is stalled, is hung, is",
    "stood": "was stalled, was hung",
    "for ever": "without limit",
    "anew": "again",
    "reach(?:es)? us": "report, reach the server",
    "we see": "visible",
}
#: Subjects that no page has: a noun is clearer.
_VAGUE = re.compile(r"\b(?:nobody|somebody|anybody|whoever|ours|alike|goes on)\b", re.IGNORECASE)
_PEOPLE = (
    "backend/stabilitybackend",
    "client/stabilityclient",
    "alerting/stabilityalerting",
    "frontend/stabilityfrontend",
    "plugins/stabilityplugins",
)
#: A string of JavaScript in any of its three quotes; its computed parts.
_SCRIPT_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`|\'((?:[^\'\\\n]|\\.)*)\'')
_COMPUTED = re.compile(r"\$\{(?:[^{}]|\{[^{}]*\})*\}")
#: In no name of a file, class or function of the product.
_PRIVATE_NAMES = frozenset(
    [
        "anew",
        "blind",
        "chronicle",
        "courier",
        "doubles",
        "ghost",
        "ghosts",
        "goodbye",
        "goodbyes",
        "heard",
        "heart",
        "hearts",
        "janitor",
        "keeper",
        "look",
        "looks",
        "offenders",
        "peek",
        "retelling",
        "retold",
        "said",
        "says",
        "scene",
        "stands",
        "stood",
        "teller",
        "tellers",
        "tells",
        "told",
        "twins",
    ]
)
_GLOSSARY = "docs/glossary.md"
_LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")


def commands_of(app: typer.Typer) -> set[str]:
    command = typer.main.get_command(app)
    return set(command.commands)  # type: ignore[attr-defined]


def test_the_readme_names_every_command_of_the_program() -> None:
    from stabilitybackend.cli.app import program
    from stabilitybackend.plugins import load

    readme = (REPOSITORY / "README.md").read_text()

    assert set(re.findall(r"^\| `stabilityboard (\w+)`", readme, re.MULTILINE)) == commands_of(program(load({})))


def used_commands(page: str) -> list[list[str]]:
    """Return the words of each command of the program in the code of a page: in a line, or between backquotes."""
    text = re.sub(r"```.*?```", "", (REPOSITORY / page).read_text(), flags=re.DOTALL)
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.startswith("    ")]
    spans = [*lines, *(" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text))]
    found = [re.search(r"(?:^|[\s/&(])(?<!SETUSER )(?<!-n )stabilityboard (\w.*)", span) for span in spans]
    return [re.split(r"\s(?:#|--|\||&&|>)\s", one[1] + " ")[0].split() for one in found if one]


@pytest.fixture(scope="module")
def whole_program() -> Any:
    from stabilitybackend.cli.app import program
    from stabilitybackend.plugins import load

    return typer.main.get_command(program(load({})))


@pytest.mark.parametrize("page", _PAGES)
def test_commands_of_a_page_are_those_of_the_program(page: str, whole_program: Any) -> None:
    wrong = [" ".join(words) for words in used_commands(page) if not is_known(words, whole_program)]

    assert wrong == []


def test_the_pages_show_the_commands_of_the_program() -> None:
    assert sum(len(used_commands(page)) for page in _PAGES) > 100


def is_known(words: list[str], command: Any) -> bool:
    """Whether a command is of the program, and all of its long options are of that command."""
    if words[0] not in command.commands:
        return False
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    if command.context_settings.get("ignore_unknown_options"):  # it reads them by itself
        return True
    known = {"--help", *(name for one in command.params for name in (*one.opts, *one.secondary_opts))}
    return {word.partition("=")[0] for word in words if word.startswith("--")} <= known


def test_contributing_and_makefile_agree_on_the_targets() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):.*## ", makefile, re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)", (REPOSITORY / "CONTRIBUTING.md").read_text()))

    assert targets == _TARGETS
    assert named & {"test", "check", "fix", "demo"} == {"test", "check", "fix", "demo"}


@pytest.mark.parametrize("page", _PAGES)
def test_links_of_a_page_lead_somewhere(page: str) -> None:
    folder = (REPOSITORY / page).parent
    text = re.sub(r"```.*?```", "", (REPOSITORY / page).read_text(), flags=re.DOTALL)

    broken = [link for link in _LINK.findall(text) if not (folder / link).exists()]

    assert broken == []


@pytest.mark.parametrize("page", _PAGES)
def test_links_to_a_heading_find_it(page: str) -> None:
    links = re.findall(r"\]\(((?!https?://)[^)#\s]*)#([^)\s]+)\)", (REPOSITORY / page).read_text())
    targets = [(REPOSITORY / page).parent / path if path else REPOSITORY / page for path, _ in links]

    broken = [heading for (_, heading), target in zip(links, targets, strict=True) if heading not in headings(target)]

    assert broken == []


def headings(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", sorted(set(_PAGES) - _UNWRAPPED))
def test_lines_of_a_page_end_within_the_columns(page: str) -> None:
    lines = (REPOSITORY / page).read_text().splitlines()

    long = [line for line in lines if len(line) > _LINE_COLUMNS and not line.lstrip().startswith(("|", "!["))]

    assert long == []


@pytest.mark.parametrize("page", [page for page in _PAGES if page != "CHANGELOG.md"])
def test_no_sentence_occurs_twice_in_a_page(page: str) -> None:
    text = re.sub(r"```.*?```", "", (REPOSITORY / page).read_text(), flags=re.DOTALL)
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if not part.startswith(("    ", "|"))]
    found = Counter(one for part in paragraphs for one in re.split(r"(?<=[.:;!?])\s+", part) if len(one) >= 40)

    assert [sentence for sentence, count in found.items() if count > 1] == []


#: Finds any of them at once: hardly a text has one.
_ANY_PRIVATE = re.compile(rf"\b(?:{'|'.join(_PRIVATE)})\b", re.IGNORECASE)


def private(text: str) -> list[str]:
    if _ANY_PRIVATE.search(text) is None:
        return []
    return [
        f"{word}: say {right}" for word, right in _PRIVATE.items() if re.search(rf"\b{word}\b", text, re.IGNORECASE)
    ]


@pytest.mark.parametrize("page", [p for p in _PAGES if p != "CHANGELOG.md" and "/decisions/" not in p])
def test_a_page_uses_the_words_of_the_field(page: str) -> None:
    text = re.sub(r"```.*?```", "", (REPOSITORY / page).read_text(), flags=re.DOTALL)

    assert private(" ".join(re.sub(r"`[^`]*`", "", text).split())) == []


@pytest.mark.parametrize("page", _PAGES)
def test_a_page_has_nouns_as_subjects(page: str) -> None:
    text = re.sub(r"\]\([^)]*\)", "", (REPOSITORY / page).read_text())

    assert _VAGUE.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)) == []


def sentences(file: Path) -> list[str]:
    """Return the strings of a module that have a blank in them, without docstrings."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    strings = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in alone]
    return [text for text in strings if isinstance(text, str) and " " in text.strip()]


def scripts_sentences(file: Path) -> list[str]:
    """Return the same of a browser's module; what is computed within one is a blank."""
    code = re.sub(r"^\s*(?://|/?\*).*$", "", file.read_text(), flags=re.MULTILINE)
    strings = [next(filter(None, found), "") for found in _SCRIPT_STRING.findall(code)]
    return [text for text in (_COMPUTED.sub(" ", one) for one in strings) if " " in text.strip()]


def test_sentences_of_the_browser_use_the_words_of_the_field() -> None:
    files = sorted((REPOSITORY / "frontend/stabilityfrontend/assets").rglob("*.js"))

    found = {f"{file.name}: {text}": private(text) for file in files for text in scripts_sentences(file)}

    assert len(found) > 300
    assert {text: words for text, words in found.items() if words} == {}


@pytest.mark.parametrize("package", _PEOPLE)
def test_sentences_for_people_use_the_words_of_the_field(package: str) -> None:
    files = sorted((REPOSITORY / package).rglob("*.py"))

    found = {f"{file.name}: {text}": private(text) for file in files for text in sentences(file) if private(text)}

    assert files
    assert found == {}


_DEFINED = re.compile(r"^ *(?:async def|def|class) (\w+)", re.MULTILINE)


def names(file: Path) -> list[str]:
    """Return the name of a module and of all that it defines."""
    return [file.stem, *_DEFINED.findall(file.read_text())]


@pytest.mark.parametrize("package", _PEOPLE)
def test_names_of_files_classes_and_functions_use_the_words_of_the_field(package: str) -> None:
    words = {
        f"{file.name}: {name}": {word.lower() for word in re.split(r"_|(?<=[a-z0-9])(?=[A-Z])", name)}
        for file in (REPOSITORY / package).rglob("*.py")
        for name in names(file)
    }

    assert {name: sorted(found & _PRIVATE_NAMES) for name, found in words.items() if found & _PRIVATE_NAMES} == {}


def test_each_word_of_the_glossary_is_used_and_its_code_is_there() -> None:
    rows = re.findall(r"^\| (\w[\w ]*) \|.*\| `(\S+)` \|$", (REPOSITORY / _GLOSSARY).read_text(), re.MULTILINE)
    pages = [page for page in _PAGES if page not in (_GLOSSARY, "CHANGELOG.md")]
    text = " ".join((REPOSITORY / page).read_text().lower() for page in pages)

    assert len(rows) > 30
    assert [word for word, _ in rows if not re.search(rf"\b{word}", text)] == []
    assert [place for _, place in rows if not is_there(place)] == []


@pytest.mark.parametrize(
    ("page", "least"),
    [
        ("docs/journeys/point.md", 30),
        ("docs/journeys/incident.md", 20),
        ("docs/journeys/rollback.md", 18),
        ("docs/page.md", 5),
        ("benchmarks/README.md", 45),
        ("examples/laboratory/README.md", 10),
    ],
)
def test_the_files_that_a_page_names_are_there(page: str, least: int) -> None:
    named = set(re.findall(r"`([\w/]+\.(?:py|lua|js|css))`", (REPOSITORY / page).read_text()))
    beside = (REPOSITORY / page).parent

    assert len(named) > least
    assert sorted(place for place in named if not (beside / place).exists() and not is_there(place)) == []


def test_the_page_of_the_benchmarks_names_each_program() -> None:
    folder = REPOSITORY / "benchmarks"
    page = (folder / "README.md").read_text()

    programs = [file.name for file in folder.glob("*.py") if "argparse" in file.read_text()]
    assert len(programs) > 40
    assert [name for name in programs if f"`{name}`" not in page] == []


@pytest.mark.parametrize("package", [*_PEOPLE, "tests", "benchmarks", "examples", "deploy"])
def test_the_pages_that_code_names_are_there(package: str) -> None:
    kinds = {".py", ".js", ".lua", ".sh", ".yaml"}
    files = [file for file in (REPOSITORY / package).rglob("*") if file.suffix in kinds]
    named = {page for file in files for page in re.findall(r"(?<![/\w])docs/[\w/-]+\.md\b", file.read_text())}

    assert files
    assert [page for page in sorted(named) if not (REPOSITORY / page).exists()] == []


def test_the_map_names_every_room_and_file_of_the_backend() -> None:
    page = (REPOSITORY / "docs/architecture.md").read_text().split("Backend; imports point")[1].split("\n## ")[0]
    backend = REPOSITORY / "backend/stabilitybackend"
    rooms = {file.stem for file in backend.iterdir() if file.suffix == ".py" or (file / "__init__.py").exists()}

    assert sorted(room for room in rooms - {"__init__"} if not re.search(rf"\b{room}\b", page)) == []


def test_what_can_be_done_on_each_page_is_in_the_code_of_the_pages() -> None:
    chapter = (REPOSITORY / "docs/page.md").read_text().split("## Actions on each page")[1].split("\n## ")[0]
    code = "".join(
        file.read_text()
        for pattern in ("*.py", "*.js")
        for file in (REPOSITORY / "frontend/stabilityfrontend").rglob(pattern)
    )
    ids = set(re.findall(r"`#([\w-]+)`", chapter))
    data = set(re.findall(r"`data-([\w-]+)`", chapter))

    assert len(ids) > 80
    assert [name for name in ids if not re.search(rf"[\"`#]{name}[\"`]", code)] == []
    assert [
        name for name in data if not re.search(rf"data-{name}|data: {{[^}}]*\b{name}\b|dataset\.{name}", code)
    ] == []


def is_there(place: str) -> bool:
    """Whether a file or folder has this path, or a product file or folder has this end of a path."""
    ends = (REPOSITORY / package for package in _PEOPLE)
    return (REPOSITORY / place).exists() or any(any(package.rglob(place)) for package in ends)


def test_the_example_of_the_readme_uses_the_client_as_it_is() -> None:
    import stabilityclient

    code = (REPOSITORY / "README.md").read_text().split("```python\n")[1].split("```")[0]
    compile(code, "README.md", "exec")

    used = set(re.findall(r"\brun\.(\w+)", code))
    assert used == {"on_rollback", "steps", "log", "phase", "checkpoint", "finish"}
    assert all(callable(getattr(stabilityclient.Run, name)) for name in used)
    rollback = stabilityclient.Rollback(to_step=3)
    assert [name for name in re.findall(r"rollback\.(\w+)", code) if not hasattr(rollback, name)] == []


def test_the_page_of_the_client_names_every_call_of_a_run() -> None:
    import stabilityclient

    page = (REPOSITORY / "client/README.md").read_text()
    calls = [name for name in dir(stabilityclient.Run) if not name.startswith("_")]

    assert len(calls) > 20
    assert [name for name in calls if not re.search(rf"run\.{name}\b", page)] == []


#: Variables between processes of the product.
_INTERNAL = {
    *("STABILITY_JOB_PATH", "STABILITY_EXAMPLE_DIR"),
    *("STABILITY_DRILL_ENOUGH", "STABILITY_DRILL_LEG", "STABILITY_DRILL_PROBE"),
}


def test_the_page_of_settings_names_every_variable_of_the_code() -> None:
    from stabilitybackend.base.settings import Settings

    files = [file for package in (*_PEOPLE, "plugins") for file in (REPOSITORY / package).rglob("*.py")]
    read = {name for file in files for name in re.findall(r"\bSTABILITY_[A-Z_]*[A-Z]\b", file.read_text())}
    read |= {f"STABILITY_{field.name.upper()}" for field in fields(Settings)}
    page = set(re.findall(r"\bSTABILITY_[A-Z_]*[A-Z]\b", (REPOSITORY / "docs/settings.md").read_text()))

    assert len(read) > 70
    assert read - page - _INTERNAL == set()
    assert page - read == set()


def test_the_page_of_constants_lists_each_with_its_value_and_its_reason() -> None:
    command = [sys.executable, str(REPOSITORY / "benchmarks/laboratory/constants.py")]

    page = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    rows = re.findall(r"^\| `([A-Z_, ]+)` \| (.+?) \| (.+) \|$", page, re.MULTILINE)
    assert len(rows) > 300
    assert [name for name, _, text in rows if len(text.split()) < 2] == []
