"""The consumers of a run: another one is a file with its class and a line here, their order follows from ``reads``."""

from __future__ import annotations

from stabilitybackend.fleet.training_intervals import TrainingIntervals
from stabilitybackend.judging.batches.fold import BatchFold
from stabilitybackend.judging.batches.kept import KeptBatches
from stabilitybackend.judging.detection.run_detection import Judge
from stabilitybackend.judging.gpus.readings import GpuReadings
from stabilitybackend.judging.liveness.world_size import LaunchSizes
from stabilitybackend.judging.resumes.book import ResumeBook
from stabilitybackend.lineage.consumer import Consumer
from stabilitybackend.lineage.lineage import Given, Lineage
from stabilitybackend.runs.consumers.agents import Agents
from stabilitybackend.runs.consumers.commands import Commands
from stabilitybackend.runs.consumers.deadlines import Deadlines
from stabilitybackend.runs.consumers.findings import Findings
from stabilitybackend.runs.consumers.gpus import Gpus
from stabilitybackend.runs.consumers.incidents import Incidents
from stabilitybackend.runs.consumers.job import Job
from stabilitybackend.runs.consumers.liveness import Liveness
from stabilitybackend.runs.gpu_notes import GpuNotes
from stabilitybackend.runs.launch_facts import LaunchFacts
from stabilitybackend.runs.step_clock import StepClock
from stabilitybackend.runs.unreadable import Unreadable
from stabilitybackend.runs.unrecorded import UnrecordedRows
from stabilitybackend.storage.points.metric_names import MetricNames
from stabilitybackend.storage.points.points import Points
from stabilitybackend.storage.points.summary import RunSummary

__all__ = ["CONSUMERS"]

#: Findings are taken when all others were handed an item: that one stays the last.
CONSUMERS: list[type[Consumer]] = [
    Given,
    Lineage,
    Points,
    RunSummary,
    LaunchSizes,
    TrainingIntervals,
    KeptBatches,
    Commands,
    Judge,
    StepClock,
    BatchFold,
    ResumeBook,
    Gpus,
    GpuNotes,
    GpuReadings,
    Liveness,
    Incidents,
    MetricNames,
    Unreadable,
    UnrecordedRows,
    LaunchFacts,
    Agents,
    Job,
    Deadlines,
    Findings,
]
