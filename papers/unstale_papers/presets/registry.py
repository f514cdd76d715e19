"""Presets by name, as in `unstale reproduce list`."""

from collections.abc import Callable

from unstale.errors import unknown_name
from unstale_papers.preset import Preset
from unstale_papers.presets import fedar, fedhist, inversion, theory, wkafl

PRESETS: dict[str, Callable[[], Preset]] = {
    **fedhist.PRESETS,
    **wkafl.PRESETS,
    **inversion.PRESETS,
    **fedar.PRESETS,
    **theory.PRESETS,
}
"""Functions that build the presets, in the order of the papers; theory last."""


def make(name: str) -> Preset:
    """Build a preset. Raises UserError for an unknown name."""
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return PRESETS[name]()
