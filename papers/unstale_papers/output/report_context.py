"""Requested and computed cells and their conditions, the input of every output. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from unstale.report.content import NONE, count, listed
from unstale_papers.choose import data_of, data_sets
from unstale_papers.comparison import Comparison, Entry
from unstale_papers.preset import Cell, Number, Preset, nothing
from unstale_papers.scale import Scale, lost, scaled

NOT_RUN, FAILED = "not run", "failed"
NO_NUMBER = "no number"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportContext:
    """scale: of the computation. about: sentences on machine and versions. files: by the data set that each replaces.
    seeds: requested. failures: traceback by cell and seed.
    """

    comparison: Comparison
    scale: Scale
    about: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=nothing)
    seeds: Sequence[int] = ()
    failures: Mapping[tuple[str, int], str] = field(default_factory=dict)

    @property
    def preset(self) -> Preset:
        return self.comparison.preset

    @property
    def wanted(self) -> tuple[int, ...]:
        """Requested seeds of each cell."""
        return tuple(self.seeds) or self.comparison.seeds

    @property
    def done(self) -> int:
        """Number of cells and seeds with a record."""
        names = {cell.name for cell in self.preset.cells}
        return sum(name in names for name, _ in self.comparison.records)

    @property
    def own_scale(self) -> Scale:
        """The scale, without iterations where no cell inverts."""
        return self.scale.at(self.preset.cells)

    @property
    def size(self) -> str:
        """Scale and substituted data for every caption; empty at full size on the published data."""
        parts = [] if self.own_scale.is_full else [f"Not full size: {self.own_scale}."]
        return " ".join([*parts, *self.replaced])

    @property
    def replaced(self) -> list[str]:
        """A sentence for each substituted data set."""
        used = data_sets(self.preset.cells)
        return [f"{name} is read from {file}." for name, file in self.files.items() if name in used]

    @property
    def cells_here(self) -> tuple[Cell, ...]:
        """The scaled cells."""
        return tuple(scaled(cell, self.scale) for cell in self.preset.cells)

    def state(self, entry: Entry) -> str:
        """The reason for a missing number."""
        cell = entry.cell
        of = entry.measure
        itself = of.reference and of.reference.items() <= cell.labels.items()
        if itself and not of.is_ranked and entry.published is None:
            return NONE  # a method is not compared with itself
        if any((cell.name, seed) in self.comparison.records for seed in self.comparison.seeds):
            return NO_NUMBER
        return FAILED if any(name == cell.name for name, _ in self.failures) else NOT_RUN

    def measured(self, entry: Entry) -> str:
        """A number with its spread, and its number of seeds if not all; or the reason for none."""
        if not entry.text:
            return self.state(entry)
        run, wanted = len(entry.values), len(self.wanted)
        if entry.missed:
            return entry.text if run == wanted else f"{entry.text}; {run} of {count(wanted, 'seed')} run"
        counted = entry.spread.n if entry.spread is not None else 0
        return entry.text if counted == wanted else f"{entry.text} ({counted} of {count(wanted, 'seed')})"


def printed(entry: Entry) -> str:
    """A published number as printed, without the table's unit; in per cent where the paper prints a share."""
    number = entry.published
    if number is None:
        return ""
    if _is_share(number, entry):
        return entry.measure.text(number.value)
    return number.text.removesuffix(f" {entry.measure.unit}")


def difference(entry: Entry) -> str:
    """Measured less published, signed, without the unit, which the heading has; empty for p values."""
    if entry.difference is None or entry.measure.of_all is not None:
        return ""
    shown = entry.measure.difference(entry.difference).partition(" ")[0]
    return shown if any(digit in shown for digit in "123456789") else shown.lstrip("+-")


def _is_share(number: Number, entry: Entry) -> bool:
    try:
        return entry.measure.unit == "%" and float(number.text) == number.value
    except ValueError:
        return False


# --- sentences at the top ---


def notes(context: ReportContext) -> list[str]:
    """Sentences at the top of the document."""
    return [
        _size(context),
        f"Data: {data_of(context.preset.cells)}. {' '.join(context.replaced)}".rstrip(),
        _seeds(context),
        *context.about,
        *_time(context),
        *_partial(context),
        *_failures(context),
        *_found(context),
        _ours(context),
    ]


def _size(context: ReportContext) -> str:
    scale = context.own_scale
    if scale.is_full:
        return "Full size: rounds, clients and data as the settings below have them."
    text = [f"Not full size: {scale}."]
    factors = {"a shorter training": scale.rounds, "less data": scale.data, "fewer clients": scale.clients}
    less = [what for what, factor in factors.items() if factor < 1]
    if less:
        text.append(f"What counts rounds cannot be compared with print, and accuracies are of {listed(less)}.")
    if scale.iterations < 1:
        text.append("Inversions have fewer iterations than is published, so that estimates of stale updates are worse.")
    return " ".join([*text, *lost(context.preset.cells, scale)])


def _seeds(context: ReportContext) -> str:
    if not context.wanted:
        return "Nothing has been computed yet."
    seeds = listed([str(seed) for seed in context.wanted])
    if len(context.wanted) == 1:
        return f"One seed, {seeds}: there is no spread, and another seed may turn an order or a verdict."
    return f"Seeds {seeds}: numbers are mean ± standard deviation over seeds, with n - 1."


def _time(context: ReportContext) -> list[str]:
    seconds = sum(record.seconds for record in context.comparison.records.values())
    took = timedelta(seconds=round(seconds))
    return [f"Computing took {took} (hours:minutes:seconds), all cells and seeds added up."] if seconds else []


def _partial(context: ReportContext) -> list[str]:
    wanted = len(context.preset.cells) * len(context.wanted)
    if context.done >= wanted:
        return []
    failed = len(context.failures)
    return [
        f"Not whole: {context.done:,} of {count(wanted, 'run')} (cells times seeds) are done, {failed:,} failed, "
        f"{wanted - context.done - failed:,} were not run. What is missing is said to be, and counts for nothing."
    ]


def _failures(context: ReportContext) -> list[str]:
    """Failures, grouped by the last line of their traceback."""
    by_line: dict[str, list[str]] = {}
    for (cell, seed), traceback in context.failures.items():
        by_line.setdefault(last_line(traceback), []).append(f"{cell} with seed {seed}")
    return [f"Failed: {listed(which)}: {line}" for line, which in by_line.items()]


def last_line(traceback: str) -> str:
    return traceback.strip().rpartition("\n")[2].strip()


def _found(context: ReportContext) -> list[str]:
    """Notes of measurements, each once with its cells."""
    cells_by_note: dict[str, list[str]] = {}
    for (cell, seed), record in context.comparison.records.items():
        sentences = list(record.found.get("notes", ()))
        if record.diverged:
            sentences.append(
                f"It ended early, and is left out of curves and means that other seeds have: {record.found['ended']}"
            )
        if "refused" in record.found:
            refused = [f"{many:,} ({reason})" for reason, many in record.found["refused"].items()]
            sentences.append(f"Updates were refused: {listed(refused)}")
        for sentence in sentences:
            cells_by_note.setdefault(sentence, []).append(f"{cell} with seed {seed}")
    return [f"Of {listed(which)}: {sentence}" for sentence, which in cells_by_note.items()]


def _ours(context: ReportContext) -> str:
    sources = context.preset.sources
    tags = Counter(source.tag for source in sources if source.is_ours)
    by_tag = ", ".join(f"{number} {tag}" for tag, number in tags.items())
    if not tags:
        return "All settings are published."
    return (
        f"{sum(tags.values())} of {len(sources)} settings are not published and are ours ({by_tag}): "
        "[M] follows from what is published, [P] is proposed here, R: is what released code has. "
        "They are marked below."
    )
