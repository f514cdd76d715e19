"""Presets by name, as `unstale reproduce list` has them."""

from collections.abc import Callable

from unstale.errors import unknown_name
from unstale_papers.preset import Preset
from unstale_papers.presets import fedar, fedhist, inversion, wkafl

PRESETS: dict[str, Callable[[], Preset]] = {**fedhist.PRESETS, **wkafl.PRESETS, **inversion.PRESETS, **fedar.PRESETS}
"""Each makes its preset anew. In the order of the papers."""


def make(name: str) -> Preset:
    """A preset. Raises UserError for a name that there is not."""
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return PRESETS[name]()
