"""Inversions on a Ray cluster of two machines: equal to local ones to the bit, and the effect of a lost worker."""

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from support.compensation import CLASSES, SHAPE, context, made, network, received, smooth, stale_round
from unstale.config.compensation import local_steps
from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.workers import pool
from unstale.workers.inversion_executor import connect
from unstale.workers.ray_executor import RayExecutor
from unstale_client.net.clock import now_s
from workers.conftest import remove

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'unstale[ray]'"),
]

ITERATIONS = 6
OWN = {"images_max": 4, "iterations": ITERATIONS, "iterations_min": 2, "batch_clients": 2}
DATA: Any = SimpleNamespace(input_shape=SHAPE, classes=CLASSES)
FIRST = tuple(received(client_id, staleness=3 - client_id % 2) for client_id in range(3))
SECOND = tuple(received(client_id, base_version=1, staleness=3) for client_id in range(1, 4))
"""Of the four, client 3 starts from noise and the others from their last result."""


def settings(address: str, **compensator: Any) -> Settings:
    return Settings(
        model={"name": "workers.gated_model:network"},
        training={"steps": 2},
        compensator={"name": "gradient-inversion", "settings": OWN, "ray": address, **compensator},
    )


@pytest.fixture(scope="module")
def connected(address: str) -> Iterator[RayExecutor]:
    cluster = connect(settings(address), DATA)
    yield cluster
    cluster.close()


def compensator(executor: RayExecutor | None = None, **given: Any):
    steps = local_steps(settings("auto"))
    where = replace(context(network(smooth()), steps=steps, clock=now_s), executor=executor)
    return made("gradient-inversion", where, **{**OWN, "start": "close", **given})


def outcomes(subject) -> list[Any]:
    """The compensator's results of two rounds."""
    made_of = []
    for version, updates in ((3, FIRST), (4, SECOND)):
        round_ = stale_round(*updates, version=version)
        made_of.append(subject.make(round_))
        subject.take(round_, made_of[-1])
    return made_of


def assert_same(here: Any, there: Any) -> None:
    """Equal to the bit, except the seconds."""
    if isinstance(here, torch.Tensor):
        assert torch.equal(here, there)
    elif isinstance(here, dict):
        assert here.keys() == there.keys()
        for key in here.keys() - {"spent"}:
            assert_same(here[key], there[key])
    else:
        assert here == there


def test_the_cluster_returns_the_locally_computed_result(connected):
    here, there = outcomes(compensator()), outcomes(compensator(connected))
    for one, other in zip(here, there, strict=True):
        assert len(one["estimates"]) == 3
        assert_same(one, other)
        assert one["spent"][0] == other["spent"][0]
    assert there[1]["spent"][1] > 0, "remote seconds of computation count"


def test_groups_are_computed_on_both_machines_concurrently(connected, gate):
    subject = compensator(connected, start="arrival")
    for update in FIRST:
        subject.begin(update)
    assert not subject.work(), "no work is left locally"
    assert len(gate.waiting(2)) == 2
    gate.open()
    result = subject.make(stale_round(*FIRST))
    assert_same(compensator().make(stale_round(*FIRST)), result)


def test_a_lost_worker_causes_a_retry(connected, gate):
    subject = compensator(connected, start="arrival")
    subject.begin(FIRST[0])
    subject.work()
    gate.kill()
    gate.waiting()
    gate.open()
    result = subject.make(stale_round(FIRST[0]))
    assert_same(compensator().make(stale_round(FIRST[0])), result)


def test_a_second_lost_worker_loses_the_inversion_but_not_the_round(connected, gate):
    subject = compensator(connected, start="arrival")
    subject.begin(FIRST[0])
    subject.work()
    gate.kill()
    gate.kill()
    round_ = stale_round(FIRST[0])
    outcome = subject.take(round_, subject.make(round_))
    assert [what.method for what in outcome.updates] == ["first-order"]
    assert outcome.fallbacks == {"worker-lost": 1}
    assert outcome.notes == [
        "an inversion that was computed elsewhere is lost (The worker died unexpectedly while executing this task; it "
        "was tried 2 times); such updates are compensated to first order"
    ]
    gate.open()
    assert len(outcomes(subject)[0]["estimates"]) == 3, "the next round is remote again"


def test_a_round_waits_no_longer_than_its_limit(connected, gate):
    subject = compensator(connected, seconds_per_round=0.1)
    result = subject.make(stale_round(*FIRST))
    assert (result["estimates"], result["fallbacks"]) == ({}, {"budget": 3})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"ray_gpus": 0.5},
            r"but no machine of that cluster has the resources of a task \(1 CPU and 0\.5 of a GPU\), expected at "
            r"least one; lower threads or compensator\.ray_gpus",
        ),
        (
            {"address": "127.0.0.1:1"},
            r"but nothing answers there \(.+\), expected the head of a Ray cluster; start one with `ray start --head`, "
            r"or use local",
        ),
    ],
    ids=["no GPU", "no cluster"],
)
def test_an_unsuitable_cluster_is_one_error_sentence(address, given, sentence):
    chosen = settings(**{"address": address, **given})
    with pytest.raises(UserError, match=f"^compensator.ray is {chosen.compensator.ray!r}, {sentence}$"):
        connect(chosen, DATA)


def test_a_worker_without_the_model_is_one_error_sentence(address):
    chosen = settings(address).model_copy(update={"model": Settings(model={"name": "no.such:model"}).model})
    with pytest.raises(UserError, match=r"no\.such"):
        connect(chosen, DATA)


def test_without_ray_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(pool, "find_spec", lambda name: None)
    with pytest.raises(UserError) as caught:
        connect(settings("auto"), DATA)
    assert str(caught.value) == (
        "compensator.ray is 'auto', but Ray is not installed; install it with pip install 'unstale[ray]'"
    )


def test_machines_that_leave_do_not_fail_a_round(nodes, connected, gate):  # the last: no machine is left to compute
    subject = compensator(connected, start="arrival")
    subject.begin(FIRST[0])
    subject.work()
    gate.waiting()
    remove(nodes, 2)
    result = subject.make(stale_round(FIRST[0]))
    assert (result["estimates"], result["fallbacks"]) == ({}, {"worker-lost": 1})
    result = subject.make(stale_round(FIRST[1]))
    assert (result["estimates"], result["fallbacks"]) == ({}, {"worker-lost": 1}), "the next round does not wait"
