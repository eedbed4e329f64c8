"""What the pages of incidents say, by our scripts alone: no server, every field from anywhere."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

NASTY = "<img src=x onerror='window.pwned=1'>"
GARBAGE: list[Any] = [None, 7, NASTY, [None, [1], "x"], {"a": None, "verdict": 3}]

#: Regions that are drawn into, and a page as far as they need one.
STAGE = """
  const S = window.stability;
  document.body.innerHTML = ["head", "verdict", "run", "advice", "death", "gpu", "stacks", "collectives", "ranks",
    "evidence", "timeline"].map((id) => `<section id="incident-${id}-panel"><div id="incident-${id}"></div></section>`)
    .join("") + '<span id="stacks-note"></span><span id="stacks-choose"></span><span id="incident-ranks-note"></span>';
  const pageOf = (incident, dump) => ({
    id: "r 1", root: document.body, incident, run: { name: "job" }, commands: new Map(), agents: [],
    alike: [], config: { looks: [] },
    evidenceFolds: new Map(), ticked: new Set(), name: () => "job", now: () => 2000,
    worldSize: () => 4, dirty() {}, awaited: () => false,
    kept: { orders: () => [], order: () => null },
    requests: () => [], request: () => (dump ? { request: "d", issued: 1990 } : null), dump: () => dump,
  });
  const draw = (incident, dump) => {
    const page = pageOf(incident, dump);
    S.drawIncidentTop(page);
    S.drawIncidentParts(page);
    return document.body.textContent;
  };
  const show = (incident, dump) => draw(incident, dump) && document.body.innerText;
"""


def incident(**changes: Any) -> dict[str, Any]:
    return {
        "incident_id": "i-1", "kind": "hang", "severity": "critical", "state": "open", "title": "The job hangs",
        "text": "It stands.", "segment": 0, "metric": None, "dataset": None, "rank": 5, "node": "gpu-03",
        "onset_step": 1841, "step": 1841, "peak_step": None, "recovered_step": None, "recovery": None, "opened": 1950.0,
        "updated": 1960.0, "resolved": None, "acknowledged_by": None, "dead": False, "version": 1, "evidence": {},
        "suggestion": None, "actions": ["acknowledge", "restart", "dump_stacks"],
    } | changes  # fmt: skip


def frame(function: str, file: str, line: int = 1) -> dict[str, Any]:
    return {"function": function, "file": file, "line": line}


def group(ranks: list[int], where: str, what: str = "", **changes: Any) -> dict[str, Any]:
    frames = [frame("wait", "/usr/lib/python3.11/threading.py"), frame("train", "/home/me/train.py", 12)]
    text = f"Thread 0x1 (most recent call first):\n  {NASTY}"
    return {
        "ranks": ranks, "nodes": ["gpu-03"], "where": where, "what": what, "frames": frames, "text": text, "odd": False,
    } | changes  # fmt: skip


def dump(ranks: int, groups: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    looked = {
        str(rank): {
            "node": f"gpu-{rank // 8:03d}", "pid": 100 + rank, "missing": None, "proc": {"state": "S", "cpu": 0.99},
            "slot": {"step": 1841, "phase": "data" if rank == 5 else "backward", "phase_start": 1926.0},
        }
        for rank in range(ranks)
    }  # fmt: skip
    return {
        "request": "d", "reason": "", "time": 1990.0, "complete": True, "ranks": looked, "groups": groups,
        "collectives": [{"pg": "pg", "seq": 1841, "op": "all_reduce", "joined": [0, 1], "missing": [5]}], "bytes": 1,
    } | changes  # fmt: skip


VERDICT = {
    "class": "data_loader", "text": "Rank 5 (node gpu-03, GPU 2) is in data for 74 s; the other 7 wait.",
    "confidence": "high", "culprits": [5], "nodes": ["gpu-03"],
    "gpus": [{"rank": 5, "node": "gpu-03", "index": 2, "uuid": "GPU-3f9b"}], "because": ["it sleeps in queue.get"],
    "blind": ["kernel log of gpu-03: not permitted"], "since": 1926.0, "decided_after_s": 31.0, "dump": "d",
}  # fmt: skip


def show(page: Page, one: dict[str, Any], found: dict[str, Any] | None = None) -> str:
    return str(page.evaluate(f"([incident, dump]) => {{ {STAGE} return show(incident, dump); }}", [one, found]))


def test_a_verdict_names_who_since_when_how_sure_why_and_what_is_not_visible(pages: Page) -> None:
    words = show(pages, incident(since=1926.0, evidence={"verdict": VERDICT}))
    for expected in (
        "Rank 5 (node gpu-03, GPU 2) is in data for 74 s", "rank 5 · gpu-03 · GPU 2", "GPU-3f9b", "1 min 14 s ago",
        "high", "it sleeps in queue.get", "Not visible", "kernel log of gpu-03: not permitted",
        "Verdict: stuck in the data loader, high confidence",
    ):  # fmt: skip
        assert expected in words, expected


def test_the_step_since_which_a_mixture_is_off_is_no_time(pages: Page) -> None:
    words = show(pages, incident(kind="data_mix_drift", rank=None, node=None, evidence={"since": 161}))
    assert "50 s ago" in words
    assert " d " not in words


def test_the_meaning_of_a_known_error_stands_below_the_exception_of_the_first_death_only(pages: Page) -> None:
    deaths = [{"rank": rank, "exception": {"type": "OSError", "message": "[Errno 122] Disk"}} for rank in (5, 6)]
    known = {"name": "Disk quota exceeded", "means": f"No more {NASTY}.", "cause": "old checkpoints.", "next": ["x"]}
    words = show(pages, incident(kind="process_death", evidence={"deaths": deaths, "explained": known}))
    assert words.count(f"Disk quota exceeded: No more {NASTY}.") == 1
    assert words.count("Old checkpoints.") == 1
    assert words.index("[Errno 122] Disk") < words.index("Disk quota exceeded") < words.rindex("[Errno 122] Disk")
    for unknown in ({}, {"name": "", "means": "", "cause": "", "next": []}, None, 7):
        quoted = show(pages, incident(kind="process_death", evidence={"deaths": deaths, "explained": unknown}))
        assert "[Errno 122] Disk" in quoted
        assert "Meaning" not in quoted
        assert "Usual cause" not in quoted


def test_what_recovered_says_so_and_a_note_has_no_duration(pages: Page) -> None:
    back = show(pages, incident(kind="spike", state="recovered", resolved=1955.0))
    assert re.search(r"Recovered .*, after 5.0 s", back)
    assert "Resolved" not in back
    note = show(pages, incident(kind="shared_data", state="resolved", resolved=1950.0))
    assert "lasted" not in note
    assert "after" not in note


def test_data_of_another_run_lead_to_it_and_to_the_comparison(pages: Page) -> None:
    evidence = {"other_run": "r/0", "other_name": NASTY, "other_step": 1, "offset_steps": 1840}
    words = show(pages, incident(kind="shared_data", rank=None, node=None, evidence=evidence))
    assert f"{NASTY} from its step 1 on" in words
    links = pages.locator("#incident-verdict dd a").evaluate_all("all => all.map((one) => one.getAttribute('href'))")
    assert links == ["/runs/r%2F0", "/compare?run=r+1&run=r%2F0&shift=0&shift=1840"]


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        ({"earlier_step": 1, "offset_steps": 400}, "step 1, 400 steps back"),
        ({"earlier_step": 9, "earlier_last_step": 597}, "steps 9–597, in another order"),
        ({"earlier_step": 7, "what": "same"}, "step 7, and at each step since"),
    ],
)
def test_repeated_data_say_where_they_came_before(pages: Page, evidence: dict[str, Any], words: str) -> None:
    assert words in show(pages, incident(kind="repeat_data", rank=None, node=None, evidence=evidence))


def test_before_the_first_step_no_step_is_named(pages: Page) -> None:
    ranks = {"0": {"step": -1, "phase": "init", "stood_s": 23.0, "node": "a"}}
    early = incident(onset_step=-1, step=-1, evidence={"ranks": ranks, "verdict": {"since": 1940.0}})
    text = pages.evaluate(f"(one) => {{ {STAGE} return show(one); }}", early)
    assert "none yet" in text
    assert "−1" not in text
    assert "-1" not in text


def test_an_exception_that_quotes_a_traceback_keeps_its_lines(pages: Page) -> None:
    message = "Caught KeyError in worker 0.\nOriginal Traceback (most recent call last):\n  File a.py\nKeyError: 'x'\n"
    death = {"rank": 1, "node": "a", "exception": {"type": "KeyError", "message": message}}
    show(pages, incident(kind="process_death", evidence={"deaths": [death]}))
    lines = str(pages.locator(".death .lines").text_content()).splitlines()
    assert lines == [f"KeyError: {message.splitlines()[0]}", *message.splitlines()[1:]]


def test_the_odd_group_comes_first_and_says_where_it_is_the_others_what_they_wait_in(pages: Page) -> None:
    many = group([0, 1, 2, 3, 4, 6, 7], "collective", "all_reduce #1841")
    groups = [many, group([8], "native"), group([5], "data", odd=True)]
    words = show(pages, incident(evidence={"verdict": VERDICT}), dump(9, groups))
    odd, others = words.index("rank 5 · gpu-03 · in data"), words.index("7 ranks wait in all_reduce #1841")
    assert odd < words.index("rank 8 · gpu-03 · in C code") < others
    assert pages.locator(".stack-group.odd").count() == 1
    assert "ranks 0–4, 6, 7 on gpu-03" in words


def test_of_a_stack_the_jobs_own_code_stands_out_and_libraries_are_folded(pages: Page) -> None:
    frames = [
        frame("wait", "/usr/lib/python3.11/threading.py"),
        frame("get", "/usr/lib/python3.11/queue.py"),
        frame("next", "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"),
        frame("batch", "/home/me/torch_job/data.py"),
        frame("<module>", "<string>"),
    ]
    show(pages, incident(), dump(1, [group([5], "data", frames=frames)]))
    assert pages.locator(".frames > .frame.user .frame-name").all_inner_texts() == ["batch", "<module>"]
    assert pages.inner_text(".frames > .innermost .frame-name") == "wait"
    assert pages.inner_text(".frame-fold summary").startswith("2 frames of libraries")


def test_ranks_without_a_stack_say_why(pages: Page) -> None:
    found = dump(4, [group([0, 1], "collective")])
    found["ranks"]["2"]["missing"] = found["ranks"]["3"]["missing"] = "no handler for the dump signal is set"
    words = show(pages, incident(), found)
    assert "Ranks 2, 3 on gpu-000: no stack, because no handler for the dump signal is set" in words


@pytest.mark.parametrize(("state", "spins"), [("delivered", 1), ("failed", 0), ("expired", 0)])
def test_nobody_waits_for_stacks_of_an_order_that_is_over(pages: Page, state: str, spins: int) -> None:
    word = {"state": "failed", "detail": "its agent ended before it answered", "gone": True}
    over = {"ended": not spins, "failed": not spins}
    order = {"command_id": "d", "kind": "dump_stacks", "state": state, "nodes": {"gpu-03": word}, "progress": over}
    words = pages.evaluate(
        f"""([incident, order]) => {{ {STAGE}
          const page = {{ ...pageOf(incident, null), request: () => ({{ request: "d", issued: 1990 }}) }};
          page.awaited = () => true;
          page.commands.set("d", order);
          S.drawIncidentParts(page);
          return document.getElementById("incident-stacks").innerText; }}""",
        [incident(), order],
    )
    assert pages.locator("#incident-stacks .spinner").count() == spins
    assert "gpu-03: Its agent ended before it answered" in words


def test_two_thousand_ranks_in_three_groups_and_a_long_text_are_a_short_page(pages: Page) -> None:
    others = [rank for rank in range(2048) if rank not in (5, 9, 10)]
    groups = [
        group(others, "collective", "all_reduce #7"),
        group([9, 10], "native"),
        group([5], "data", odd=True, text="x" * 60_000),
    ]
    words = show(pages, incident(evidence={"verdict": VERDICT}), dump(2048, groups))
    assert "2,045 ranks wait in all_reduce #7" in words
    assert "2,048 ranks in 3 groups" in words
    assert pages.locator(".rank-table tbody tr").count() <= 4
    assert len(words) < 4000  # the long text is there when somebody asks for it
    pages.click(".stack-group.odd [aria-expanded=false]")
    assert len(pages.inner_text(".stack-group.odd .stack-text")) == 60_000


def test_text_from_anywhere_stays_text(pages: Page) -> None:
    verdict = VERDICT | {"text": NASTY, "because": [NASTY], "blind": [NASTY], "nodes": [NASTY], "confidence": NASTY}
    named = group([5], NASTY, NASTY, nodes=[NASTY], frames=[frame(NASTY, NASTY)], odd=True)
    one = incident(
        title=NASTY, text=NASTY, evidence={"verdict": verdict}, suggestion={"text": NASTY, "checklist": [NASTY]}
    )
    assert NASTY in show(pages, one, dump(2, [named]))
    pages.click(".stack-group.odd [aria-expanded=false]")
    assert NASTY in pages.inner_text(".stack-text")
    assert pages.evaluate("window.pwned") is None
    assert pages.locator("img").count() == 0


@pytest.mark.parametrize("kind", ["hang", "process_death", "gpu_fault", "spike"])
def test_garbage_in_any_field_leaves_a_page(pages: Page, kind: str) -> None:
    """When fields hold nonsense, each region is drawn or left out, and the title is there."""
    broken = pages.evaluate(
        f"""([incident, dump, garbage]) => {{ {STAGE}
          const broken = [];
          const put = (target, name, value) => {{
            const one = structuredClone(target);
            name.reduce((at, key, index) => (index === name.length - 1 ? (at[key] = value) : at[key]), one);
            return one;
          }};
          const verdict = Object.keys(incident.evidence.verdict).map((key) => ["evidence", "verdict", key]);
          const own = ["evidence", "suggestion", "rank", "node", "onset_step", "opened", "text"].map((key) => [key]);
          const facts = ["deaths", "gpu", "gpus", "signs", "xids", "ranks", "window"].map((key) => ["evidence", key]);
          const parts = [["groups"], ["ranks"], ["collectives"], ["time"], ["groups", 0], ["ranks", "1"]];
          for (const value of garbage) {{
            for (const name of [...verdict, ...own, ...facts])
              if (!draw(put(incident, name, value), dump).includes("The job hangs")) broken.push(name);
            for (const name of parts)
              if (!draw(incident, put(dump, name, value)).includes("The job hangs")) broken.push(name);
            if (document.body.textContent.includes("can't be shown")) broken.push(value);
          }}
          return broken;
        }}""",
        [incident(kind=kind, evidence={"verdict": VERDICT}), dump(2, [group([0], "data")]), GARBAGE],
    )
    assert broken == []
    assert pages.evaluate("window.pwned") is None


def test_a_gpus_fault_says_what_was_seen_what_nvidia_asks_for_and_what_it_did_before(pages: Page) -> None:
    evidence = {
        "gpu": {"uuid": "GPU-1", "index": 2, "name": "H100", "node": "gpu-03", "bus_id": "4F:00"}, "class": "reset",
        "recovery_action": 1, "driver_asks": "reset the GPU", "nvidia_action": "RESET_GPU",
        "signs": [{"what": "xid", "xid": 95, "text": "uncontained memory error", "first": 1940.0, "count": 2}],
    }  # fmt: skip
    fault = {"run_id": "r-0", "run_name": "old", "incident_id": "i-0", "time": 100.0, "title": "row remap pending"}
    known = {"uuid": "GPU-1", "count": 3, "runs": 2, "faults": [{"incident_id": "i-1"}, fault, fault]}
    words = pages.evaluate(
        f"([incident, known]) => {{ {STAGE} const page = pageOf(incident, null); page.gpu = known;"
        "S.drawIncidentParts(page); return document.getElementById('incident-gpu').innerText; }",
        [incident(kind="gpu_fault", evidence=evidence), known],
    )
    for expected in ("GPU 2 · gpu-03 · H100", "Xid 95", "uncontained memory error", "2 faults on record"):
        assert expected in words, expected
    for expected in ("reset gpu", "reset the GPU"):
        assert expected in words, expected
    assert pages.get_attribute("#incident-gpu a", "href") == "/runs/r-0/incidents/i-0"


def test_of_a_fault_of_several_gpus_each_sign_says_whose_it_is(pages: Page) -> None:
    gpus = [{"uuid": f"GPU-{index}", "index": index, "name": "H100", "node": "gpu-03"} for index in (4, 6)]
    signs = [{"gpu": f"GPU-{index}", "what": "lost", "text": "NVML does not count it any more"} for index in (4, 6)]
    words = pages.evaluate(
        f"([incident]) => {{ {STAGE} const page = pageOf(incident, null);"
        "S.drawIncidentParts(page); return document.querySelector('#incident-gpu table').innerText; }",
        [incident(kind="gpu_fault", evidence={"gpu": gpus[0], "gpus": gpus, "signs": signs})],
    )
    assert [f"GPU {index} NVML does not count it any more" in words for index in (4, 6)] == [True, True]


def test_a_node_that_the_plan_leaves_out_is_ticked_and_used_again_once_somebody_unticks_it(pages: Page) -> None:
    before, after = pages.evaluate(
        "async () => {"
        + STAGE
        + """
          const plan = { text: "GPU 2 has to be drained.", exclude_nodes: ["n1"], suspects: [{ node: "n2" }] };
          S.api.plan = async () => plan;
          const page = { ...pageOf({ title: "t" }), checkpointList: () => [], lastStep: () => 8 };
          const dialog = new S.RestartDialog(page);
          await dialog.show();
          const said = () => [dialog.order().exclude_nodes, dialog.order().keep_nodes, dialog.sentence.textContent];
          const before = said();
          dialog.boxes[0].click();
          const after = said();
          dialog.destroy();
          return [before, after];
        }"""
    )
    assert before[:2] == [["n1"], []]
    assert after[:2] == [[], ["n1"]]
    assert "Without n1" in before[2]
    assert after[2].endswith("Against the plan this is used again: n1.")
