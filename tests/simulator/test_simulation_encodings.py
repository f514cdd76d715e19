"""Encodings in virtual time: clients train from decoded models, networks carry encoded bytes.

tests/backbone/test_twin.py tests that sockets give the same model. Source: PROTOCOL.md 9.1.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from support.virtual import always, one_number, update_of
from unstale.config import Settings
from unstale.metrics.progress import Outcome
from unstale.settings.learning import TriggerSettings
from unstale.simulator.assemble import simulation
from unstale.training.local import LocalUpdate
from unstale_proto.messages import EncodingPlan

BFLOAT16 = EncodingPlan(updates="bfloat16", models="bfloat16")
ASYNC = TriggerSettings(name="async")


def settings_of(**encoding: Any) -> dict[str, Any]:
    return {
        "clients": 4,
        "rounds": 12,
        "evaluate_every": 12,
        "device": "cpu",
        "model": {"name": "logreg"},
        "trigger": {"name": "k-async", "k": 2},
        "simulation": {"backend": "loop"},
        "encoding": encoding,
    }


def outcome_of(**settings: Any) -> Outcome:
    return simulation(Settings(**settings), on_progress=lambda _: None).run()


def test_clients_train_from_the_decoded_model_and_the_server_keeps_its_own() -> None:
    # Each update is 1 / 3, decoded as the bfloat16 0.333984375; the rate is 1, so version v is -v times that.
    # Clients receive it rounded to bfloat16, and report that base.
    seen: list[float] = []

    def train(client_id: int, number: int, base_d: torch.Tensor, rate: float) -> LocalUpdate:
        seen.append(float(base_d[0]))
        return update_of(1 / 3)

    run = one_number(train, always(1.0), clients=1, rounds=5, trigger=ASYNC, encoding=BFLOAT16)
    run.run()
    came_out = 0.333984375
    versions = torch.tensor([-came_out * version for version in range(5)])
    assert seen == versions.bfloat16().float().tolist()
    assert seen[3] != versions[3].item()
    assert float(run._learner.model_d[0]) == -came_out * 5


def scenario(folder: Path, *toxics: str) -> dict[str, Any]:
    """A scenario with these toxics for every client."""
    file = folder / "scenario.yaml"
    file.write_text("groups:\n  - name: everyone\n    toxics:\n" + "".join(f"      - {one}\n" for one in toxics))
    return {"scenario": {"name": str(file)}}


def test_error_feedback_works_over_a_faulty_network() -> None:
    # Updates are lost, sent again, and duplicated: the omitted part of each is fed back once.
    settings = settings_of(updates="top-k", fraction=0.05)
    lossy = outcome_of(**settings, scenario={"name": "flaky"})
    assert lossy.updates["accepted"] >= 24
    assert lossy.model_digest == outcome_of(**settings, scenario={"name": "flaky"}).model_digest


@pytest.mark.parametrize("encoding", [{"updates": "int8", "models": "int8"}, {"updates": "top-k"}], ids=str)
def test_damaged_payloads_do_not_stop_a_run(encoding: dict[str, Any], tmp_path: Path) -> None:
    damaged = scenario(tmp_path, "{type: corrupt, toxicity: 0.3, where: payload, bits: 64}")
    outcome = outcome_of(**settings_of(**encoding), **damaged)
    assert outcome.versions == 12
    assert outcome.updates["rejected"] > 0


def test_processes_give_the_same_bits() -> None:
    settings = settings_of(updates="top-k", models="int8")
    in_processes = {**settings, "simulation": {"backend": "processes", "processes": 2}}
    assert outcome_of(**in_processes).model_digest == outcome_of(**settings).model_digest


def test_a_network_carries_the_encoded_bytes(tmp_path: Path) -> None:
    # At 1,000 bytes per second a model and an update of 2,600 bytes take longer than ones of 664 and 56.
    slow = scenario(
        tmp_path,
        "{type: bandwidth, direction: down, bytes_per_s: 1000}",
        "{type: bandwidth, direction: up, bytes_per_s: 1000}",
    )
    plain = outcome_of(**settings_of(), **slow)
    small = outcome_of(**settings_of(updates="top-k", models="int8"), **slow)
    assert small.seconds < plain.seconds / 2
