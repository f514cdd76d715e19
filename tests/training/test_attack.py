"""Attacks by Byzantine clients: who attacks, and how an attacker's labels and updates differ from honest ones."""

from collections.abc import Collection
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.running import small
from support.virtual import computed
from unstale.config import build
from unstale.config.workspace import training_context
from unstale.errors import UserError
from unstale.learner.versions import Version
from unstale.settings.learning import AttackSettings
from unstale.settings.part import value_of
from unstale.simulator.assemble import simulation
from unstale.simulator.backends.backend import Backend, Job, Loop
from unstale.simulator.backends.vmap import Vmap
from unstale.training.attack import LISTED_MAX, Attack, attackers
from unstale.training.local import LocalUpdate

NAMES = ("sign-flip", "scale", "noise", "label-flip")


def attack_of(name: str, clients: Collection[int], *, seed: int, factor: float | None = None) -> Attack:
    settings = AttackSettings(name=name, factor=factor)
    return Attack(name, frozenset(clients), seed=seed, factor=value_of(settings, "factor"))


def made(vector: list[float], extra: list[float] | None = None) -> LocalUpdate:
    return LocalUpdate(
        vector_d=torch.tensor(vector),
        kind="delta",
        num_examples=7,
        batch_examples=7,
        steps=3,
        loss=0.5,
        learning_rate=0.1,
        buffers_b=torch.tensor([4.0]),
        extra_d=None if extra is None else torch.tensor(extra),
    )


@pytest.mark.parametrize(
    ("name", "factor", "vector", "extra"),
    [
        ("sign-flip", None, [-1.0, 2.0], [-0.5, 0.0]),
        ("sign-flip", 3.0, [-3.0, 6.0], [-1.5, 0.0]),
        ("scale", None, [1000.0, -2000.0], [500.0, 0.0]),
        ("scale", 1e16, [1e16, -2e16], [5e15, 0.0]),
        ("label-flip", None, [1.0, -2.0], [0.5, 0.0]),
    ],
)
def test_every_vector_of_an_attackers_update_is_changed_and_nothing_else(
    name: str, factor: float | None, vector: list[float], extra: list[float]
) -> None:
    attack = attack_of(name, [3], seed=0, factor=factor)
    honest = made([1.0, -2.0], [0.5, 0.0])
    sent = attack.update(3, 0, honest)
    assert torch.equal(sent.vector_d, torch.tensor(vector))
    assert sent.extra_d is not None
    assert torch.equal(sent.extra_d, torch.tensor(extra))
    assert sent.buffers_b is honest.buffers_b
    assert (sent.num_examples, sent.steps, sent.loss, sent.learning_rate) == (7, 3, 0.5, 0.1)
    assert honest.vector_d.tolist() == [1.0, -2.0]


@pytest.mark.parametrize("name", NAMES)
def test_an_honest_client_sends_the_update_that_it_made(name: str) -> None:
    honest, labels_n = made([1.0, -2.0]), torch.tensor([0, 3])
    attack = attack_of(name, [3], seed=0)
    assert attack.update(2, 0, honest) is honest
    assert attack.labels(2, labels_n, 4) is labels_n


def test_noise_has_the_stated_ratio_to_the_update() -> None:
    honest = made([0.5] * 100_000)
    noise_d = attack_of("noise", [0], seed=0).update(0, 0, honest).vector_d - honest.vector_d
    assert noise_d.std().item() == pytest.approx(10 * 0.5, rel=0.02)
    assert abs(noise_d.mean().item()) < 0.1


def test_noise_is_another_for_each_client_and_task_and_the_same_again() -> None:
    def sent(client_id: int, number: int, seed: int = 0) -> list[float]:
        return attack_of("noise", [0, 1], seed=seed).update(client_id, number, made([1.0, 2.0])).vector_d.tolist()

    assert sent(0, 0) == sent(0, 0)
    assert len({tuple(sent(*key)) for key in [(0, 0), (0, 1), (1, 0), (0, 0, 1)]}) == 4


def test_labels_are_mirrored_by_the_attacker_of_label_flip_alone() -> None:
    labels_n = torch.tensor([0, 1, 9, 4])
    assert attack_of("label-flip", [1], seed=0).labels(1, labels_n, 10).tolist() == [9, 8, 0, 5]
    assert attack_of("scale", [1], seed=0).labels(1, labels_n, 10) is labels_n


@given(st.integers(0, 2**63 - 1), st.integers(1, 50), st.data())
def test_more_attackers_include_those_of_fewer(seed: int, clients: int, data: st.DataObject) -> None:
    more = data.draw(st.integers(0, clients))
    fewer = data.draw(st.integers(0, more))
    assert attackers(seed, clients, fewer) <= attackers(seed, clients, more) <= frozenset(range(clients))
    assert len(attackers(seed, clients, more)) == more


def test_the_description_names_a_few_attackers() -> None:
    assert attack_of("scale", [7], seed=0).description == "scale by 1000 (client 7)"
    assert attack_of("label-flip", [9, 3], seed=0).description == "label-flip (clients 3, 9)"
    many = attack_of("sign-flip", range(LISTED_MAX + 5), seed=0, factor=2.5).description
    assert many == "sign-flip by 2.5 (clients 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 5 more)"


# ------------------------------------------------------------------------------------------------------- in a whole run


def of_everybody(backend: Backend, base_d: torch.Tensor, clients: int) -> list[LocalUpdate]:
    base = Version(model_d=base_d, buffers_b=torch.zeros(0))
    jobs = [
        Job(client_id=client_id, number=0, base=base, learning_rate=0.1, evaluate=False) for client_id in range(clients)
    ]
    return [one.local for one in computed(backend.compute(jobs))]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batched", [False, True])
def test_of_all_clients_the_chosen_ones_alone_send_other_updates(name: str, batched: bool) -> None:
    def updates(**attack: Any) -> list[LocalUpdate]:
        settings = small(clients=5, training={"name": "sgd", "steps": 2}, **attack)
        context = training_context(settings)
        base_d = context.model.parameters_d.clone()
        backend = Vmap(context.workload) if batched else Loop(context.workload)
        return of_everybody(backend, base_d, 5)

    honest, attacked = updates(), updates(attack={"name": name, "clients": 2})
    changed = {
        client_id
        for client_id, (one, other) in enumerate(zip(honest, attacked, strict=True))
        if not torch.equal(one.vector_d, other.vector_d)
    }
    assert changed == attackers(small().seed, 5, 2)


def test_clients_hold_the_same_examples_with_an_attack_and_without() -> None:
    honest, attacked = (
        training_context(small(clients=3, attack={"name": name, "clients": 3})).trainer for name in (None, "label-flip")
    )
    for client_id in range(3):
        assert torch.equal(honest.tensors(client_id)[0], attacked.tensors(client_id)[0])


def test_an_attack_changes_the_model_of_a_run() -> None:
    def digest(**attack: Any) -> str:
        return simulation(small(rounds=3, **attack), on_progress=lambda _: None).run().model_digest

    assert digest() == digest(attack={"factor": 3.0, "clients": 2})
    assert len({digest(), *(digest(attack={"name": name}) for name in NAMES)}) == 1 + len(NAMES)


def test_more_attackers_than_clients_are_refused() -> None:
    settings = small(clients=3, attack={"name": "noise", "clients": 4})
    with pytest.raises(UserError, match=r"attack\.clients is 4, but the run has 3 clients; let fewer attack"):
        build.check(settings)
