"""What is published is what was built, and what is pinned is what is declared."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[1]
#: Folders that work on an exported tree leaves in it.
_LIES_ABOUT = {"__pycache__", ".venv", "build", "dist"}
_PACKAGES = ("stabilityclient", "stabilitybackend", "stabilityalerting", "stabilityfrontend", "stabilityplugins")


def project(folder: str) -> dict[str, object]:
    table: dict[str, object] = tomllib.loads((REPOSITORY / folder / "pyproject.toml").read_text())["project"]
    return table


def pins(*names: str) -> dict[str, str]:
    lines = [line for name in names for line in (REPOSITORY / "requirements" / f"{name}.txt").read_text().splitlines()]
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def declared(name: str) -> list[str]:
    board, client = project("."), project("client")
    wanted = {
        "run": [*board["dependencies"], *client["dependencies"]],  # type: ignore[misc]
        "demo": board["optional-dependencies"]["demo"],  # type: ignore[index]
    }
    return [text for text in wanted[name] if "stabilityclient" not in text]


def test_the_distributions_have_one_version() -> None:
    import stabilityclient

    board, client = project("."), project("client")

    assert board["version"] == client["version"] == stabilityclient.__version__
    assert f"stabilityclient=={client['version']}" in board["dependencies"]  # type: ignore[operator]
    assert client["license"] == "Apache-2.0"
    assert board["license"] == "Apache-2.0 AND OFL-1.1"


def test_the_page_that_says_how_to_install_the_client_names_its_version() -> None:
    page = (REPOSITORY / "client" / "README.md").read_text().split("## Install")[1].split("\n## ")[0]

    named = re.findall(r"stabilityclient(?:==|-)(\d+\.\d+\.\d+)", page)

    assert len(named) == 3
    assert set(named) == {project("client")["version"]}


@pytest.mark.parametrize("name", ["run", "demo"])
def test_every_declared_dependency_is_pinned_within_its_bounds(name: str) -> None:
    pinned = pins("run", "demo")

    wrong = [
        text
        for text in declared(name)
        if not Requirement(text).specifier.contains(pinned.get(canonicalize_name(Requirement(text).name), "0"))
    ]

    assert wrong == []


def test_pins_are_exact_and_come_from_no_named_index() -> None:
    for path in (REPOSITORY / "requirements").glob("*.txt"):
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[\w.]+", line)] == []


def test_the_training_process_declares_no_more_than_its_agent_needs() -> None:
    names = {canonicalize_name(Requirement(text).name) for text in project("client")["dependencies"]}  # type: ignore[attr-defined]

    assert names == {"msgspec", "nvidia-ml-py", "websockets"}


@pytest.mark.parametrize("name", _PACKAGES)
def test_a_package_exports_exactly_what_it_says(name: str) -> None:
    package = importlib.import_module(name)
    exported = getattr(package, "__all__", [])

    assert [public for public in exported if not hasattr(package, public)] == []
    assert sorted(exported) == sorted(set(exported))


@pytest.mark.parametrize(
    ("folder", "needed"),
    [
        ("client", ["stabilityclient/py.typed", "stabilityclient/wire.py", "stabilityclient/agent/__main__.py"]),
        (
            ".",
            [
                "stabilitybackend/ingest/ingest.lua",
                "stabilityplugins/demo/stage.py",
                "stabilityalerting/py.typed",
                "stabilityfrontend/assets/page_lifecycle.js",
                "stabilityfrontend/assets/fonts/inter-latin-wght-normal.woff2",
                "stabilityfrontend/assets/fonts/OFL.txt",
            ],
        ),
    ],
)
def test_the_wheel_holds_what_runs(folder: str, needed: list[str], tmp_path: Path) -> None:
    source = tmp_path / "source"
    _copy_sources(REPOSITORY / folder, source)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]

    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(source)], check=True, timeout=120)

    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in needed if not any(entry.startswith(name) for entry in names)] == []
    assert [entry for entry in names if entry.startswith(("tests/", "examples/", "benchmarks/"))] == []
    assert any(entry.endswith("licenses/LICENSE") for entry in names)


def _sources(folder: Path) -> list[str]:
    """Return what git tracks or would track; of a tree that git exported (it has no ``.git``) what lies there."""
    if not (REPOSITORY / ".git").exists():
        files = (path.relative_to(folder) for path in folder.rglob("*"))
        return [str(file) for file in files if not _LIES_ABOUT.intersection(file.parts)]
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "."]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()


def _copy_sources(folder: Path, to: Path) -> None:
    """Copy the sources, so that nothing that lies about gets into the wheel."""
    for name in _sources(folder):
        if (folder / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            (to / name).write_bytes((folder / name).read_bytes())


def test_the_compose_file_keeps_the_store_private_and_asks_for_a_key() -> None:
    import yaml

    compose = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())

    assert "ports" not in compose["services"]["valkey"]
    assert compose["networks"]["store"]["internal"] is True
    assert compose["services"]["stabilityboard"]["ports"] == ["${STABILITY_BIND:-127.0.0.1}:8080:8080"]
    assert compose["services"]["job"]["secrets"] == list(compose["secrets"])


def test_the_compose_file_bounds_both_services_and_the_store_wants_a_password() -> None:
    import yaml

    services = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())["services"]
    command = services["valkey"]["command"][-1]

    assert [
        flag for flag in ("--maxmemory ", "--maxmemory-policy noeviction", "--requirepass ") if flag not in command
    ] == []
    assert services["stabilityboard"]["environment"]["STABILITY_REDIS_URL"].startswith("redis://:${VALKEY_PASSWORD:?")
    for name in ("stabilityboard", "valkey"):
        assert {"mem_limit", "cpus", "pids_limit"} <= services[name].keys()


def test_the_image_runs_as_a_number_and_reaches_object_stores() -> None:
    dockerfile = (REPOSITORY / "Dockerfile").read_text().splitlines()
    tested = (REPOSITORY / "requirements" / "test.txt").read_text().splitlines()
    image = (REPOSITORY / "requirements" / "image.txt").read_text().splitlines()

    assert "USER 10001:10001" in dockerfile
    assert [line for line in image if not line.startswith("#") and line not in tested] == []
    assert any(line.startswith("obstore==") for line in image)
    assert any("-r requirements/image.txt" in line for line in dockerfile)
