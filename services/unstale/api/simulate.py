"""`simulate` and `sweep`: runs in virtual time, in this process."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, overload

import torch

from unstale.api.arguments import settings_of
from unstale.api.progress import Bar
from unstale.api.run import Run, read
from unstale.api.runs import Runs
from unstale.config import Settings
from unstale.config.compensation import compensator
from unstale.config.metrics import main_metric
from unstale.config.workspace import training_context
from unstale.errors import UserError
from unstale.learner.device import arithmetic_restored
from unstale.report import files
from unstale.simulator.assemble import simulation
from unstale.trackers.tracking import Tracking
from unstale.training import model_file
from unstale.training.app import App
from unstale.workers.inversion_executor import connect

Part = object
"""The name of a part, a mapping with its name and settings, or an object."""


@overload
def simulate(
    app: App | str | None = None,
    *,
    clients: int = ...,
    policy: Part = ...,
    rounds: int = ...,
    scenario: Part = ...,
    seed: int = ...,
    seeds: None = ...,
    directory: str | Path | None = ...,
    progress: bool | None = ...,
    **keys: Any,
) -> Run: ...
@overload
def simulate(
    app: App | str | None = None,
    *,
    clients: int = ...,
    policy: Part = ...,
    rounds: int = ...,
    scenario: Part = ...,
    seeds: Iterable[int],
    directory: str | Path | None = ...,
    progress: bool | None = ...,
    **keys: Any,
) -> Runs: ...
def simulate(
    app: App | str | None = None,
    *,
    clients: int = 100,
    policy: Part = "fedhist",
    rounds: int = 200,
    scenario: Part = "lte",
    seed: int | None = None,
    seeds: Iterable[int] | None = None,
    directory: str | Path | None = None,
    progress: bool | None = None,
    **keys: Any,
) -> Run | Runs:
    """Simulate a run in virtual time, as `unstale simulate` does.

    Args:
        app: Own model, data and training, or their `module:name`; None for the built-in training.
        clients: Number of clients.
        policy: Aggregation policy.
        rounds: Number of rounds.
        scenario: Delays and faults; None for none.
        seed: Of all random numbers; by default 0.
        seeds: Several seeds, each for a run; in place of `seed`.
        directory: New directory in which the run is recorded, for `unstale replay`; None for a temporary one.
        progress: Whether to show a progress bar; None for one in terminals and notebooks.
        keys: Keys of the configuration, or sections with a mapping or the name of their part.

    Raises:
        UserError: An argument is invalid, or a part cannot be made.
    """
    arguments = {"clients": clients, "policy": policy, "rounds": rounds, "scenario": scenario, **keys}
    if seeds is not None:
        if seed is not None:
            raise UserError(f"seed is {seed!r} and seeds {seeds!r:.80}, expected one of them; leave the other one out")
        return _all(app, arguments, {}, seeds, directory, progress)
    settings = settings_of(app, arguments if seed is None else {**arguments, "seed": seed})
    return _run(settings, directory, progress)


def sweep(
    app: App | str | None = None,
    *,
    over: Mapping[str, Sequence[Any]],
    seeds: Iterable[int] = (0,),
    directory: str | Path | None = None,
    progress: bool | None = None,
    **arguments: Any,
) -> Runs:
    """Simulate a run for each combination of values and each seed.

    Args:
        app: As for `simulate`.
        over: Values of some arguments of `simulate`, or of keys of the configuration.
        seeds: Seeds of the runs of each combination.
        directory: New directory with a folder for each run, in order; None for temporary ones.
        progress: As for `simulate`.
        arguments: Other arguments of `simulate`.

    Raises:
        UserError: As `simulate`; all settings are checked before the first run.
    """
    defaults = {"clients": 100, "policy": "fedhist", "rounds": 200, "scenario": "lte"}
    return _all(app, {**defaults, **arguments}, over, seeds, directory, progress)


def _all(
    app: App | str | None,
    arguments: Mapping[str, Any],
    over: Mapping[str, Sequence[Any]],
    seeds: Iterable[int],
    directory: str | Path | None,
    progress: bool | None,
) -> Runs:
    values = {"seed": _list("seeds", seeds)}
    values = {name: _list(name, given) for name, given in over.items()} | ({} if "seed" in over else values)
    chosen = [
        settings_of(app, {**arguments, **dict(zip(values, combination, strict=True))})
        for combination in product(*values.values())
    ]
    if directory is not None:
        files.make(Path(directory))
    folders = [None if directory is None else Path(directory, f"{number}") for number in range(len(chosen))]
    return Runs(
        [
            _run(settings, folder, progress, f"run {number} of {len(chosen)}  ")
            for number, (settings, folder) in enumerate(zip(chosen, folders, strict=True), 1)
        ]
    )


def _list(name: str, values: Any) -> list[Any]:
    """The values of an argument. Raises UserError for another object, and for none."""
    is_list = isinstance(values, Iterable) and not isinstance(values, str | Mapping)
    if not is_list or not (several := list(values)):
        raise UserError(f"{name} is {values!r:.80}, expected a list of values")
    return several


def _run(settings: Settings, directory: str | Path | None, progress: bool | None, label: str = "") -> Run:
    """Simulate one run, recorded without its updates where that is for its tables only."""
    threads = torch.get_num_threads()
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, threads)
        stack.enter_context(arithmetic_restored())
        if directory is None:
            path = Path(stack.enter_context(TemporaryDirectory(prefix="unstale-run-")))
        else:
            path = Path(directory)
        tracking = Tracking(settings.trackers)
        context = training_context(settings)
        main = main_metric(settings, context.main)
        bar = Bar(label, settings.rounds, main, visible=progress, clock="s of virtual time")
        simulated = simulation(
            settings,
            on_progress=bar.evaluated,
            observe=bar.observe,
            record_in=path,
            keep_updates=directory is not None,
            compensator_of=partial(compensator, connect=connect),
            context=context,
        )
        name = path.name if directory is not None else f"{settings.policy.name}-{settings.seed}"
        with bar, tracking.of(path, name):
            outcome = simulated.run()
        simulated.save()
        model = model_file.state(context.model, simulated.sent.model_d, simulated.sent.buffers_b)
        return read(path, model, outcome)
