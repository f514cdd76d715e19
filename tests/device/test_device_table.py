"""Each part computes on the simulated device as on the CPU, and waits for it as often as docs/device.md says."""

from collections.abc import Iterator
from inspect import signature

import pytest
import torch
from torch import Tensor

from device import table
from device.counts import Counts, Step, on_cpu, on_device, on_gpu, surplus
from device.parts import PARTS, STAGES
from unstale.policies.stages import wrapped

ALLOWED = table.read()
ANEW = f"write the table anew by `{table.COMMAND}`"


@pytest.mark.parametrize("name", PARTS)
def test_a_part_computes_as_on_the_cpu_and_waits_as_often_as_the_table_says(name: str) -> None:
    measured = on_device(PARTS[name])
    torch.testing.assert_close(measured.results, on_cpu(PARTS[name]), rtol=1e-5, atol=1e-6, equal_nan=True)
    assert name in ALLOWED, f"{name!r} is not in docs/device.md; {ANEW}"
    problems = surplus(name, measured, ALLOWED[name])
    assert not problems, "\n".join(problems)
    assert measured.counts == ALLOWED[name], f"{name} waits less than docs/device.md says; {ANEW}"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "name", [name for name in PARTS if name.startswith(("policy ", "clipping", "step of", "server optimiser "))]
)
def test_a_gpu_waits_no_more_often_than_the_table_says(name: str) -> None:
    assert on_gpu(PARTS[name]) <= ALLOWED[name].waits + ALLOWED[name].uploads


def test_the_table_has_the_parts_in_their_order() -> None:
    assert list(ALLOWED) == list(PARTS), ANEW


def test_every_stage_around_a_policy_is_a_part() -> None:
    parameters = signature(wrapped).parameters.values()
    assert {one.name for one in parameters if one.kind is one.KEYWORD_ONLY} == set(STAGES)


def test_a_new_wait_is_reported_with_the_part_the_operation_and_the_line() -> None:
    def part(where: torch.device, step: Step) -> Iterator[Tensor]:
        values = torch.ones(3, device=where)
        with step():
            float(values.sum())
            values.tolist()
        yield values

    waits, copies = surplus("policy new", on_device(part), Counts(waits=1, to_host=0, uploads=0))
    assert waits.startswith(
        "policy new: 2 synchronisations in a step, expected 1; the first one too many is aten._to_copy.default at "
        "tests/device/test_device_table.py:"
    )
    assert "values.tolist(); all of the step: aten._local_scalar_dense.default at " in waits
    assert copies.startswith("policy new: 1 copies to the host in a step, expected 0; the first one too many is ")


def test_only_the_steps_of_a_part_are_counted() -> None:
    def part(where: torch.device, step: Step) -> Iterator[Tensor]:
        values = torch.tensor([1.0, 2.0], device=where)
        for times in range(3):
            with step():
                for _ in range(times % 2):
                    values.tolist()
            values.tolist()
            yield values

    assert on_device(part).counts == Counts(waits=1, to_host=1, uploads=0)
