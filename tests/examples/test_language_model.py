"""The example of a language model of Python's documentation, in simulation, over sockets, and in one place."""

import math
import runpy
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from support import examples

NAME = "language-model"
APP = ["--app", "transformer:app", "--lr", "0.003"]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return examples.copied(NAME, tmp_path_factory.mktemp("one") / NAME)


@pytest.fixture(scope="module")
def by_frequency() -> float:
    """The perplexity of a model that knows how frequent each byte is, and nothing of its context."""
    app = runpy.run_path(str(examples.EXAMPLES / NAME / "transformer.py"))["app"]
    train, test = app.data(SimpleNamespace(client_id=0, clients=1))
    counts = Counter(train.tolist())
    share = torch.tensor([(1 + counts[byte]) / (256 + len(train)) for byte in range(256)])
    return math.exp(-share.log()[test[:, 1:]].mean().item())


def test_the_code_of_the_user_is_short() -> None:
    assert examples.lines_of_code(NAME, "transformer.py") == examples.counted(NAME) <= examples.CODE_MAX


@pytest.mark.slow
def test_a_simulation_learns_about_as_well_as_one_place(machine: Path, by_frequency: float) -> None:
    run = examples.simulated(machine, *APP, "--clients", "4", "--rounds", "11", "--evaluate-every", "5")
    federated = run["client_metrics"]["perplexity"]["mean"]
    in_one_place = examples.central(machine, "perplexity", tasks=40)
    assert in_one_place < 1.1 * federated < by_frequency


@pytest.mark.slow
@pytest.mark.network
def test_machines_with_topics_of_their_own_learn_over_sockets(machine: Path, by_frequency: float) -> None:
    clients = [
        (machine, ["--app", "transformer:app", "--first", str(i), "--client.directory", f"state-{i}"]) for i in range(2)
    ]
    arguments = [*APP, "--clients", "2", "--rounds", "20", "--evaluate-every", "5"]
    run = examples.over_sockets((machine, arguments), clients)
    assert run["updates"] == {"accepted": 40, "duplicate": 0, "rejected": 0}
    assert run["client_metrics"]["perplexity"]["mean"] < by_frequency
