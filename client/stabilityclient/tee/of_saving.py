"""Checkpoints that the script saves: only those from which it can be resumed, under the path of the resume.

One counts where model and optimizer lie in one file, or in two of one folder, saved at one step; and the folders and
files of Hugging Face's Trainer, Accelerate and Lightning once they are complete. Weights alone are none.
"""

from __future__ import annotations

import os

from stabilityclient.step_names import whole
from stabilityclient.tee.library import Library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any

    from stabilityclient.tee.recording import Recording

__all__ = ["Saving"]

#: Keys of the step in saved objects.
_STEPS = ("global_step", "iter_num", "iteration", "iter", "step", "num_steps", "completed_steps")
#: A temporary name: the file is moved once it is complete, to an unknown target.
_PASSING = ("tmp", "temp", "part")
#: Values of a dict that are looked at to see whether they are weights.
_LOOKED_AT = 8


class Saving(Library):
    """``torch.save``, and saves of frameworks."""

    title = "what saves checkpoints"
    modules = (
        "torch.serialization",
        "transformers.trainer_callback",
        "transformers.modeling_utils",
        "accelerate.accelerator",
        "lightning.fabric.plugins.io.torch_io",
        "lightning_fabric.plugins.io.torch_io",
    )

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: A Trainer saves by itself: files in its folders are its own.
        self._trainer = False
        #: Folder -> the step at which parts were saved there, the parts, and the names of their files.
        self._parts: dict[str, tuple[int, set[str], set[str]]] = {}

    def patch(self, name: str, module: ModuleType) -> None:
        if name == "torch.serialization":
            self.follow(module, "save", self._saved)
        elif name.endswith("trainer_callback"):
            self.follow(module.CallbackHandler, "on_train_begin", self._trainer_begins, whole=False)
            self.follow(module.CallbackHandler, "on_save", self._trainer_saved, whole=False)
        elif name.endswith("modeling_utils"):
            self.follow(module.PreTrainedModel, "save_pretrained", self._pretrained)
        elif name.endswith("accelerator"):
            self.follow(module.Accelerator, "save_state", self._state_saved)
        else:
            self.follow(module.TorchCheckpointIO, "save_checkpoint", self._lightning_saved, whole=False)

    # --- scripts -------------------------------------------------------------------------------------------------

    def _saved(self, _: Any, obj: Any, f: Any, *given: Any, **named: Any) -> None:
        if self._trainer or not isinstance(f, str | os.PathLike):
            return
        path = os.path.abspath(os.fspath(f))
        if _passing(path):
            return
        found = _parts_of(obj)
        if not found:
            return
        given_step = next((step for key in _STEPS if (step := whole(_get(obj, key))) is not None), None)
        step = self._step(given_step)
        if found == {"model", "optimizer"}:
            if step is not None:
                self._recording.run.checkpoint(step, path)
        else:
            self._part(os.path.dirname(path), os.path.basename(path), found, step)

    def _pretrained(
        self, _: Any, model: Any, save_directory: Any, is_main_process: bool = True, *given: Any, **named: Any
    ) -> None:
        if not self._trainer and is_main_process and not _passing(path := os.path.abspath(os.fspath(save_directory))):
            self._part(path, "model", {"model"}, self._step(None))

    def _part(self, folder: str, name: str, parts: set[str], step: int | None) -> None:
        """A part of a checkpoint was saved; both parts of one step, in a folder that holds no other, are one."""
        if step is None:
            return
        at, known, names = self._parts.pop(folder, (step, set(), set()))
        numbered = any(map(str.isdigit, os.path.basename(folder)))
        if at != step:
            # The next one in the same folder: the old file is overwritten, or lies next to it under another name.
            known, names = set(), set() if numbered or name in names else names | {"another step"}
        known, names = known | parts, names | {name}
        self._parts[folder] = (step, known, names)
        plain = not any(map(str.isdigit, name)) and "another step" not in names
        if known == {"model", "optimizer"} and (numbered or plain):
            self._recording.run.checkpoint(step, folder)

    def _step(self, given: int | None) -> int | None:
        """Return the step that a checkpoint is of: never an earlier one than it may hold; None where that is unsure."""
        logged, stride = self._recording.run.logged_step, self._recording.stride
        if given is None:
            return logged if stride == 1 and logged >= 0 else None
        if logged < 0 or logged - 1 <= given <= logged + max(stride, 1):
            return max(given, logged)
        return None

    # --- frameworks ----------------------------------------------------------------------------------------------

    def _trainer_begins(self, *given: Any, **named: Any) -> None:
        self._trainer = True

    def _trainer_saved(self, _: Any, handler: Any, args: Any, state: Any, *given: Any, **named: Any) -> None:
        folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        whole_one = state.is_world_process_zero and not getattr(args, "save_only_model", False)
        if whole_one and os.path.isfile(os.path.join(folder, "trainer_state.json")):
            self._recording.run.checkpoint(state.global_step, folder)

    def _state_saved(self, folder: Any, accelerator: Any, *given: Any, **named: Any) -> None:
        step = self._step(None)
        if accelerator.is_main_process and step is not None and isinstance(folder, str | os.PathLike):
            self._recording.run.checkpoint(step, folder)

    def _lightning_saved(self, _: Any, io: Any, checkpoint: Any, path: Any, *given: Any, **named: Any) -> None:
        step = whole(_get(checkpoint, "global_step"))
        if step is not None and _get(checkpoint, "optimizer_states"):
            self._recording.run.checkpoint(step, path)


def _passing(path: str) -> bool:
    """Return whether a file or its folder is written under a name that it does not keep."""
    words = path.lower().replace("\\", "/").split("/")[-2:]
    return any(word.startswith((".", *_PASSING)) or word.endswith(_PASSING) for word in words)


def _parts_of(obj: Any) -> set[str]:
    """Return the parts of a saved object: ``model``, ``optimizer``, both or neither."""
    if _is_optimizer(obj):
        return {"optimizer"}
    if _is_weights(obj):
        return {"model"}
    found: set[str] = set()
    for value in obj.values() if isinstance(obj, dict) else ():
        each = value if isinstance(value, list | tuple) else (value,)
        if any(map(_is_optimizer, each[:_LOOKED_AT])):
            found.add("optimizer")
        elif any(map(_is_weights, each[:_LOOKED_AT])):
            found.add("model")
    return found


def _is_optimizer(value: Any) -> bool:
    return isinstance(value, dict) and "param_groups" in value and "state" in value


def _is_weights(value: Any) -> bool:
    if hasattr(value, "state_dict") and hasattr(value, "parameters"):
        return True
    if not isinstance(value, dict) or not value:
        return False
    first = [one for one, _ in zip(value.values(), range(_LOOKED_AT), strict=False)]
    return all(hasattr(one, "shape") and hasattr(one, "dtype") for one in first)


def _get(obj: Mapping[str, Any], key: str) -> Any:
    return obj.get(key) if isinstance(obj, dict) else None
