"""The dashboards, in display order."""

from monitoring.dashboards.aggregation import AGGREGATION
from monitoring.dashboards.dashboard import Dashboard
from monitoring.dashboards.injector import INJECTOR
from monitoring.dashboards.overview import OVERVIEW
from monitoring.dashboards.resources import RESOURCES
from monitoring.dashboards.staleness import STALENESS
from monitoring.dashboards.wire import WIRE

DASHBOARDS: tuple[Dashboard, ...] = (OVERVIEW, STALENESS, AGGREGATION, WIRE, INJECTOR, RESOURCES)

__all__ = ["DASHBOARDS", "Dashboard"]
