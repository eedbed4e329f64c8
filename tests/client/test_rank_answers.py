"""What a rank answers when it is asked for stacks or collectives, and what of its process that leaves alone."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from pathlib import Path

import pytest

from support.agent.spooled import child

# --- stacks: never over what the process has already ---------------------------------------------------------------

_INIT = "import faulthandler, os, signal, sys, time, stabilityclient\n"
_OPEN = 'run = stabilityclient.init(run_id="r")\n'


def _run(folder: Path, code: str, returncode: int = 0, **environ: str) -> tuple[str, str, str]:
    """Return output, errors and stacks of a process that ran ``code``."""
    process = child(_INIT + code, STABILITY_MODE="offline", STABILITY_DIR=str(folder), **environ)
    out, err = process.communicate(timeout=60)
    assert process.returncode == returncode, err
    return out, err, "".join(sorted(path.read_text() for path in folder.glob("r/sources/*/stacks")))


def test_a_signal_that_somebody_handles_stays_theirs(tmp_path: Path) -> None:
    out, _, stacks = _run(
        tmp_path,
        'signal.signal(signal.SIGUSR2, lambda *_: print("mine"))\n'
        + _OPEN
        + "os.kill(os.getpid(), signal.SIGUSR2); part = run._components\n"
        + "print(part.slot.dump_signal, part.stack_file.missing)",
        STABILITY_DUMP_SIGNAL="SIGUSR2",
    )
    assert out == "mine\n0 signal 12 (STABILITY_DUMP_SIGNAL) is handled in this process already\n"
    assert stacks == ""


def test_what_the_user_registers_later_survives_our_end(tmp_path: Path) -> None:
    number = int(signal.SIGRTMIN) + 6
    out, err, stacks = _run(
        tmp_path,
        _OPEN
        + f'signal.signal({number}, lambda *_: print("mine"))\nrun.finish(); os.kill(os.getpid(), {number})\n'
        + "faulthandler.enable(); again = stabilityclient.init(run_id='r')\n"
        + f"os.kill(os.getpid(), {number}); print(again._components.slot.dump_signal); again.finish()\n"
        + "faulthandler._sigsegv()",
        -signal.SIGSEGV,
    )
    assert (out, "Segmentation fault" in err, stacks) == ("mine\nmine\n0\n", True, "")


def test_a_faulthandler_that_is_enabled_stays_where_it_is(tmp_path: Path) -> None:
    out, err, stacks = _run(
        tmp_path,
        _OPEN + "print(run._components.slot.flags & 1, flush=True); faulthandler._sigsegv()",
        -11,
        PYTHONFAULTHANDLER="1",
    )
    assert (out, "Segmentation fault" in err, stacks) == ("0\n", True, "")


def test_a_signal_that_somebody_handles_later_is_theirs_from_then_on(tmp_path: Path) -> None:
    out, _, _ = _run(
        tmp_path,
        "from stabilityclient.rank_state import heartbeat\nheartbeat.BEAT_S = 0.02\n"
        + _OPEN
        + "slot = run._components.slot\nprint(slot.dump_signal)\nsignal.signal(signal.SIGRTMIN + 6, lambda *_: None)\n"
        + "beat = slot.beat\nwhile slot.beat < beat + 3: time.sleep(0.005)\nprint(slot.dump_signal); run.finish()",
    )
    assert out == f"{signal.SIGRTMIN + 6}\n0\n"


def test_a_crash_reporter_s_handler_of_a_fatal_signal_stays_where_it_is(tmp_path: Path) -> None:
    code = "import ctypes; ctypes.CDLL(None).signal(11, 0x1000)\n"  # a handler that Python does not know of
    code += (
        _OPEN + "print(run._components.slot.flags & 1, faulthandler.is_enabled(), run._components.slot.dump_signal > 0)"
    )
    assert _run(tmp_path, code)[0] == "0 False True\n"


def test_a_fatal_error_leaves_its_trace_and_the_same_death(tmp_path: Path) -> None:
    _, err, stacks = _run(tmp_path, _OPEN + "def crash():\n    faulthandler._sigsegv()\ncrash()", -signal.SIGSEGV)
    assert err == ""
    assert stacks.startswith("Fatal Python error: Segmentation fault\n")
    assert " in crash\n" in stacks


def test_a_signal_after_the_end_harms_nobody_and_the_next_run_has_its_own_file(tmp_path: Path) -> None:
    out, _, stacks = _run(
        tmp_path,
        _OPEN
        + "kill = lambda: os.kill(os.getpid(), signal.SIGRTMIN + 6)\n"
        + "def first(): kill()\ndef between(): kill()\ndef second(): kill()\n"
        + "first(); run.finish(); between()\n"
        + _OPEN
        + "second(); os.environ.update(RANK='1', WORLD_SIZE='2', LOCAL_WORLD_SIZE='2')\n"
        + "twin = stabilityclient.init(run_id='s')\nprint(twin._components.stack_file.missing)\n"
        + "twin.finish(); second(); run.finish(); between()",
    )
    assert [stacks.count(f" in {name}\n") for name in ("first", "between", "second")] == [1, 0, 2]
    assert out == "another run of this process has the stack dumps\n"


def test_a_forked_worker_writes_nothing_into_the_rank_s_file(tmp_path: Path) -> None:
    _, _, stacks = _run(
        tmp_path,
        _OPEN
        + "pid = os.fork()\n"
        + "if pid == 0:\n    os.kill(os.getpid(), signal.SIGRTMIN + 6); faulthandler._sigsegv()\n"
        + "assert os.waitpid(pid, 0)[1] == 11\nos.kill(os.getpid(), signal.SIGRTMIN + 6); run.finish()",
    )
    assert (stacks.count("Current thread"), "Fatal" in stacks) == (1, False)


def test_a_descriptor_that_was_closed_under_us_is_left_to_whom_it_belongs_now(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    _run(
        tmp_path,
        _OPEN
        + "from stabilityclient.rank_state.stack_file import _Registered\n"
        + f"fd = os.open({str(precious)!r}, os.O_CREAT | os.O_WRONLY); os.dup2(fd, _Registered.fd)\n"
        + "run.finish(); os.write(_Registered.fd, b'kept')",
    )
    assert precious.read_bytes() == b"kept"


@pytest.mark.parametrize("end", ["", "run.finish()", "sys.exit(3)", "os._exit(3)"])
def test_a_process_ends_as_it_would_with_a_request_to_its_main_thread_open(tmp_path: Path, end: str) -> None:
    code = (
        "from stabilityclient.rank_state import heartbeat\nheartbeat.BEAT_S = 0.002\n"
        + _OPEN
        + "slot = run._components.slot\nwhile slot.pending < 3: pass\n"
        + f"time.sleep(0.1)\n{end}"
    )
    _, err, _ = _run(tmp_path, code, 3 if "exit" in end else 0)
    assert err == ""


# --- probes: what the process is asked for ------------------------------------------------------------------------

#: What PyTorch 2.13's recorder for gloo says of a rank that waits in its fourth all_reduce (two entries of four).
_GLOO = (
    b'{"comm_lib_version":"","entries":[{"collective_seq_id":3,"input_dtypes":["Float"],"input_sizes":[[4]],"is_p2p":false,'
    b'"op_id":3,"output_dtypes":["Float"],"output_sizes":[[4]],"p2p_seq_id":0,"pg_id":0,"process_group":["0","default_pg"],'
    b'"profiling_name":"gloo:all_reduce","record_id":2,"retired":true,"state":"scheduled","thread_id":"1","thread_name":"p",'
    b'"time_created_ns":CREATED,"time_discovered_completed_ns":0,"time_discovered_started_ns":0,"timeout_ms":1800000},'
    b'{"collective_seq_id":4,"input_dtypes":["Float"],"input_sizes":[[4]],"is_p2p":false,"op_id":4,"output_dtypes":["Float"],'
    b'"output_sizes":[[4]],"p2p_seq_id":0,"pg_id":0,"process_group":["0","default_pg"],"profiling_name":"gloo:all_reduce",'
    b'"record_id":3,"retired":false,"state":"scheduled","thread_id":"1","thread_name":"p","time_created_ns":CREATED,'
    b'"time_discovered_completed_ns":0,"time_discovered_started_ns":0,"timeout_ms":1800000}],"nccl_comm_state":{},'
    b'"pg_config":{"":{"desc":"","name":"","ranks":"[0, 1]"}},"pg_status":{"0":{"last_completed_collective":"3",'
    b'"last_enqueued_collective":"4","last_started_collective":"-1"}},"version":"2.10"}'
)

#: A torch at the edge of the world: its recorder answers what ``dump`` returns.
_TORCH = """
import json, threading, types
from stabilityclient.rank_state import heartbeat
from stabilityclient.rollback.command_files import add_to_mailbox
heartbeat.BEAT_S = 0.02
def torch(dump):
    inner = types.SimpleNamespace(_dump_fr_trace_json=lambda includeCollectives, onlyActive: dump())
    distributed = types.SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True)
    sys.modules["torch"] = types.SimpleNamespace(_C=types.SimpleNamespace(_distributed_c10d=inner))
    sys.modules["torch.distributed"] = distributed
def ask():
    before = run._components.slot.probe
    add_to_mailbox(os.path.join(run.folder, "probe"))
    deadline = time.monotonic() + 20
    while run._components.slot.probe == before:
        assert time.monotonic() < deadline, "no answer"
        time.sleep(0.005)
    with open(os.path.join(run.folder, "sources", run._components.source, "probe.json")) as file:
        return json.load(file)
"""


def test_a_probe_tells_active_collectives_without_those_that_are_over(tmp_path: Path) -> None:
    out, _, _ = _run(
        tmp_path,
        _TORCH
        + _OPEN
        + f"torch(lambda: {_GLOO!r}.replace(b'CREATED', b'%d' % (time.time_ns() - 7 * 10**9)))\n"
        + "answer = ask(); run.finish(); print(json.dumps([answer, run._components is None]))",
    )
    answer = json.loads(out)[0]
    age_s = answer["collectives"]["active"][0].pop("age_s")
    assert 6.9 <= age_s < 30  # the clock of a machine may be set back a little meanwhile
    assert (answer["n"], answer["why"], " in ask\n" in answer["threads"]) == (1, None, True)
    assert answer["collectives"] == {
        "pgs": [{"name": "0", "desc": "default_pg", "ranks": [0, 1], "enqueued": 4, "started": -1, "completed": 3}],
        "active": [{"pg": "0", "seq": 4, "op": "all_reduce", "state": "scheduled", "sizes": [[4]]}],
    }


def test_a_recorder_that_can_not_be_read_has_a_reason(tmp_path: Path) -> None:
    reasons = {
        "pass": "not imported torch",
        "sys.modules['torch'] = None": "no process group",
        "torch(lambda: b'{}')": "TORCH_FR_BUFFER_SIZE",
        "torch(lambda: b'no json')": "JSONDecodeError",
        "torch(lambda: b'[]')": "AttributeError",
        "torch(lambda: b' ' * 9_000_000)": "9000000 bytes",
        "torch(lambda: 1 / 0)": "ZeroDivisionError",
        "torch(None); del sys.modules['torch']._C._distributed_c10d._dump_fr_trace_json": "no Flight Recorder",
    }
    asks = "".join(f"{torch}\nanswers.append(ask())\n" for torch in reasons)
    out, err, _ = _run(tmp_path, f"{_TORCH}{_OPEN}answers = []\n{asks}run.finish(); print(json.dumps(answers))")
    answers = json.loads(out)
    assert ([answer["collectives"] for answer in answers], err) == ([None] * len(reasons), "")
    for answer, why in zip(answers, reasons.values(), strict=True):
        assert why in answer["why"]
    # Without a process group there is nothing that a recorder could tell.
    assert [answer["group"] for answer in answers] == [False, False] + [True] * (len(reasons) - 2)


def test_a_recorder_that_never_answers_stops_neither_the_heart_nor_the_end(tmp_path: Path) -> None:
    out, _, _ = _run(
        tmp_path,
        _TORCH
        + _OPEN
        + "asked = threading.Event()\ntorch(lambda: (asked.set(), threading.Event().wait()))\n"
        + "add_to_mailbox(os.path.join(run.folder, 'probe')); asked.wait(60)\n"
        + "beat = run._components.slot.beat\nwhile run._components.slot.beat < beat + 3: time.sleep(0.005)\n"
        + "first = json.load(open(os.path.join(run.folder, 'sources', run._components.source, 'probe.json')))\n"
        + "print(first['threads'].count(' in <module>'), first['why'], ask()['why']); run.finish()",
    )
    assert out.startswith("1 the Flight Recorder has not answered yet the call")
    assert "has not come back for" in out


def test_the_heart_writes_the_stacks_of_python_without_a_signal(tmp_path: Path) -> None:
    out, _, stacks = _run(
        tmp_path,
        _TORCH + _OPEN + "def stuck():\n    return ask()\nprint(json.dumps(stuck()))\nrun.finish()",
        STABILITY_DUMP_SIGNAL="off",
    )
    answer = json.loads(out)
    assert answer["threads"].startswith("Current thread 0x")
    frames = [line.rpartition(" in ")[2].strip() for line in answer["threads"].splitlines()[1:]]
    assert frames == ["ask", "~ time.sleep", "stuck", "<module>"]  # with the call into C
    assert stacks == ""


@pytest.mark.torch
@pytest.mark.soak
def test_a_real_recorder_says_what_a_group_has_done(tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        assert "CI" not in os.environ, "torch is missing"
        pytest.skip("needs torch")
    out, _, _ = _run(
        tmp_path,
        _OPEN
        + "import torch.distributed as dist, torch, json\n"
        + "from stabilityclient.rank_state.flight_recorder import read_recorder\n"
        + f"dist.init_process_group('gloo', init_method='file://{tmp_path}/meet', rank=0, world_size=1)\n"
        # Gloo notes a completion on one of its two threads, a moment after the call has returned: two at once may be
        # noted in the wrong order, and the newest completion is then the older call. Group and call are noted apart.
        + "def reduce(number):\n"
        + "    dist.all_reduce(torch.ones(4))\n"
        + "    end = time.monotonic() + 10\n"
        + "    while time.monotonic() < end:\n"
        + "        said = read_recorder(sys.modules, time.time())\n"
        + "        if said[0]['pgs'][0]['completed'] == number and not said[0]['active']: break\n"
        + "        time.sleep(0.01)\n"
        + "    return said\n"
        + "reduce(1); said = reduce(2)\n"
        + "print(json.dumps(said)); run.finish()",
        TORCH_FR_BUFFER_SIZE="100",
    )
    held, why = json.loads(out)
    assert why is None
    assert [(group["ranks"], group["enqueued"], group["completed"]) for group in held["pgs"]] == [([0], 2, 2)]
    assert held["active"] == []


# --- two jobs with one run id --------------------------------------------------------------------------------------


def test_a_second_living_process_of_one_rank_is_told_and_a_restart_is_not(tmp_path: Path) -> None:
    first = child(
        _INIT + _OPEN + "print('in', flush=True); time.sleep(60)",
        STABILITY_MODE="offline",
        STABILITY_DIR=str(tmp_path),
    )
    assert first.stdout is not None
    assert first.stdout.readline() == "in\n"
    _, err, _ = _run(tmp_path, _OPEN)
    assert f"process {first.pid} records rank 0 of run r" in err
    first.kill()
    first.communicate()
    assert _run(tmp_path, _OPEN)[1] == ""
