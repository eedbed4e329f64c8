"""The libraries that the tee listens to: one line each."""

from __future__ import annotations

from stabilityclient.tee.library import Library
from stabilityclient.tee.of_mlflow import Mlflow
from stabilityclient.tee.of_saving import Saving
from stabilityclient.tee.of_tensorboard import TensorBoard
from stabilityclient.tee.of_trackio import Trackio
from stabilityclient.tee.of_wandb import Wandb

__all__ = ["LIBRARIES"]

LIBRARIES: tuple[type[Library], ...] = (Wandb, TensorBoard, Mlflow, Trackio, Saving)
