"""Trackers show a run in another program, such as MLflow, and are fed from its journal (docs/trackers.md)."""

from unstale.trackers.tracker import Evaluation as Evaluation
from unstale.trackers.tracker import Finish as Finish
from unstale.trackers.tracker import Round as Round
from unstale.trackers.tracker import TrackedRun as TrackedRun
from unstale.trackers.tracker import Tracker as Tracker
