"""`unstale data`: list the data sets, and show one of them."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unstale.cli.app import App
from unstale.cli.parameters import AsJson
from unstale.cli.tables import print_table

if TYPE_CHECKING:
    from torch import Tensor

    from unstale.training.datasets import Dataset

app = App(help="List, show and download data sets.")

Name = Annotated[str, typer.Argument(help="A name that `unstale data list` prints, or package.module:factory.")]
Where = Annotated[str | None, typer.Option(help="File of npz, folder of folder.")]
Cache = Annotated[str, typer.Option(help="Folder of downloaded data.")]
Download = Annotated[bool, typer.Option("--download", help="Download the data set if it is not in the cache.")]
Normalise = Annotated[str, typer.Option(help="Normalisation of inputs: standard, unit (0 to 1) or raw (0 to 255).")]
Column = Annotated[str | None, typer.Option(help="Column of an .npz file with the group of each example.")]

CACHE = "~/.cache/unstale"
_CLASSES_MAX = 20  # with more classes the range of their sizes is shown


@app.command(name="list")
def list_all(cache: Cache = CACHE, as_json: AsJson = False) -> None:
    """List the data sets, and which of them are in the cache."""
    from unstale.training.datasets import DATASETS, SUMMARIES, Source, is_there  # imports torch

    rows = [(name, SUMMARIES[name], is_there(name, cache)) for name in DATASETS]
    if as_json:
        keys = ("name", "summary", "in_cache")
        print(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=2))
        return
    print_table(
        ("data set", "description", f"in {Source(name='mnist', cache=cache).location}"),
        [(name, summary, {None: "", True: "yes", False: "no"}[is_cached]) for name, summary, is_cached in rows],
        lines=False,
    )


@app.command()
def show(
    name: Name,
    path: Where = None,
    cache: Cache = CACHE,
    download: Download = False,
    normalise: Normalise = "standard",
    column: Column = None,
    as_json: AsJson = False,
) -> None:
    """Load a data set and show its properties."""
    from unstale.training.datasets import load  # imports torch

    dataset = load(name, path, cache=cache, download=download, normalise=normalise, column=column)
    mean_C, std_C = _moments(dataset)
    rule = dataset.normalisation
    facts = {
        "name": dataset.name,
        "origin": dataset.origin,
        "train": _part(dataset.train.labels_N, dataset.train.groups_N, dataset.classes),
        "test": _part(dataset.test.labels_N, dataset.test.groups_N, dataset.classes),
        "classes": dataset.classes,
        "shape": list(dataset.input_shape),
        "stored_as": str(dataset.train.stored_NX.dtype).removeprefix("torch."),
        "normalisation": {"divisor": rule.divisor, "mean": list(rule.mean_C), "std": list(rule.std_C)},
        "mean": mean_C,
        "std": std_C,
    }
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        _print_facts(facts)


def _part(labels_N: "Tensor", groups_N: "Tensor | None", classes: int) -> dict[str, Any]:
    return {
        "examples": len(labels_N),
        "groups": None if groups_N is None else len(set(groups_N.tolist())),
        "label_counts": labels_N.bincount(minlength=classes).tolist(),
    }


def _moments(dataset: "Dataset") -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of the normalised training examples, for each channel of images."""
    import torch

    channels = dataset.input_shape[0] if len(dataset.input_shape) == 3 else 1
    sum_C = square_C = torch.zeros(channels, dtype=torch.float64)
    for indices_n in torch.split(torch.arange(len(dataset.train.labels_N)), 4096):
        inputs_nCP = dataset.train_examples(indices_n).double().reshape(len(indices_n), channels, -1)
        sum_C = sum_C + inputs_nCP.sum(dim=(0, 2))
        square_C = square_C + inputs_nCP.square().sum(dim=(0, 2))
    numbers = dataset.train.stored_NX.numel() // channels
    mean_C = sum_C / numbers
    return mean_C.tolist(), (square_C / numbers - mean_C.square()).clamp(min=0).sqrt().tolist()


def _print_facts(facts: dict[str, Any]) -> None:
    train, test = facts["train"], facts["test"]
    shape = "x".join(str(size) for size in facts["shape"])
    groups = "none"
    if train["groups"] is not None:
        in_test = "none" if test["groups"] is None else f"{test['groups']:,}"
        groups = f"{train['groups']:,} in the training part, {in_test} in the test part"
    rows = [
        ("origin", facts["origin"]),
        ("examples", f"{train['examples']:,} training, {test['examples']:,} test"),
        ("shape", f"{shape}, stored as {facts['stored_as']}"),
        ("normalised", _rule(facts["normalisation"])),
        ("", f"training part: mean {_numbers(facts['mean'])}, deviation {_numbers(facts['std'])}"),
        ("groups", groups),
        ("classes", str(facts["classes"])),
    ]
    if facts["classes"] > _CLASSES_MAX:
        ranges = [f"{min(part['label_counts'])} to {max(part['label_counts'])}" for part in (train, test)]
        rows.append(("per class", f"{ranges[0]} training, {ranges[1]} test; each of them with --json"))
    print(facts["name"])
    for name, value in rows:
        print(f"  {name:<12}  {value}")
    if facts["classes"] <= _CLASSES_MAX:
        counts = zip(train["label_counts"], test["label_counts"], strict=True)
        print_table(
            ("class", "training", "test"),
            [(str(label), *(f"{number:,}" for number in numbers)) for label, numbers in enumerate(counts)],
            lines=False,
        )


def _rule(normalisation: dict[str, Any]) -> str:
    """`(x / 255 - 0.1307) / 0.3081`"""
    scaled = "x" if normalisation["divisor"] == 1 else f"x / {normalisation['divisor']:g}"
    if not normalisation["mean"]:
        return scaled
    return f"({scaled} - {_numbers(normalisation['mean'])}) / {_numbers(normalisation['std'])}"


def _numbers(values: list[float]) -> str:
    text = ", ".join(f"{value + 0.0:.4f}" for value in values)
    return text if len(values) == 1 else f"({text})"
