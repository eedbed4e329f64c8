"""Prints the table of the house for any checkout: lines, files, untyped dicts, guards, and files to touch for a change.

    python benchmarks/census.py [FOLDER ...]        one column a checkout; without a folder this one

Counts text and syntax of product code (client, alerting, backend, frontend), imports none of it. "Files to touch" are
the files that spell an existing example of such a thing, tests and docs left out: a proxy, the same for each column.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = {
    "client": "client/stabilityclient",
    "alerting": "alerting/stabilityalerting",
    "backend": "backend/stabilitybackend",
    "plugins": "plugins/stabilityplugins",
    "frontend": "frontend/stabilityfrontend",
}
#: Folders whose module-level numbers are rules: detectors, liveness, policy, and what they are to be called; and the
#: bounds that they share.
RULES = re.compile(r"/(detectors|detection|liveness|policy|incidents|commands|fleet|gpus)/|/schema/json_data\.py$")
#: What a helper is called that makes a value of a type out of anything.
COERCION = re.compile(r"_(as_)?(number|text|int|ints|float|str|list|dict|bool|optional|seconds|state|finite)s?$")
#: A kind of incident: files that spell two or more of these as strings hold a table of them.
KINDS = (
    "spike", "divergence", "nonfinite", "level_shift", "plateau", "grad_norm", "data_mix_drift", "repeat_data",
    "resume_artifact", "throughput", "straggler", "hang", "process_death", "agent_lost", "gpu_fault", "desync",
)  # fmt: skip
#: A thing that people add -> how an existing one of it is spelled.
EXAMPLES = {
    "detector": r"data_mix_drift|DataMixDrift",
    "incident kind": r"[\"'`]plateau[\"'`]",
    "command kind": r"[\"'`]dump_stacks[\"'`]",
    "page": r"fleet_page|[\"'`/]fleet[\"'`]|fleet\.js",
    "KPI": r"[\"'`]step-time[\"'`]",
    "chart": r"[\"'`]datasets[\"'`]",
    "importer": r"trainer_state",
    "channel": r"SlackSink|STABILITY_SLACK",
    "role": r"[\"'`]admin[\"'`]",
    "GPU condition": r"remap_failed",
}


@dataclass(frozen=True)
class File:
    """One product file.

    Args:
        path: relative to the checkout. text: its content. tree: its syntax, None for what is no Python.
    """

    path: str
    text: str
    tree: ast.Module | None

    @property
    def lines(self) -> int:
        """Return its lines."""
        return self.text.count("\n")


def files_of(root: Path) -> Iterator[File]:
    """Yield the Python and JavaScript files of the product; what others wrote (vendored, minified) is left out."""
    for folder in PACKAGES.values():
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".py", ".js") or ".min." in path.name or {"vendor", "node_modules"} & {*path.parts}:
                continue
            text = path.read_text()
            yield File(path.relative_to(root).as_posix(), text, ast.parse(text) if path.suffix == ".py" else None)


def numeric(node: ast.expr | None) -> bool:
    """Return whether an expression is a number or arithmetic on numbers."""
    if isinstance(node, ast.BinOp):
        return numeric(node.left) and numeric(node.right)
    if isinstance(node, ast.UnaryOp):
        return numeric(node.operand)
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)


def constants(tree: ast.Module) -> int:
    """Return how many names a module gives to a number at its top."""
    assigned = (node.value for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign))
    return sum(numeric(value) for value in assigned)


def guards(tree: ast.Module) -> int:
    """Return how often a value's type is asked for."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return sum(isinstance(call, ast.Name) and call.id == "isinstance" for call in calls)


def outside_assignments(tree: ast.Module) -> int:
    """Return how many assignments go to attributes of other objects than ``self``."""
    statements = (node for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign))
    targets = (
        target for node in statements for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    )
    stored = (one for target in targets for one in ast.walk(target) if isinstance(one, ast.Attribute))
    own = ("self", "cls")
    return sum(
        isinstance(one.ctx, ast.Store) and not (isinstance(one.value, ast.Name) and one.value.id in own)
        for one in stored
    )


def callbacks(tree: ast.Module) -> int:
    """Return how many parameters of constructors are callables."""
    classes_ = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    makers = (
        one for node in classes_ for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"
    )
    given = (argument for one in makers for argument in (*one.args.args, *one.args.kwonlyargs))
    return sum(one.annotation is not None and "Callable" in ast.unparse(one.annotation) for one in given)


def longest(tree: ast.Module) -> int:
    """Return the lines of the longest function."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return max(((node.end_lineno or 0) - node.lineno + 1 for node in functions), default=0)


def coercions(tree: ast.Module) -> int:
    """Return how many private functions make a value of a type out of anything."""
    functions = (node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return sum(bool(COERCION.fullmatch(name)) for name in functions)


def classes(files: list[File]) -> Counter[str]:
    """Return class names with how many files define each."""
    names: Counter[str] = Counter()
    for file in files:
        names.update(
            {node.name for node in ast.walk(file.tree or ast.Module([], [])) if isinstance(node, ast.ClassDef)}
        )
    return names


def kinds_in(file: File) -> int:
    """Return how many kinds of incidents a file spells: as strings, in JavaScript as keys of an object too."""
    quoted = set(re.findall(r"[\"'`]([a-z_]+)[\"'`]", file.text))
    if file.tree is None:
        quoted |= set(re.findall(r"^\s*([a-z_]+):", file.text, re.M))
    return len(quoted & {*KINDS})


def census(root: Path) -> dict[str, str]:
    """Return the table of one checkout, row by row."""
    files = list(files_of(root))
    python = [file for file in files if file.tree is not None]
    scripts = [file for file in files if file.tree is None]
    rows = {"product lines": f"{sum(file.lines for file in files):,}"}
    for name, folder in PACKAGES.items():
        own = [file for file in python if file.path.startswith(folder)]
        rows[f"{name}, Python: lines (files)"] = f"{sum(file.lines for file in own):,} ({len(own)})"
    rows["JavaScript: lines (files)"] = f"{sum(file.lines for file in scripts):,} ({len(scripts)})"
    sizes = [file.lines for file in files]
    rows["lines a file, median / max"] = f"{statistics.median(sizes):.0f} / {max(sizes)}"
    rows["files over 250 lines"] = str(sum(size > 250 for size in sizes))
    rows["`dict[str, Any]`"] = str(sum(file.text.count("dict[str, Any]") for file in python))
    trees = [(file.path, file.tree) for file in python if file.tree is not None]
    rows["`isinstance` guards"] = str(sum(guards(tree) for _, tree in trees))
    rows["assignments to attributes of other objects"] = str(sum(outside_assignments(tree) for _, tree in trees))
    rows["callables among constructors' parameters"] = str(sum(callbacks(tree) for _, tree in trees))
    rows["longest function, lines"] = str(max(longest(tree) for _, tree in trees))
    rows["private coercion helpers"] = str(sum(coercions(tree) for _, tree in trees))
    rows["numeric constants of rules"] = str(sum(constants(tree) for path, tree in trees if RULES.search(path)))
    folders = Counter(str(Path(file.path).parent) for file in files)
    largest, count = folders.most_common(1)[0]
    rows["largest folder"] = f"{count} ({largest.split('/', 1)[1]})"
    rows["folders of more than 25 files"] = str(sum(many > 25 for many in folders.values()))
    rows["class names used twice"] = str(sum(many > 1 for many in classes(python).values()))
    pages = [*(root / "docs").rglob("*.md"), root / "README.md", root / "CONTRIBUTING.md"]
    rows["docs lines over 120 characters"] = str(
        sum(len(line) > 120 for page in pages for line in page.read_text().splitlines())
    )
    tables = [file for file in files if kinds_in(file) >= 2]
    rows["files that spell two or more incident kinds"] = str(len(tables))
    for thing, spelled in EXAMPLES.items():
        touched = sum(bool(re.search(spelled, file.text) or re.search(spelled, file.path)) for file in files)
        rows[f"files that name one {thing}"] = str(touched)
    return rows


def main() -> None:
    """Print the table as markdown."""
    roots = [Path(name) for name in sys.argv[1:]] or [Path(__file__).resolve().parents[1]]
    columns = [census(root) for root in roots]
    print("| | " + " | ".join(root.resolve().name for root in roots) + " |")
    print("|---" * (len(roots) + 1) + "|")
    for name in columns[0]:
        print(f"| {name} | " + " | ".join(column[name] for column in columns) + " |")


if __name__ == "__main__":
    main()
