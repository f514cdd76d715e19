"""Presets by name, as in `unstale reproduce list`."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from unstale.errors import unknown_name
from unstale_papers.preset import Cell, Preset, Source
from unstale_papers.presets import fedar, fedhist, guide, inversion, inversion_controls, theory, wkafl

ANY_NORM = Source(
    key="server.norm_max",
    value="null",
    tag="[M]",
    why="No paper refuses an update for its norm. A server of unstale refuses those of more than 20 times the median "
    "norm by default, which clients of one class each do send.",
)


def _with_any_norm(made: Callable[[], Preset]) -> Preset:
    """A preset whose server accepts updates of any norm."""

    def accepting(cell: Cell) -> Cell:
        server = cell.settings.server.model_copy(update={"norm_max": None})
        return replace(cell, settings=cell.settings.model_copy(update={"server": server}))

    preset = made()
    return replace(preset, cells=tuple(map(accepting, preset.cells)), sources=(*preset.sources, ANY_NORM))


_OF_PAPERS: dict[str, Callable[[], Preset]] = {
    **fedhist.PRESETS,
    **wkafl.PRESETS,
    **inversion.PRESETS,
    **inversion_controls.PRESETS,
    **fedar.PRESETS,
    **theory.PRESETS,
}
PRESETS: dict[str, Callable[[], Preset]] = {
    **{name: partial(_with_any_norm, made) for name, made in _OF_PAPERS.items()},
    **guide.PRESETS,
}
"""Functions that build the presets: of the papers in their order, of theory, and of the policy guide."""


def make(name: str) -> Preset:
    """Build a preset. Raises UserError for an unknown name."""
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return PRESETS[name]()
