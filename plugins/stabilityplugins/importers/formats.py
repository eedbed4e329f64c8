"""The bundled formats: one line each, in the order in which they are looked for; and those of other plug-ins.

A folder often holds the same run in several forms; of these only the first is taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from stabilitybackend.base.registering import check_class
from stabilitybackend.plugins import Plugins, refusals
from stabilityplugins.importers.aim_repo import AimImporter
from stabilityplugins.importers.base import Importer
from stabilityplugins.importers.csv_files import CsvImporter
from stabilityplugins.importers.json_list import JsonListImporter
from stabilityplugins.importers.jsonl import JsonlImporter
from stabilityplugins.importers.mlflow_store import MlflowImporter
from stabilityplugins.importers.parquet import ParquetImporter
from stabilityplugins.importers.tensorboard import TensorBoardImporter
from stabilityplugins.importers.text_logs import TextLogImporter
from stabilityplugins.importers.trainer_state import TrainerStateImporter
from stabilityplugins.importers.wandb_files import WandbImporter

__all__ = ["FORMATS", "formats_of", "known"]

FORMATS: tuple[Importer, ...] = (
    TensorBoardImporter(),
    WandbImporter(),
    MlflowImporter(),
    AimImporter(),
    ParquetImporter(),
    JsonListImporter(),  # before the importers of other objects
    TrainerStateImporter(),
    JsonlImporter(),
    CsvImporter(),
    TextLogImporter(),
)


def formats_of(plugins: Plugins) -> tuple[Importer, ...]:
    """Return the formats of other plug-ins, then the bundled ones: the first that takes a file reads it.

    Raises:
        SettingsError: one is no importer, lacks a required attribute, or its name has the wrong form or is taken.
    """
    added: dict[str, Importer] = {}
    for importer in plugins.of("importers"):
        rows = "read" if getattr(importer, "batches", None) is Importer.batches else "batches"
        with refusals(importer):
            taken = {*added, *(each.name for each in FORMATS), "spool"}
            check_class(importer, Importer, ("name", "label", "known", "takes", rows), taken)
        added[importer.name] = importer()
    return (*added.values(), *FORMATS)


def known(formats: Sequence[Importer]) -> str:
    """Return the supported formats, for messages."""
    named = ", ".join(importer.known for importer in formats)
    return f"a spool folder (run.json and sources/), {named}, and our own exports"
