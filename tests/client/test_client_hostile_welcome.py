"""A server makes no client run code, open a file, or read data that the client's own user did not name."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support import apps
from unstale.client.workspace import training_context_of
from unstale.config import Settings
from unstale.config.workspace import make_workspace
from unstale.errors import UserError
from unstale.server.welcome import welcome
from unstale_proto import codec
from unstale_proto.messages import DataPlan, ModelPlan, ObjectivePlan, PartitionPlan, TrainingPlan, VariantPlan, Welcome

CODE = "hostile_code:make"
OWN = Settings(clients=1, device="cpu")


@contextmanager
def watched() -> Iterator[list[str]]:
    """What this process imports, opens, and starts while the context lasts."""
    seen: list[str] = []
    watching = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event in ("open", "import", "os.system", "os.listdir", "os.scandir", "subprocess.Popen"):
            seen.append(str(arguments[0]))

    sys.addaudithook(hook)  # stays until the process ends
    try:
        yield seen
    finally:
        watching = False


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that no server may name, in a folder with code that none may run."""
    (tmp_path / "hostile_code.py").write_text("raise SystemExit\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "secret.npz"
    file.write_text("secret")
    return file


def sent(server: Settings, **changes: Any) -> Welcome:
    """The welcome of a server with these settings, and with these fields in place of its own, over the wire."""
    message = welcome(server, make_workspace(server).model, extra=False)
    received = codec.decode(codec.encode(message.model_copy(update=changes)))
    assert isinstance(received, Welcome)
    return received


def refused(received: Welcome, own: Settings, secret: Path) -> str:
    with watched() as seen, pytest.raises(UserError) as error:
        training_context_of(received, own)
    assert not [name for name in seen if "hostile_code" in name or "secret" in name]
    assert "hostile_code" not in sys.modules
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_watch_sees_imports_and_files(secret: Path) -> None:
    with watched() as seen:
        secret.read_text()
        with pytest.raises(SystemExit):
            __import__("hostile_code")
    assert {"hostile_code", str(secret)} <= set(seen)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": CODE}, "is code, which is not imported because another side names it"),
        ({"model": CODE, "model_plan": ModelPlan(norm=CODE)}, "the server wants model.norm"),
        ({"data": CODE}, "own configuration"),
        ({"objective": ObjectivePlan(name=CODE)}, "is code, which only this machine's own configuration may name"),
        (
            {"objective": ObjectivePlan(name="regression", loss=CODE)},
            "unknown setting 'loss' of objective 'regression'",
        ),
        ({"training": TrainingPlan(name=CODE, steps=1)}, f"training {CODE!r} is code"),
        ({"partition": PartitionPlan(name=CODE)}, f"partition {CODE!r} is code"),
        ({"data_plan": DataPlan(variant=VariantPlan(name=CODE, rate=1.0))}, "own configuration"),
        ({"data": "{secret}"}, "unknown data set"),
        ({"model": "{secret}"}, "unknown model"),
        ({"data": "npz"}, "data.path"),
        ({"data": "folder"}, "data.path"),
        ({"data": "npz", "data_plan": DataPlan(column="{secret}")}, "data.path"),
        ({"data_plan": DataPlan(variant=VariantPlan(name="npz", rate=1.0))}, "data.variant.path"),
        ({"data_plan": DataPlan(normalise="{secret}")}, "the server wants data.normalise"),
    ],
)
def test_code_and_files_that_only_the_server_names_are_neither_run_nor_opened(
    changes: dict[str, Any], message: str, secret: Path
) -> None:
    named = {key: value.format(secret=secret) if isinstance(value, str) else value for key, value in changes.items()}
    if isinstance(plan := changes.get("data_plan"), DataPlan):
        fields = {key: getattr(plan, key) for key in ("column", "normalise") if getattr(plan, key) is not None}
        named["data_plan"] = plan.model_copy(update={key: str(secret)[-100:] for key in fields})
    assert message in refused(sent(Settings(clients=2, model={"name": "logreg"}), **named), OWN, secret)


def test_data_that_the_user_keeps_private_is_not_the_data_that_a_server_names(secret: Path) -> None:
    own = OWN.model_copy(update={"data": Settings(data={"name": "npz", "path": str(secret), "private": True}).data})
    for data in ("npz", "digits"):
        received = sent(Settings(clients=2, model={"name": "logreg"}), data=data)
        assert "data.private is true on this machine" in refused(received, own, secret)


PRIVATE = Settings(
    clients=2, model={"name": "support.factories:plane"}, objective={"name": "regression"}, data={"private": True}
)


@pytest.mark.parametrize("changes", [{}, {"partition": PartitionPlan(name=CODE)}, {"data_plan": DataPlan(column=CODE)}])
def test_in_a_run_of_private_data_the_server_names_none(changes: dict[str, Any], secret: Path) -> None:
    said = refused(sent(PRIVATE, **changes), OWN, secret)
    assert said.startswith("the server's run is of private data, but this client names none")


def test_in_a_run_of_an_app_the_server_names_no_code(
    secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Settings(app="support.apps:regression", clients=2, training={"learning_rate": 0.1})
    assert "which this client does not name; add --app" in refused(sent(server), OWN, secret)
    apps.write_tables(tmp_path, 1)
    monkeypatch.setenv(apps.FOLDER, str(tmp_path))
    own = Settings(app="support.apps:regression")
    hostile = {
        "data_plan": DataPlan(column="secret.npz"),
        "objective": ObjectivePlan(name=CODE),
        "training": TrainingPlan(name=CODE),
        "partition": PartitionPlan(name=CODE),
        "settings": {"app": CODE, "data.path": str(secret)},
    }
    with watched() as seen:  # the app of the user decides; all else in the welcome is without effect
        made = training_context_of(sent(server, **hostile), own)
    assert made.app is apps.regression
    assert not [name for name in seen if "hostile_code" in name or "secret" in name]
