"""Settings of a preset: their sources, the shared ones, and the differing ones. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from unstale.config.write import as_yaml
from unstale.report.content import Column, Section, Table
from unstale_papers.choose import common, differences
from unstale_papers.output.report_context import ReportContext
from unstale_papers.preset import Preset, Source

_SOURCES = (
    Column(name="setting", head="setting"),
    Column(name="value", head="value at full size"),
    Column(name="from", head="from"),
    Column(name="why", head="why"),
)
_COMMON = (
    Column(name="key", head="key"),
    Column(name="value", head="value here"),
    Column(name="full_size", head="at full size, where it differs"),
    Column(name="from", head="from"),
)
_DIFFERENCES = (
    Column(name="cells", head="cells"),
    Column(name="values", head="values here"),
    Column(name="full_size", head="at full size, where they differ"),
)


def section(context: ReportContext) -> Section:
    """Tables of sources, shared settings and differing settings."""
    preset = context.preset
    return Section(
        name="settings",
        title="Settings",
        sentences=[
            'What the paper does not say is ours: it is marked "ours" with a tag that says what it is from. A setting '
            "without a mark in the second table is said in words in the first, or follows from what is."
        ],
        tables=[
            Table(
                name=f"{preset.name}-sources",
                caption="Where settings are from",
                columns=_SOURCES,
                rows=[(one.key, one.value, _from(one), one.why or None) for one in preset.sources],
            ),
            _common(context),
            _differences(context),
        ],
    )


def _common(context: ReportContext) -> Table:
    full, here = common(context.preset.cells), common(context.cells_here)
    tags = _tags(context.preset)
    return Table(
        name=f"{context.preset.name}-settings",
        caption=f"What all cells have; other keys are at their defaults. {context.size}".strip(),
        columns=_COMMON,
        rows=[
            (
                key,
                _text(here[key]),
                None if full.get(key) == here[key] or key not in full else _text(full[key]),
                tags.get(key),
            )
            for key in here
        ],
    )


def _differences(context: ReportContext) -> Table:
    full, here = _by_labels(context.preset.cells), _by_labels(context.cells_here)
    return Table(
        name=f"{context.preset.name}-differences",
        caption=f"In what cells differ. {context.size}".strip(),
        columns=_DIFFERENCES,
        rows=[
            (labels, values or "nothing of its own", None if full.get(labels, values) == values else full[labels])
            for labels, values in here.items()
        ],
    )


def _by_labels(cells: Sequence[Any]) -> dict[str, str]:
    """`method FedHist`, and `policy.name fedhist; ...`"""
    return {
        ", ".join(f"{axis} {label}" for axis, label in zip(one.axes, labels, strict=True)): _values(found)
        for one in differences(cells)
        for labels, found in one.rows.items()
    }


def _values(found: Mapping[str, Any]) -> str:
    return "; ".join(f"{key} {_text(value)}" for key, value in found.items())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else as_yaml(value)


def _from(source: Source) -> str:
    return f"ours, {source.tag}" if source.is_ours else "published"


def _tags(preset: Preset) -> dict[str, str]:
    """Tags by key; a source may name several, `clients and trigger.k`."""
    found: dict[str, str] = {}
    for one in preset.sources:
        for key in one.key.replace(" and ", " ").replace(",", " ").split():
            found.setdefault(key, _from(one))
    return found
