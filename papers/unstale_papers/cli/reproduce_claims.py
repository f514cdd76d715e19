"""`unstale reproduce claims`: one page of all claims, from a store or from exported results."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from unstale.errors import UserError

if TYPE_CHECKING:
    from unstale_papers.store import StoredResult


def write(store: Path, exported: Path | None) -> list[Path]:
    """Write the page and its CSV file beside the results, and return them. exported: folder of `.jsonl` files.

    Raises UserError, also where there are no results.
    """
    from unstale_papers.claims import headlines, sizes, summary
    from unstale_papers.output import claims_page
    from unstale_papers.presets.registry import PRESETS

    results = _of_store(store) if exported is None else _of_files(exported)
    presets = [make() for make in PRESETS.values()]
    rows = summary.rows(presets, sizes.comparisons(results, presets), headlines.load())
    return claims_page.write(rows, store if exported is None else exported)


def _of_store(store: Path) -> "Iterable[StoredResult]":
    from unstale_papers.store import Store

    kept = Store.look(store)
    if kept is None:
        raise UserError(
            f"there is no store in {store}, expected one that `unstale reproduce run` made; name it with --store, or a "
            "folder of exported results with --from"
        )
    with kept:
        return list(kept.everything())


def _of_files(folder: Path) -> "Iterable[StoredResult]":
    from unstale_papers import published

    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise UserError(
            f"--from is {folder}, expected a folder with .jsonl files that `unstale reproduce export` wrote; name "
            "another one"
        )
    return published.results(files)
