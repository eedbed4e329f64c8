"""TensorBoard: ``SummaryWriter`` of torch and of tensorboardX, and event files written without it."""

from __future__ import annotations

import json
import os

from stabilityclient.step_names import whole
from stabilityclient.tee.library import Library
from stabilityclient.tee.recording import Recording, Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any

__all__ = ["TensorBoard"]

#: End of tags under which Megatron-LM repeats a curve over the samples in place of the steps.
_OVER_SAMPLES = " vs samples"


class TensorBoard(Library):
    """Writers of event files."""

    title = "TensorBoard"
    modules = (
        "torch.utils.tensorboard.writer",
        "tensorboardX.writer",
        "tensorboard.summary.writer.event_file_writer",
    )

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        self._streams: dict[str, Stream] = {}
        #: Values of a tag without a step.
        self._counts: dict[str, int] = {}

    def patch(self, name: str, module: ModuleType) -> None:
        if name.endswith("event_file_writer"):
            self.follow(module.EventFileWriter, "add_event", self._event)
            return
        writer = module.SummaryWriter
        self.follow(writer, "add_scalar", self._scalar)
        self.follow(writer, "add_scalars", self._scalars)
        self.follow(writer, "add_hparams", self._hparams, whole=False)
        self.follow(writer, "add_text", self._text)

    def _scalar(
        self, _: Any, writer: Any, tag: str, scalar_value: Any, global_step: Any = None, *given: Any, **named: Any
    ) -> None:
        self._row(_folder(writer), global_step, {tag: scalar_value})

    def _scalars(
        self,
        _: Any,
        writer: Any,
        main_tag: str,
        tag_scalar_dict: Mapping[str, Any],
        global_step: Any = None,
        *given: Any,
        **named: Any,
    ) -> None:
        values = {f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()}
        self._row(_folder(writer), global_step, values)

    def _hparams(self, _: Any, writer: Any, hparam_dict: Mapping[str, Any], *given: Any, **named: Any) -> None:
        self._recording.config(hparam_dict)

    def _text(
        self, _: Any, writer: Any, tag: str, text_string: Any, global_step: Any = None, *given: Any, **named: Any
    ) -> None:
        # Hugging Face's arguments and model, say. Other texts, and those of a step, are not kept.
        if global_step is None and isinstance(text_string, str) and text_string.lstrip().startswith("{"):
            try:
                found = json.loads(text_string)
            except ValueError:  # a text that begins like one
                return
            self._recording.config({tag: found})

    def _event(self, _: Any, writer: Any, event: Any, *given: Any, **named: Any) -> None:
        values = {one.tag: one.simple_value for one in event.summary.value if one.HasField("simple_value")}
        if values:
            self._row(str(writer.get_logdir()), event.step, values)

    def _row(self, folder: str, global_step: Any, values: dict[str, Any]) -> None:
        values = {tag: value for tag, value in values.items() if not tag.endswith(_OVER_SAMPLES)}
        if not values:
            return
        stream = self._streams.get(folder)
        if stream is None:
            stream = self._streams[folder] = Stream(self.title, os.path.basename(os.path.normpath(folder)))
        step = whole(global_step)
        if step is not None:
            self._recording.note_step(self.title, step)
        else:
            step = self._recording.newest
            if step < 0:
                tag = next(iter(values))
                step = self._counts.get(tag, 0)
                self._counts[tag] = step + 1
        self._recording.row(stream, step, values)


def _folder(writer: Any) -> str:
    return str(getattr(writer, "log_dir", None) or getattr(writer, "logdir", None) or "")
