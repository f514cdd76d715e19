"""Processes that use one GPU together: their number, and the memory of each."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import stand_in
from unstale_papers import gpu, worker
from unstale_papers.jobs import Place, jobs
from unstale_papers.runners import MEASUREMENTS
from unstale_papers.scale import Scale

GIB = 2**30


@pytest.mark.parametrize(
    ("gpu_gib", "cores", "expected"), [(139, 16, 4), (79, 16, 4), (79, 2, 2), (24, 16, 3), (6, 16, 1)]
)
def test_processes_are_limited_by_memory_cores_and_four(gpu_gib: int, cores: int, expected: int) -> None:
    assert gpu.processes(gpu_gib * GIB, cores) == expected


def test_processes_share_nine_tenths_of_the_memory_equally() -> None:
    assert gpu.share(1) == 1.0
    assert gpu.share(3) == pytest.approx(0.3)


@pytest.mark.parametrize(("share", "expected"), [(0.225, [("cuda:1", 0.225)]), (1.0, [])])
def test_a_worker_limits_its_memory_to_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, expected: list[Any]
) -> None:
    limits: list[tuple[str, float]] = []
    monkeypatch.setitem(MEASUREMENTS, stand_in.NAME, stand_in.MODULE)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    monkeypatch.setattr("unstale.device_memory.limit_memory", lambda device, share: limits.append((str(device), share)))
    preset = stand_in.preset(tmp_path)
    (job,) = jobs(preset, preset.cells[:1], seeds=[0], scale=Scale(), place=Place(cache="/data", device="cuda:1"))
    reply = worker.answer({**json.loads(json.dumps(job.order)), "gpu_share": share}, lambda _: None)
    assert reply["machine"].endswith(", a GPU")
    assert limits == expected
