"""Takes a stored message into a run's state, whatever is in it: one bad message must not end its run."""

from __future__ import annotations

from stabilitybackend.runs.changes import Changes
from stabilitybackend.runs.detector_settings import DetectorSettings
from stabilitybackend.runs.rows.usual_rows import fold_message
from stabilitybackend.runs.state import RunState
from stabilityclient.node_frames import in_stream
from stabilityclient.wire import BadMessage, Frame, NodeFrame

__all__ = ["apply_frame", "apply_read"]


def apply_frame(
    state: RunState, frame_id: str, raw: bytes | Frame | NodeFrame, settings: DetectorSettings, *, replayed: bool
) -> Changes:
    """Fold one message of the run's stream; return what it changed, nothing where it can't be read or folded.

    The gateway checks what it stores, so that such a message comes from a foreign client, a flipped bit or a mistake of
    ours. It stays stored; ``RunState.unreadable`` names it. Folding it again gives the same.

    Args:
        raw: as the stream holds it, or read already by whoever stored it.
        settings: the run's; the detectors get those that held when the frame came.
        replayed: as for ``RunState.apply``.
    """
    changes = Changes()
    try:
        settings.apply(state.judge, frame_id)
        message = raw if isinstance(raw, Frame | NodeFrame) else in_stream(raw)
    except BadMessage as error:
        state.unreadable.whole("message", str(error), frame_id)
    except Exception as error:
        state.unreadable.whole("message", f"{type(error).__name__}: {error}", frame_id, error)
    else:
        apply_read(state, frame_id, message, changes, replayed=replayed)
    return changes


def apply_read(state: RunState, frame_id: str, message: Frame | NodeFrame, changes: Changes, *, replayed: bool) -> None:
    """Fold a message that was read; ``changes`` get what it changed."""

    def fold(frame: Frame) -> None:
        try:
            changes.add(state.apply(frame, replayed=replayed))
        except Exception as error:
            state.unreadable.whole("message", f"{type(error).__name__}: {error}", frame_id, error)

    fold_message(state, message, changes, fold, replayed=replayed)
