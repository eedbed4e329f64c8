"""The formats that can be imported: one line each, in the order in which they are looked for.

A folder often holds the same run in several forms; of these only the first is taken.
"""

from __future__ import annotations

from stabilitybackend.base.registering import check_class
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

__all__ = ["IMPORTERS", "known", "register"]

IMPORTERS: dict[str, Importer] = {
    importer.name: importer
    for importer in (
        TensorBoardImporter(),
        WandbImporter(),
        MlflowImporter(),
        AimImporter(),
        ParquetImporter(),
        JsonListImporter(),  # before what takes other objects
        TrainerStateImporter(),
        JsonlImporter(),
        CsvImporter(),
        TextLogImporter(),
    )
}


def register(importer: type[Importer]) -> type[Importer]:
    """Add a format, before all others: it may be a special case of one. A plug-in has it above its class.

    Raises:
        TypeError: it is no importer, or lacks something that every importer has.
        ValueError: its name has the wrong form, or there is one of its name.
    """
    rows = "read" if getattr(importer, "batches", None) is Importer.batches else "batches"
    check_class(importer, Importer, ("name", "label", "known", "takes", rows), {*IMPORTERS, "spool"})
    others = dict(IMPORTERS)
    IMPORTERS.clear()
    IMPORTERS.update({importer.name: importer(), **others})
    return importer


def known() -> str:
    """Return what can be imported, for messages."""
    formats = ", ".join(importer.known for importer in IMPORTERS.values())
    return f"a spool folder (run.json and sources/), {formats}, and our own exports"
