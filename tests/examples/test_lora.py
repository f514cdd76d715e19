"""The example of adapters: in simulation, and over sockets with Hugging Face Trainer and with Lightning."""

from pathlib import Path

import pytest

from support import examples, lora
from support.processes import START_S, Process
from support.proxy import Proxy

PROGRAMS = {
    "federated.py": ("alone.py", "simulated:app"),
    "lightning_federated.py": ("lightning_alone.py", "lightning_server:app"),
}
LINES_MORE_MAX = 15
UNIFORM_LOSS = 5.545  # log 256, of a model that knows nothing


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    return examples.copied("lora", tmp_path / "lora")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_training_has_few_lines_more_than_without_a_server(program: str) -> None:
    more = examples.lines_of_code("lora", program) - examples.lines_of_code("lora", PROGRAMS[program][0])
    assert 0 < more <= LINES_MORE_MAX
    assert f"{more} lines more ({program})" in (lora.FOLDER / "README.md").read_text()


@pytest.mark.slow
def test_a_simulation_learns(machine: Path) -> None:
    pytest.importorskip("peft", reason="peft is not installed")
    run = examples.simulated(machine, "--app", "simulated:app", "--clients", "2", "--rounds", "21", "--lr", "0.01")
    assert run["client_metrics"]["loss"]["mean"] < 0.8 * UNIFORM_LOSS


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("program", PROGRAMS)
def test_two_trainers_learn_over_sockets(program: str, machine: Path) -> None:
    pytest.importorskip("peft", reason="peft is not installed")
    pytest.importorskip("lightning" if "lightning" in program else "transformers", reason="it is not installed")
    free = ("--app", PROGRAMS[program][1], "--address", "tcp://127.0.0.1:0", "--clients", "2", "--rounds", "20")
    with Process("server", *lora.SERVER, *free, folder=machine) as server:
        with Proxy(server.fact()["address"], lambda message, up: False) as proxy:
            clients = [lora.client(machine, proxy.address, number, program) for number in range(2)]
            for client in clients:
                client.communicate(timeout=2 * START_S)
            payloads = {up: [payload for is_up, _, payload in proxy.sizes if is_up == up and payload] for up in (0, 1)}
        finished = examples.finished(server)
        assert [client.returncode for client in clients] == [0, 0] and server.end() == 0
    assert set(payloads[0]) == set(payloads[1]) == {4 * lora.PARAMETERS} and len(payloads[1]) >= 20
    assert finished["updates"]["accepted"] == 20
    assert finished["updates"]["rejected"] <= 1  # of the other client, after the end of the run
    assert finished["training_metrics"]["learning_rate"]["mean"] > 0
    assert finished["training_metrics"]["loss"]["mean"] < 0.8 * UNIFORM_LOSS
