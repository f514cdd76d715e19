"""The guides, followed step by step: their code, and their commands on one machine."""

import re
from pathlib import Path

import pytest

from support import examples
from support.processes import Process

GUIDES = Path(__file__).parents[2] / "docs/guides"


def blocks(name: str, language: str) -> list[str]:
    text = (GUIDES / name).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def command(name: str, start: str) -> list[str]:
    """The arguments of the first command of a guide that starts with these words, after `unstale`."""
    lines = [line.partition(" #")[0].split() for block in blocks(name, "sh") for line in block.splitlines()]
    words = start.split()
    return next(line[1:] for line in lines if line[: len(words)] == words)


def with_option(arguments: list[str], **options: str) -> list[str]:
    """The arguments with other values of options."""
    given = [*arguments]
    for name, value in options.items():
        given[given.index(f"--{name}") + 1] = value
    return given


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a newcomer after step 3 of `own-model.md`."""
    make_data, app, _ = blocks("own-model.md", "python")
    (tmp_path / "make_data.py").write_text(make_data)
    (tmp_path / "my_app.py").write_text(app)
    examples.run_script(tmp_path, "make_data.py")
    return tmp_path


def test_the_simulation_of_the_guide_reaches_its_result(folder: Path) -> None:
    _, *arguments = command("own-model.md", "unstale simulate")
    run = examples.simulated(folder, *arguments)
    expected = re.search(r"clients mae ([\d.]+)", "".join(blocks("own-model.md", "text")))
    assert expected is not None
    assert run["client_metrics"]["mae"]["mean"] == pytest.approx(float(expected[1]), rel=0.2)


@pytest.mark.slow
@pytest.mark.network
def test_the_run_of_the_guide_takes_place_between_machines_with_keys(folder: Path, tmp_path: Path) -> None:
    server = tmp_path / "server"
    server.mkdir()
    (server / "my_app.py").write_text((folder / "my_app.py").read_text())
    for name in ("server", "laptop", "desk"):
        with Process(*command("own-model.md", f"unstale keys new {name}"), folder=server) as process:
            assert process.end() == 0
    _, *arguments = command("own-model.md", "unstale server")
    clients = []
    for number, name in enumerate(("laptop", "desk")):
        machine = tmp_path / name
        (machine / "data").mkdir(parents=True)
        for file in (folder / "my_app.py", server / f"keys/{name}.key_secret", folder / f"data/{number}.csv"):
            to = machine / ("data" if file.suffix == ".csv" else "") / file.name
            to.write_text(file.read_text())
            to.chmod(0o600)
        _, *own = command("own-model.md", f"unstale client --app my_app:app --first {number}")
        at = own.index("--server")
        clients.append((machine, own[:at] + own[at + 2 :]))
    short = with_option(arguments, rounds="30", address="tcp://127.0.0.1:0")
    run = examples.over_sockets((server, short), clients)
    assert run["updates"]["accepted"] == 60
    (server / "use.py").write_text(blocks("own-model.md", "python")[2] + "\nprint(trained)\n")
    examples.run_script(server, "use.py")
    with Process(*command("own-model.md", "unstale report"), folder=server) as process:
        assert process.end() == 0
    assert (server / "report.html").exists()


@pytest.mark.slow
@pytest.mark.network
def test_the_private_run_of_the_guide_takes_place(folder: Path) -> None:
    (folder / "my_data.py").write_text(blocks("private-data.md", "python")[0])
    (folder / "my_models.py").write_text("from my_app import model as mlp\n")
    clients = []
    for number, site in enumerate("ab"):
        (folder / f"data/{number}.csv").rename(folder / f"site-{site}.csv")
        _, *own = command("private-data.md", f"unstale client --first {number}")
        clients.append((folder, [*own, "--client.directory", f"state-{site}"]))
    _, *arguments = command("private-data.md", "unstale server")
    run = examples.over_sockets((folder, [*arguments, "--rounds", "21"]), clients)
    assert run["metrics"] == {}
    assert [*run["client_metrics"]] == ["mae", "loss", "r2"]
    assert run["client_metrics"]["r2"]["mean"] > 0
