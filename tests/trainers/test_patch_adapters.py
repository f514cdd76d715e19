"""Adapters of PEFT: only their bytes travel, and a run whose client process is killed counts nothing twice."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import START_S, Process
from support.running import until

pytest.importorskip("peft", reason="peft is not installed")

pytestmark = [pytest.mark.network, pytest.mark.filterwarnings("default")]
EXAMPLE = Path(__file__).parents[2] / "examples/lora"
