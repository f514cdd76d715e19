"""What an app exchanges, trains, keeps and measures, without server and client."""

import logging
from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unstale
from support import apps
from support.parts_of_runs import client_task
from unstale.errors import UserError
from unstale.flat import FlatModel
from unstale.seeds import Stream, stream
from unstale.training.app import exchanged, make_module
from unstale.training.app_workload import AppWorkload, central_evaluation
from unstale.training.client_state import ClientState
from unstale.training.local import LocalUpdate
from unstale.training.measured import NOT_MEASURED
from unstale.training.state_codec import unpack
from unstale.training.workload import Declined, TrainingDiverged, TrainingFailed


def app_of(**fields: Any) -> unstale.App:
    given: dict[str, Any] = {
        "model": apps.model,
        "train": apps.train,
        "data": lambda client: apps.table(client.client_id),
    }
    return unstale.App(**given | fields)


def workload_of(app: unstale.App, seed: int = 3) -> AppWorkload:
    module = make_module(app, seed)
    return AppWorkload(app, FlatModel(module, exchanged=exchanged(app, module)), clients=4, seed=seed)


def zeros(workload: AppWorkload) -> Tensor:
    return torch.zeros(workload.model.dimension)


def trained(app: unstale.App) -> LocalUpdate:
    """The first update of client 1."""
    workload = workload_of(app)
    return workload.train(client_task(1, 0, zeros(workload), 0.1, buffers_b=buffers(workload)))


def buffers(workload: AppWorkload) -> Tensor | None:
    return workload.model.buffers_b.clone() if len(workload.model.buffers_b) else None


# --- what is exchanged ---


class Frozen(nn.Module):
    """A backbone, an adapter, and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(2, 2).requires_grad_(False)
        self.adapter = nn.Linear(2, 1)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.adapter(self.norm(self.backbone(inputs)))


EVERYTHING = ["adapter.weight", "adapter.bias", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"]


@pytest.mark.parametrize(
    ("exchange", "names"),
    [
        (None, EVERYTHING),
        (["adapter.bias", "adapter.weight"], EVERYTHING[:2]),
        (lambda name: "norm" in name, EVERYTHING[2:]),
        (lambda name: True, EVERYTHING),
        (["norm.weight", "norm.running_var"], ["norm.weight", "norm.running_var"]),
    ],
)
def test_an_app_exchanges_what_is_trained_and_float_buffers_or_what_it_chooses(exchange: Any, names: list[str]) -> None:
    assert exchanged(app_of(model=Frozen, exchange=exchange), Frozen()) == names


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": nn.Tanh}, "the app exchanges no parameter: expected some with requires_grad in its model"),
        ({"model": Frozen, "exchange": lambda _: False}, "with requires_grad in its model, and exchange to name them"),
        ({"model": Frozen, "exchange": ["norm.running_mean"]}, "the app exchanges no parameter"),
        (
            {"model": Frozen, "exchange": ["adaptor.bias"]},
            "which its model does not have; did you mean 'adapter.bias'?",
        ),
        ({"model": Frozen, "exchange": ["backbone.bias"]}, "the app exchanges 'backbone.bias', which is frozen"),
        ({"model": lambda: nn.Linear(1, 1).double()}, "exchanges 'weight' of torch.float64, expected float32, float16"),
        ({"model": lambda: "a model"}, "the app's model function returns a str, expected a torch.nn.Module"),
        ({"model": 3}, r"unstale.App: model is 3, expected a function"),
        ({"evaluate": 3}, r"unstale.App: evaluate is 3, expected a function"),
    ],
)
def test_an_app_that_exchanges_nothing_that_can_be_sent_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        trained(app_of(**fields))


def alternating(*modules: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    made = iter(modules)
    return lambda: next(made)()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            alternating(lambda: nn.Linear(1, 2), lambda: nn.Linear(1, 3)),
            r"'weight' of shape \[2, 1\] and then \[3, 1\]",
        ),
        (alternating(lambda: nn.Linear(1, 2), lambda: nn.Linear(1, 2, bias=False)), "'bias' in one of two calls only"),
        (alternating(lambda: nn.Linear(1, 2), lambda: nn.Linear(1, 2).half()), "torch.float32 and then torch.float16"),
        (
            alternating(lambda: nn.Linear(1, 2), lambda: (torch.rand(1), nn.Linear(1, 2))[1]),
            "'weight' with other values on its second call",
        ),
    ],
)
def test_a_model_function_makes_the_same_model_on_each_call(model: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_module(app_of(model=model), 0)


def raising(*_: Any) -> Any:
    raise KeyError("layers")


@pytest.mark.parametrize("function", ["model", "exchange", "steps"])
def test_an_exception_of_another_function_is_one_sentence_and_its_traceback_is_in_the_log(
    function: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UserError) as failed:
        trained(app_of(**{function: raising}))
    assert str(failed.value) == f"the app's {function} function: KeyError: 'layers'"
    (record,) = caplog.records
    assert "raise KeyError" in logging.Formatter().format(record)


# --- training ---


def test_an_update_is_the_base_minus_the_trained_model_that_is_read_from_the_module() -> None:
    def train(module: nn.Module, data: Any, task: unstale.Task) -> unstale.Trained:
        assert module.training and data == "data of 1 of 4, seed 3"
        assert (task.learning_rate, task.version, task.number) == (0.25, 7, 2)
        assert task.settings == {"momentum": 0.9}
        module.load_state_dict({"weight": torch.tensor([[5.0]]), "bias": torch.tensor([-1.0])}, assign=True)
        return unstale.Trained(num_examples=6, loss=torch.tensor(0.5), metrics={"mae": torch.tensor([2.0])})

    workload = workload_of(
        app_of(
            model=lambda: nn.Linear(1, 1),
            train=train,
            data=lambda client: f"data of {client.client_id} of {client.clients}, seed {client.seed}",
            steps=lambda client: 10 + client.client_id,
        )
    )
    task = client_task(1, 2, torch.tensor([3.0, 4.0]), 0.25, version=7, settings={"momentum": 0.9})
    update = workload.train(task)
    assert update.vector_d.tolist() == [-2, 5]
    assert (update.kind, update.num_examples, update.batch_examples, update.steps) == ("delta", 6, 6, 11)
    assert (update.loss, update.metrics, update.learning_rate, update.buffers_b) == (0.5, {"mae": 2.0}, 0.25, None)


def test_data_of_a_client_is_read_once() -> None:
    read: list[int] = []

    def data(client: unstale.ClientInfo) -> Any:
        read.append(client.client_id)
        return apps.table(client.client_id)

    workload = workload_of(app_of(data=data, evaluate=apps.evaluate))
    for number in range(2):
        for client_id in (2, 0):
            workload.evaluate(client_id, zeros(workload))
            workload.train(client_task(client_id, number, zeros(workload), 0.1))
    assert read == [2, 0]


class Own(nn.Module):
    """A head that is trained and not exchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(2, 2), nn.Linear(2, 1)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.norm(self.body(inputs)))


def test_an_update_depends_on_its_task_alone_whatever_was_trained_before() -> None:
    app = app_of(model=Own, exchange=lambda name: name.startswith("body."), evaluate=apps.evaluate)
    base_d = torch.linspace(-1, 1, 6)
    fresh, used = workload_of(app), workload_of(app)
    heads = used.model.module.head.weight.detach().clone()
    before = used.evaluate(1, base_d)
    for client_id in (0, 2):
        used.train(client_task(client_id, 0, base_d, 0.1))
        assert not torch.equal(used.model.module.head.weight, heads)
    updates = [workload.train(client_task(1, 0, base_d, 0.1)) for workload in (fresh, used)]
    assert torch.equal(updates[0].vector_d, updates[1].vector_d)
    assert used.model.module.norm.num_batches_tracked.item() == apps.STEPS  # an integer buffer
    assert used.evaluate(1, base_d) == before


def test_draws_depend_on_seed_client_and_number_of_the_task() -> None:
    def train(module: nn.Module, data: Any, task: unstale.Task) -> unstale.Trained:
        drawn = [torch.rand(1, generator=task.generator).item(), torch.rand(1).item()]
        return unstale.Trained(num_examples=1, loss=0, metrics=dict(zip("ab", drawn, strict=True)))

    def drawn(client_id: int, number: int, seed: int = 3) -> tuple[float, ...]:
        workload = workload_of(app_of(train=train), seed)
        return tuple(workload.train(client_task(client_id, number, zeros(workload), 0.1)).metrics.values())

    state = torch.get_rng_state()
    assert drawn(0, 0) == drawn(0, 0)
    assert len({number for key in ((0, 0), (1, 0), (0, 1), (0, 0, 4)) for number in drawn(*key)}) == 8
    assert torch.equal(torch.get_rng_state(), state)


def test_draws_of_a_task_are_seeded_from_the_stream_of_its_client() -> None:
    def train(module: nn.Module, data: Any, task: unstale.Task) -> unstale.Trained:
        drawn = {"task": task.generator.initial_seed() % 2**20, "torch": torch.initial_seed() % 2**20}
        return unstale.Trained(num_examples=1, loss=0, metrics=drawn)

    workload = workload_of(app_of(train=train), seed=3)
    metrics = workload.train(client_task(2, 5, zeros(workload), 0.1)).metrics
    expected = stream(3, Stream.BATCHES, 2, 5).integers(2**63, size=2) % 2**20
    assert [metrics["task"], metrics["torch"]] == expected.tolist()


def test_a_half_precision_update_is_the_change_of_the_rounded_model() -> None:
    def train(module: nn.Module, data: Any, task: unstale.Task) -> unstale.Trained:
        with torch.no_grad():
            module.weight += 0.5
        return unstale.Trained(num_examples=1, loss=0)

    workload = workload_of(app_of(model=lambda: nn.Linear(1, 1).bfloat16(), train=train))
    update = workload.train(client_task(0, 0, torch.tensor([1 / 3, 1 / 3]), 0.1))
    third = torch.tensor(1 / 3).bfloat16()
    assert update.vector_d.dtype == torch.float32
    assert update.vector_d.tolist() == [third.item() - (third + 0.5).item(), 0]


# --- state ---


def count(module: nn.Module, data: Any, task: unstale.Task) -> unstale.Trained:
    before = task.state.get("n", 0)
    task.state["n"] = before + 1
    task.state["moments"] = torch.full((2,), float(before))
    return unstale.Trained(num_examples=1, loss=0, metrics={"before": before})


def before(workload: AppWorkload, number: int, client_id: int = 0) -> float:
    return workload.train(client_task(client_id, number, zeros(workload), 0.1)).metrics["before"]


def test_state_changes_when_the_update_is_accepted_and_only_then() -> None:
    workload = workload_of(app_of(train=count))
    assert before(workload, 0) == 0
    assert before(workload, 1) == 0  # no verdict yet
    assert workload.keep(0, 0) and not workload.keep(0, 0)
    assert before(workload, 2) == 1
    workload.drop(0, 1)
    workload.drop(0, 2)
    assert before(workload, 3) == 1
    assert before(workload, 0, client_id=1) == 0  # of another client
    workload.keep(0, 3)
    assert before(workload, 4) == 2
    assert unpack(workload.kept(0)["app"])["moments"].tolist() == [1, 1]


def test_state_is_restored_from_vectors_of_an_earlier_process() -> None:
    first, second = (workload_of(app_of(train=count)) for _ in range(2))
    before(first, 0)
    first.keep(0, 0)
    pending = first.train(client_task(0, 1, zeros(first), 0.1)).state
    second.restore(0, {key: tensor.clone() for key, tensor in first.kept(0).items()}, {1: pending})
    second.keep(0, 1)
    assert before(second, 2) == 2


def test_an_app_without_state_stores_none_and_an_emptied_one_is_empty() -> None:
    def clear(module: nn.Module, data: Any, task: unstale.Task) -> unstale.Trained:
        found = len(task.state)
        task.state.clear()
        return unstale.Trained(num_examples=1, loss=0, metrics={"before": found})

    workload = workload_of(app_of(train=clear))
    assert workload.train(client_task(0, 0, zeros(workload), 0.1)).state == {}
    workload.restore(0, trained(app_of(train=count)).state, {})
    assert before(workload, 1) == 2
    workload.keep(0, 1)
    assert before(workload, 2) == 0


# --- mistakes ---


def returning(result: Any, *, spoil: Callable[[nn.Module, unstale.Task], object] = lambda *_: None) -> unstale.App:
    def train(module: nn.Module, data: Any, task: unstale.Task) -> unstale.Trained:
        spoil(module, task)
        return result

    return app_of(train=train)


def result(**fields: Any) -> unstale.Trained:
    return unstale.Trained(**{"num_examples": 1, "loss": 1.0, **fields})


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "it returned a NoneType, expected an unstale.Trained"),
        (result(loss=nan), "it returned loss nan, expected a finite number"),
        (result(loss=1e39), "it returned loss 1e+39, expected a finite number"),
        (result(loss=None), "it returned loss None, expected a finite number"),
        (result(num_examples=0), "it returned num_examples 0, expected a whole number >= 1"),
        (result(num_examples=2.5), "it returned num_examples 2.5, expected a whole number >= 1"),
        (result(num_examples=2**63), "it returned num_examples 9223372036854775808, expected a whole number >= 1"),
        (result(metrics={"mae": inf}), "it returned inf for metric 'mae', expected a finite number"),
        (result(metrics={"mae": "low"}), "it returned 'low' for metric 'mae', expected a finite number"),
        (result(metrics={"m": torch.ones(2)}), "it returned tensor([1., 1.]) for metric 'm', expected a finite number"),
        (result(metrics={"MAE": 1}), "it returned a metric named 'MAE', expected 1 to 64 characters of a-z0-9_./-"),
        (result(metrics={3: 1}), "it returned a metric named 3, expected 1 to 64 characters of a-z0-9_./-"),
        (result(metrics={f"m{i}": i for i in range(33)}), "it returned 33 metrics, expected at most 32"),
        (result(metrics=[1]), "it returned metrics [1], expected a mapping of names to numbers"),
    ],
)
def test_a_result_that_cannot_be_sent_is_one_sentence(returned: Any, message: str) -> None:
    with pytest.raises(TrainingFailed) as failed:
        trained(returning(returned))
    assert str(failed.value) == f"the app's train function: {message}"
    diverged = ("it returned loss nan", "it returned loss 1e+39")
    assert isinstance(failed.value, TrainingDiverged) is message.startswith(diverged)


def test_a_model_or_state_that_cannot_be_sent_is_one_sentence() -> None:
    def put_nan(module: nn.Module, _: unstale.Task) -> None:
        module[0].bias.data[0] = nan

    def put_object(_: nn.Module, task: unstale.Task) -> None:
        task.state["optimiser"] = object()

    def remove(module: nn.Module, _: unstale.Task) -> None:
        module[2] = nn.Identity()

    def reshape(module: nn.Module, _: unstale.Task) -> None:
        module[2].bias = nn.Parameter(torch.zeros(3))

    def convert(module: nn.Module, _: unstale.Task) -> None:
        module.double()

    def extend(module: nn.Module, _: unstale.Task) -> None:
        module.register_parameter("scale", nn.Parameter(torch.ones(1)))

    for spoil, message in (
        (put_nan, "it left NaN or infinity in the model"),
        (put_object, r"state\['optimiser'\] is of type object, expected tensors, numbers, strings"),
        (remove, "the model has no tensor for '2.weight'"),
        (reshape, r"the model has shape \[3\] for '2.bias', expected shape \[1\]"),
        (convert, "the model has torch.float64 for '0.weight', expected torch.float32"),
        (extend, "the model has 'scale', which it did not have before, expected the same tensors"),
    ):
        with pytest.raises(TrainingFailed, match=message) as failed:
            trained(returning(result(), spoil=spoil))
        assert isinstance(failed.value, TrainingDiverged) is (spoil is put_nan)


def replace(module: nn.Module) -> None:
    module[2] = nn.Identity()


def extend(module: nn.Module) -> None:
    module.add_module("3", nn.Linear(1, 1))
    module[0].register_buffer("count", torch.ones(1))


def shorten(module: nn.Module) -> None:
    del module[0]


@pytest.mark.parametrize("spoil", [replace, extend, shorten])
def test_a_training_that_changes_the_parts_of_the_model_spoils_no_other_task(
    spoil: Callable[[nn.Module], None],
) -> None:
    def train(module: nn.Module, data: Any, task: unstale.Task) -> unstale.Trained:
        result = apps.train(module, data, task)
        if task.number == 0:
            spoil(module)
        return result

    used, fresh = workload_of(app_of(train=train)), workload_of(app_of())
    with pytest.raises(TrainingFailed, match="the model has"):
        used.train(client_task(1, 0, zeros(used), 0.1))
    updates = [workload.train(client_task(2, 1, zeros(used), 0.1)) for workload in (used, fresh)]
    assert torch.equal(updates[0].vector_d, updates[1].vector_d)


def test_what_code_of_the_user_raises_is_logged_and_given_back(caplog: pytest.LogCaptureFixture) -> None:
    def train(*_: Any) -> Any:
        raise KeyError("age")

    with pytest.raises(TrainingFailed, match=r"^the app's train function: KeyError: 'age'$"):
        trained(app_of(train=train))
    (record,) = caplog.records
    assert record.exc_info is not None and "raise KeyError" in logging.Formatter().format(record)


def test_the_traceback_of_an_exception_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def train(model: nn.Module, data: Any, task: unstale.Task) -> unstale.Trained:
        raise ValueError("twice" if task.number < 2 else "another")

    workload = workload_of(app_of(train=train))
    for number in range(3):
        with pytest.raises(TrainingFailed, match="ValueError"):
            workload.train(client_task(0, number, zeros(workload), 0.1))
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["twice", "another"]


def test_an_app_takes_no_model_that_was_made_already() -> None:
    with pytest.raises(UserError, match=r"^unstale.App: model is a Linear that was made already, expected the class"):
        app_of(model=nn.Linear(2, 1))


def test_a_client_without_data_gives_its_tasks_back_until_it_has_some() -> None:
    files: dict[int, Any] = {}
    workload = workload_of(app_of(data=lambda client: files[client.client_id]))
    task = client_task(1, 0, zeros(workload), 0.1)
    with pytest.raises(TrainingFailed, match=r"^the app's data function: KeyError: 1$"):
        workload.train(task)
    files[1] = None
    with pytest.raises(TrainingFailed, match="data function returned None for client 1, expected its data"):
        workload.train(task)
    files[1] = apps.table(1)
    assert workload.train(task).num_examples == 20


def test_a_training_may_decline() -> None:
    def train(*_: Any) -> Any:
        raise unstale.Decline("battery")

    with pytest.raises(Declined, match=r"^battery$"):
        trained(app_of(train=train))


# --- evaluation ---


def test_an_evaluation_is_on_the_clients_data_in_evaluation_mode() -> None:
    def evaluate(module: nn.Module, data: Any) -> unstale.Measured:
        assert not module.training and not torch.is_grad_enabled()
        return unstale.Measured(num_examples=len(data[0]), metrics={"bias": module[2].bias})

    workload = workload_of(app_of(evaluate=evaluate))
    measured = workload.evaluate(2, torch.arange(17.0))
    assert measured == unstale.Measured(num_examples=28, metrics={"bias": 16.0})
    assert workload_of(app_of()).evaluate(2, torch.arange(17.0)) is None


@pytest.mark.parametrize("returned", [None, unstale.Measured(num_examples=1, metrics={"a": nan}), KeyError("age")])
def test_an_evaluation_that_fails_is_logged_and_left_out(returned: Any, caplog: pytest.LogCaptureFixture) -> None:
    def evaluate(*_: Any) -> Any:
        if isinstance(returned, Exception):
            raise returned
        return returned

    workload = workload_of(app_of(evaluate=evaluate))
    assert workload.evaluate(0, zeros(workload)) is None
    assert "the app's evaluate function" in caplog.text
    app = app_of(evaluate_centrally=lambda module: evaluate(module))
    assert central_evaluation(app, workload.model)(zeros(workload), torch.empty(0)) == NOT_MEASURED


def test_the_server_evaluates_where_an_app_can() -> None:
    def centrally(module: nn.Module) -> unstale.Measured:
        return unstale.Measured(num_examples=5, metrics={"bias": module[2].bias.item()})

    workload = workload_of(app_of())
    model_d = torch.arange(17.0)
    measured = central_evaluation(app_of(evaluate_centrally=centrally), workload.model)(model_d, torch.empty(0))
    assert measured == unstale.Measured(num_examples=5, metrics={"bias": 16.0})
    assert central_evaluation(app_of(), workload.model)(model_d, torch.empty(0)) == NOT_MEASURED


def test_the_main_metric_is_that_of_the_app_or_the_loss() -> None:
    assert (app_of(metric="r2", higher_is_better=True).main.name, app_of(metric="r2").main.higher_is_better) == (
        "r2",
        False,
    )
    assert app_of().main.name == "loss"
    assert isinstance(workload_of(app_of()).client_state, ClientState)


def test_frozen_parameters_that_a_task_trains_are_as_before_for_the_next_one() -> None:
    def model() -> nn.Module:
        module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        module[0].requires_grad_(False)
        return module

    seen = []

    @torch.no_grad()
    def train(module: nn.Module, data: Any, task: unstale.Task) -> unstale.Trained:
        seen.append((module[0].weight.requires_grad, module[0].weight.detach().clone()))
        module[0].requires_grad_(True)
        module[0].weight += 1
        module[1].weight += 1
        return unstale.Trained(num_examples=1, loss=1.0)

    workload = workload_of(app_of(model=model, train=train))
    for client_id in range(2):
        workload.train(client_task(client_id, 0, zeros(workload), 0.1))
    assert [trains for trains, _ in seen] == [False, False]
    assert torch.equal(seen[0][1], seen[1][1])


def test_a_task_cannot_change_the_settings_of_others() -> None:
    def train(module: nn.Module, data: Any, task: unstale.Task) -> unstale.Trained:
        task.settings["steps"] = 3  # type: ignore[index]
        return unstale.Trained(num_examples=1, loss=1.0)

    with pytest.raises(TrainingFailed, match="TypeError"):
        trained(app_of(train=train))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"metric": 3}, "metric is 3, expected 1 to 64 characters of a-z0-9_./-"),
        ({"metric": "Mein Maß"}, "metric is 'Mein Maß', expected 1 to 64"),
        ({"exchange": 5}, "exchange is 5, expected names, or a function of a name"),
    ],
)
def test_a_field_of_another_kind_is_one_sentence(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^unstale.App: {message}"):
        app_of(**fields)


@pytest.mark.parametrize("model", [lambda: nn.LazyLinear(1), lambda: nn.Linear(2, 1, device="meta")])
def test_a_model_without_values_is_one_sentence(model: Callable[[], nn.Module]) -> None:
    with pytest.raises(UserError, match=r"^the app's model function made 'weight' without values, expected a model"):
        make_module(app_of(model=model), 0)


def test_a_state_without_values_is_one_sentence() -> None:
    def train(module: nn.Module, data: Any, task: unstale.Task) -> unstale.Trained:
        task.state["x"] = torch.empty(2, device="meta")
        with torch.no_grad():
            next(module.parameters()).add_(1)
        return unstale.Trained(num_examples=1, loss=1.0)

    with pytest.raises(TrainingFailed, match="state has a tensor whose values cannot be read"):
        trained(app_of(train=train))
