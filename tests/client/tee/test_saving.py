"""A checkpoint is told where the script can be resumed from it, at the step that it holds; all else is not."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import stabilityclient
from stabilityclient.tee.of_saving import Saving
from stabilityclient.tee.recording import Recording, Stream
from support.agent.spooled import stored
from support.installed import needs

pytestmark = needs("torch", "the scripts of this test save with torch")

Start = Callable[..., stabilityclient.Run]

#: What a script does -> the checkpoints that are told: step and path.
SAVED = {
    "nanoGPT's file": (
        "train(0, 250, 500)\nsave({'model': weights, 'optimizer': moments, 'iter_num': 500}, 'out/ckpt.pt')",
        [(500, "out/ckpt.pt")],
    ),
    "a file without a step, each step logged": (
        "train(0, 1, 2)\nsave({'m': weights, 'o': moments}, 'out/last.pt')",
        [(2, "out/last.pt")],
    ),
    "a file without a step, some steps logged: of which step is it?": (
        "train(0, 10, 20)\nsave({'m': weights, 'o': moments}, 'out/last.pt')",
        [],
    ),
    "a step that is another count": (
        "train(0, 10, 20)\nsave({'m': weights, 'o': moments, 'step': 3}, 'out/last.pt')",
        [],
    ),
    "a step between two rows": (
        "train(0, 10, 20)\nsave({'m': weights, 'o': moments, 'step': 25}, 'out/last.pt')",
        [(25, "out/last.pt")],
    ),
    "weights alone": ("train(0, 1)\nsave(weights, 'out/model.pt')\nsave({'model': weights}, 'out/m.pt')", []),
    "no state at all": ("train(0, 1)\nsave([1, 2], 'out/list.pt')\nsave({'a': 1}, 'out/dict.pt')", []),
    "a buffer": ("train(0, 1)\ntorch.save({'m': weights, 'o': moments}, io.BytesIO())", []),
    "a file that is moved later": ("train(0, 1)\nsave({'m': weights, 'o': moments}, 'out/last.pt.tmp')", []),
    "both parts in a folder of the step": (
        "for n in range(1, 3):\n train(n)\n"
        " save(weights, f'out/step-{n}/model.pt')\n save(moments, f'out/step-{n}/optimizer.pt')",
        [(2, "out/step-2")],
    ),
    "both parts written over in one folder": (
        "train(1, 2)\nfor n in range(3, 5):\n train(n)\n save(weights, 'out/model.pt')\n save(moments, 'out/optim.pt')",
        [(3, "out"), (4, "out")],
    ),
    "parts of several steps in one folder": (
        "train(1, 2)\nfor n in range(3, 5):\n train(n)\n"
        " save(weights, f'out/model-{n}.pt')\n save(moments, f'out/optim-{n}.pt')",
        [],
    ),
    "parts of two steps": ("train(1, 2)\nsave(weights, 'out/model.pt')\ntrain(3)\nsave(moments, 'out/optim.pt')", []),
}  # fmt: skip


@pytest.mark.parametrize(("code", "told"), SAVED.values(), ids=list(SAVED))
def test_only_what_a_script_can_be_resumed_from_is_a_checkpoint(
    start: Start, tmp_path: Path, code: str, told: list[tuple[int, str]]
) -> None:
    import torch

    run = start()
    recording = Recording(run, print)
    library = SimpleNamespace(save=torch.save)
    Saving(recording).patch("torch.serialization", library)  # type: ignore[arg-type]
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    stream = Stream("W&B", "a")

    def train(*steps: int) -> None:
        for step in steps:
            recording.row(stream, step, {"loss": 1.0})

    def save(what: Any, path: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        library.save(what, tmp_path / path)

    names = {"weights": model.state_dict(), "moments": optimizer.state_dict(), "train": train, "save": save}
    exec(code, names | {"io": io, "torch": library})

    events = stored(run.folder).events("checkpoint")
    assert [(one.step, str(Path(one.data["path"]).relative_to(tmp_path))) for one in events] == told
