"""Presets by name, as in `unstale reproduce list`."""

from collections.abc import Callable

from unstale.errors import unknown_name
from unstale_papers.preset import Preset
from unstale_papers.presets import fedar, fedhist, guide, inversion, inversion_controls, theory, wkafl

PRESETS: dict[str, Callable[[], Preset]] = {
    **fedhist.PRESETS,
    **wkafl.PRESETS,
    **inversion.PRESETS,
    **inversion_controls.PRESETS,
    **fedar.PRESETS,
    **theory.PRESETS,
    **guide.PRESETS,
}
"""Functions that build the presets: of the papers in their order, of theory, and of the policy guide."""


def make(name: str) -> Preset:
    """Build a preset. Raises UserError for an unknown name."""
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return PRESETS[name]()
