"""A script that the tee runs is what it is without: output, exit code, signals, traceback, arguments, path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.agent.teed import plainly, teed

SCRIPTS = {
    "its names, arguments and path": """
        import sys
        print(sys.argv, __name__, __file__, sys.path[0], sorted(name for name in globals() if name[:2] == "__"))
    """,
    "an exception out of another": """
        def deeper(left):
            if not left:
                raise ValueError("deep")
            deeper(left - 1)

        try:
            deeper(2)
        except ValueError as error:
            raise RuntimeError("outer") from error
    """,
    "sys.exit(3)": "import sys; print('out'); sys.exit(3)",
    "sys.exit with a text": "import sys; sys.exit('told')",
    "os._exit(7)": "import os; os._exit(7)",
    "SIGTERM": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "Ctrl-C": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "a syntax error": "def broken(:",
    "an excepthook of its own": """
        import sys, traceback
        sys.excepthook = lambda kind, error, trace: print("mine", kind, traceback.format_tb(trace))
        1 / 0
    """,
    "a thread and an exit handler that outlive the script": """
        import atexit, pickle, threading, time

        class Mine: pass

        def late():
            time.sleep(0.05)
            print(pickle.loads(pickle.dumps(Mine())).__module__, __name__)

        atexit.register(lambda: print("bye", Mine.__module__))
        threading.Thread(target=late).start()
    """,
    "processes by fork and by spawn": """
        import multiprocessing

        def square(number):
            return number * number

        if __name__ == "__main__":
            for method in ("fork", "spawn"):
                with multiprocessing.get_context(method).Pool(1) as pool:
                    print(pool.map(square, [2, 3]))
    """,
}


@pytest.mark.parametrize("code", SCRIPTS.values(), ids=list(SCRIPTS))
def test_a_script_does_the_same_as_without_us(tmp_path: Path, code: str) -> None:
    alone = plainly(tmp_path, code, "--lr", "1")

    ours = teed(tmp_path, code, "--lr", "1")

    assert (ours.code, ours.out, ours.err) == (alone.code, alone.out, alone.err)


def test_a_script_that_ends_by_itself_has_finished_and_one_that_leaves_with_an_error_has_not(tmp_path: Path) -> None:
    well, ill = teed(tmp_path / "well", "pass"), teed(tmp_path / "ill", "import sys; sys.exit(3)")

    assert [len(one.store.events("finish")) for one in (well, ill)] == [1, 0]


def test_an_exception_that_ends_the_script_is_told_with_where_it_was_and_without_our_lines(tmp_path: Path) -> None:
    (event,) = teed(tmp_path, "def train():\n    raise ValueError('nan')\ntrain()").store.events("exception")

    assert event.data["message"] == "nan"
    lines = event.data["traceback"].splitlines()
    assert [line.split(",")[0].split("/")[-1] for line in lines[::2]] == ['train.py"'] * 2
    assert lines[1::2] == ["    train()", "    raise ValueError('nan')"]


def test_a_wrong_setting_of_ours_is_told_and_the_script_runs(tmp_path: Path) -> None:
    done = teed(tmp_path, "print('trained')", STABILITY_URL="ftp://nowhere")

    assert (done.code, done.out) == (0, "trained\n")
    assert "url is 'ftp://nowhere', expected http://... or https://" in done.err


def test_a_folder_that_cannot_be_written_is_told_and_the_script_runs(tmp_path: Path) -> None:
    done = teed(tmp_path, "print('trained')", STABILITY_DIR="/proc/nowhere")

    assert (done.code, done.out) == (0, "trained\n")


def test_a_module_is_run_as_python_runs_one(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "__init__.py").touch()
    (tmp_path / "job" / "train.py").write_text("import sys; print(__name__, __spec__.name, __package__, sys.argv[1:])")

    done = teed(tmp_path, "", options=("-m", "job.train"))

    assert done.out == "__main__ job.train job ['train.py']\n"


def test_a_script_that_is_not_there_leaves_no_run(tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environ |= {"STABILITY_DIR": str(tmp_path / "spools"), "STABILITY_MODE": "offline"}

    for arguments in (["trian.py"], ["-m", "no_such_module"]):
        command = [sys.executable, "-m", "stabilityclient.tee", *arguments]
        done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode != 0
        assert "trian.py" in done.stderr or "No module named no_such_module" in done.stderr

    assert not (tmp_path / "spools").exists()
