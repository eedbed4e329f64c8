"""What git says of the checkout that a script lies in. Run in the agent only, each call with a limit of its own."""

from __future__ import annotations

import os
import subprocess
from typing import Any

from stabilityclient.secrets.texts import clean_text, clean_url

__all__ = ["checkout"]

#: Seconds for one call of git: ``status`` of a large checkout on a network disk may take longer, and is given up.
CALL_S = 10.0
#: Bytes read of an answer; a checkout with more changes than that has "more".
ANSWER_BYTES = 256 * 1024
#: Names of changed files that are sent, and characters of each.
NAMED_FILES, NAME_CHARS = 20, 200
#: What git must not do here: ask for a password, open a pager, write an index or run a hook of the checkout's.
_QUIET = {
    "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_PAGER": "cat", "LC_ALL": "C", "GIT_ASKPASS": "true",
}  # fmt: skip
_SAFE = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "diff.external=")


class _Failed(Exception):
    """git is not there, took too long, or said no."""


def checkout(folder: str) -> dict[str, Any]:
    """Return what the checkout at ``folder`` is at; {} where it is in none. It takes seconds on a slow disk.

    ``commit``, ``branch`` ("" when detached), ``subject`` (first line of the commit's message), ``remote`` without
    user and password, ``dirty`` (null where that is not known, then ``why``), ``changed`` (number of changed files,
    files that git does not know included) and ``files`` (names of the first ones).
    """
    try:
        top = _git(folder, "rev-parse", "--show-toplevel")
        commit = _git(folder, "rev-parse", "HEAD")
    except _Failed:
        return {}
    found: dict[str, Any] = {"folder": top, "commit": commit, "branch": _or_none(folder, "branch", "--show-current")}
    found["subject"] = clean_text(_or_none(folder, "log", "-1", "--format=%s"))[:NAME_CHARS]
    found["remote"] = clean_url(_or_none(folder, "config", "--get", "remote.origin.url"))[:NAME_CHARS]
    try:
        lines = _git(folder, "status", "--porcelain", "--untracked-files=normal").splitlines()
    except _Failed as error:
        return found | {"dirty": None, "why": str(error)}
    files = [line[3:][:NAME_CHARS] for line in lines[:NAMED_FILES]]
    return found | {"dirty": bool(lines), "changed": len(lines), "files": files}


def _or_none(folder: str, *arguments: str) -> str:
    try:
        return _git(folder, *arguments)
    except _Failed:
        return ""


def _git(folder: str, *arguments: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | _QUIET
    try:
        done = subprocess.run(
            ["git", *_SAFE, *arguments],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=CALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _Failed(f"git {arguments[0]} took longer than {CALL_S:.0f} s") from error
    except OSError as error:
        raise _Failed(f"git can't be run: {error.strerror or error}") from error
    if done.returncode:
        said = done.stderr[:400].decode("utf-8", "replace").strip()
        raise _Failed(f"git {arguments[0]} failed: {clean_text(said)}")
    # Not strip(): the first character of a line of `status` may be a space that means something.
    return done.stdout[:ANSWER_BYTES].decode("utf-8", "replace").rstrip()
