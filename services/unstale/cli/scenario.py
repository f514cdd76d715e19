"""`unstale scenario`: what goes wrong in a scenario, as a client would see it."""

import json
import sys
from collections.abc import Iterator, Sequence
from math import ceil, log10
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unstale.cli.app import App
from unstale.cli.options import takes_settings
from unstale.config import Settings
from unstale.errors import UserError

if TYPE_CHECKING:
    from unstale.toxics.chaos_mesh import Translation
    from unstale.toxics.preview import GroupSeen, Preview

app = App(help="Look at scenarios: what goes wrong between clients and server, and how fast clients are.")

SHADES = " ░▒▓█"  # nobody, up to a quarter of the clients, ..., up to all
BARS = " ▁▂▃▄▅▆▇█"
BARS_SHOWN = 24  # of a distribution

Name = Annotated[str, typer.Argument(metavar="NAME|FILE", help="A ready scenario, or a YAML file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw it into this PNG file.")]
PayloadBytes = Annotated[
    int, typer.Option(metavar="BYTES", min=0, max=2**34, help="What a task and an update carry.")
]
Seconds = Annotated[float, typer.Option(metavar="SECONDS", help="How much of the scenario to look at.")]
SECONDS_MIN, SECONDS_MAX = 1e-3, 1e7
ClientsEach = Annotated[
    int, typer.Option(metavar="N", min=1, help="Clients in a pod: the Job's UNSTALE_CLIENT__COUNT.")
]
Namespace = Annotated[str, typer.Option(metavar="NAME", help="Where the pods are.")]


@app.callback()
def _options_of_the_group() -> None:
    pass


@app.command(name="list")
def list_all(as_json: AsJson = False) -> None:
    """List the scenarios that come with unstale."""
    from unstale.config.scenario import read, ready_names

    described = {name: read(name).description for name in ready_names()}
    if as_json:
        rows = [{"name": name, "description": text} for name, text in described.items()]
        print(json.dumps(rows, indent=2))
        return
    width = max(len(name) for name in described)
    for name, text in described.items():
        print(f"{name:<{width}}  {text}")
    print("\nMore of one: unstale scenario show NAME. Run with one: unstale simulate --scenario NAME.")


@app.command()
@takes_settings(
    *("clients", "seed", "data", "partition", "training.steps", "scenario.time_scale"),
    common=("clients", "seed", "training.steps", "scenario.time_scale"),
)
def show(
    settings: Settings,
    name: Name,
    plot: Plot = None,
    payload_bytes: PayloadBytes = 250_000,
    seconds: Seconds = 300.0,
    as_json: AsJson = False,
) -> None:
    """Play a scenario for the run's clients: how long tasks and updates take, what is lost, and who is there when."""
    if not SECONDS_MIN <= seconds <= SECONDS_MAX:
        raise UserError(
            f"--seconds is {seconds:g}, expected a number from {SECONDS_MIN} to {SECONDS_MAX:,.0f}"
        )
    chosen = settings.scenario.model_copy(update={"name": name})
    seen = _look(settings.model_copy(update={"scenario": chosen}), payload_bytes, seconds)
    title = (
        f"{name}: {settings.clients:,} client{'s' * (settings.clients > 1)}, {payload_bytes:,} bytes a message, "
        f"seed {settings.seed}"
    )
    if plot is not None:
        _draw(seen, title, plot)
    if as_json:
        print(json.dumps(_facts(name, seen)))
        return
    print(title)
    _print_table(seen)
    _print_time_lines(seen)
    if plot is not None:
        print(f"{plot}: written")


@app.command(name="chaos-mesh")
@takes_settings(
    *("clients", "seed", "data", "partition", "scenario.time_scale"),
    common=("clients", "seed", "scenario.time_scale"),
)
def chaos_mesh(
    settings: Settings, name: Name, clients_each: ClientsEach = 5, namespace: Namespace = "unstale"
) -> None:
    """Print a scenario as objects of Chaos Mesh, for the pods of k8s/; what it cannot say goes to stderr, too."""
    from unstale.config.scenario import client_info, conditions
    from unstale.toxics.chaos_mesh import Pods, translated

    chosen = settings.scenario.model_copy(update={"name": name})
    made = conditions(settings.model_copy(update={"scenario": chosen}), of=client_info(settings))
    pods = Pods(clients=settings.clients, clients_each=clients_each, namespace=namespace)
    translation = translated(made, pods)
    print("\n".join(_as_documents(name, pods.count, translation)))
    for sentence in translation.left_out:
        print(f"not in Chaos Mesh: {sentence}", file=sys.stderr)


def _as_documents(name: str, pods: int, translation: "Translation") -> Iterator[str]:
    """Lines of YAML: a document for each fault, under what it differs in."""
    import yaml

    yield f"# Scenario {name} for {pods} pod{'s' * (pods > 1)} of clients. Times count from when it is applied."
    yield "# Of several faults with the same target, Chaos Mesh lets a packet meet one."
    for sentence in translation.left_out:
        yield f"# Not in here: {sentence}"
    for fault in translation.faults:
        yield "---"
        if fault.remark:
            yield f"# {fault.remark}"
        yield yaml.safe_dump(fault.manifest, sort_keys=False).rstrip("\n")


def _look(settings: Settings, payload_bytes: int, seconds: float) -> "Preview":
    from unstale.config.scenario import client_info, conditions, read
    from unstale.toxics.preview import preview

    assert settings.scenario.name is not None
    training = settings.training
    clients = client_info(settings)
    return preview(
        read(settings.scenario.name),
        conditions(settings, of=clients),
        clients,
        seed=settings.seed,
        payload_bytes=payload_bytes,
        steps=1 if training.name == "gradient" else training.steps or 1,
        seconds=seconds,
    )


def _draw(seen: "Preview", title: str, file: Path) -> None:
    try:
        from unstale.cli.scenario_plot import draw  # imports matplotlib
    except ModuleNotFoundError as error:
        raise UserError(
            "--plot needs matplotlib, which is not installed; get it with: pip install matplotlib"
        ) from error
    try:
        draw(seen, title, file)
    except OSError as error:
        raise UserError(f"cannot write {file}: {(error.strerror or str(error)).lower()}") from None


def legs(group: "GroupSeen") -> Iterator[tuple[str, Sequence[float], float | None]]:
    """The parts of a round trip: name, seconds, share that was lost."""
    yield "task down", group.seen.down_s, group.seen.tasks_lost
    yield "computing", group.seen.computing_s, None
    yield "update up", group.seen.up_s, group.seen.updates_lost


# --- for programs ---


def _facts(name: str, seen: "Preview") -> dict[str, Any]:
    return {
        "scenario": name,
        "seconds": seen.seconds,
        "groups": [
            {
                "name": group.name,
                "clients": group.clients,
                "stale_rounds": group.stale_rounds,
                "declined": group.seen.declined / group.seen.tasks,
                "legs": {leg: {"lost": lost, **_quantiles(seconds)} for leg, seconds, lost in legs(group)},
                "there": [round(share, 4) for share in group.share_there],
            }
            for group in seen.groups
        ],
    }


def _quantiles(seconds: Sequence[float]) -> dict[str, float | None]:
    import numpy as np

    keys = {"p10_s": 0.1, "median_s": 0.5, "p90_s": 0.9}
    return {key: float(np.quantile(seconds, at)) if seconds else None for key, at in keys.items()}


# --- for people ---


def _print_table(seen: "Preview") -> None:
    every = [second for group in seen.groups for _, part, _ in legs(group) for second in part if second > 0]
    low_s, high_s = (min(every) * 0.999, max(every) * 1.001) if every else (1.0, 1.0)
    scale = f"{duration(low_s)} to {duration(high_s)}, logarithmic" if every else ""
    rows: list[tuple[str, ...]] = [("group", "clients", "", "10%", "median", "90%", "lost", scale)]
    for group in seen.groups:
        head: tuple[str, ...] = (group.name, f"{group.clients:,}")
        for leg, seconds, lost in legs(group):
            gone = "" if lost is None else f"{lost:.1%}"
            quantiles = [_duration_or_none(one) for one in _quantiles(seconds).values()]
            rows.append((*head, leg, *quantiles, gone, _bars(seconds, low_s, high_s)))
            head = ("", "")
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            f"{cell:<{width}}" if column in (0, 2, 7) else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
    for group in seen.groups:
        if group.stale_rounds is not None:
            print(
                f"{group.name}: updates are {group.stale_rounds} rounds late, in rounds that wait for everybody"
            )
        if group.seen.declined:
            print(f"{group.name}: {group.seen.declined / group.seen.tasks:.0%} of the tasks are declined")


def _print_time_lines(seen: "Preview") -> None:
    if not (seen.by_time or seen.by_rounds):
        return
    width = max(len(group.name) for group in seen.groups)
    print(f"who is there: {axis(seen)}; {', '.join(_shades())}")
    for group in seen.groups:
        shares = group.share_there
        line = "".join(SHADES[ceil(share * (len(SHADES) - 1))] for share in shares)
        print(f"{group.name:<{width}} |{line}| {sum(shares) / len(shares):.0%}")


def axis(seen: "Preview") -> str:
    """What a time line is over."""
    from unstale.toxics.preview import BINS

    by_time, by_rounds = f"0 s to {seen.seconds:,.10g} s", f"{BINS} rounds"
    if seen.by_time and seen.by_rounds:
        return f"{by_time}, and {by_rounds}"
    return by_rounds if seen.by_rounds else by_time


def _shades() -> list[str]:
    return [f"{shade} up to {part / 4:.0%}" for part, shade in enumerate(SHADES) if part]


def _bars(seconds: Sequence[float], low_s: float, high_s: float) -> str:
    """A histogram over the logarithm of the seconds, of those that are not at once."""
    longer = [second for second in seconds if second > 0]
    if not longer:
        return "at once" if seconds else ""
    counts = [0] * BARS_SHOWN
    for second in longer:
        place = log10(second / low_s) / log10(high_s / low_s)
        counts[min(int(place * BARS_SHOWN), BARS_SHOWN - 1)] += 1
    return "".join(BARS[ceil(count / max(counts) * (len(BARS) - 1))] for count in counts)


def _duration_or_none(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def duration(seconds: float) -> str:
    """`0`, `350 us`, `12 ms`, `1.25 s` or `75 s`."""
    if seconds == 0:
        return "0"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return (
                f"{seconds / size:,.3g} {unit}" if seconds < 1000 * size else f"{seconds / size:,.0f} {unit}"
            )
    return f"{seconds / 1e-6:.3g} us"
