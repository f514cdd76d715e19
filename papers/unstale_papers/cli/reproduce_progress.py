"""Progress of a reproduction, as text lines or JSON lines."""

import sys
from dataclasses import asdict
from pathlib import Path

from unstale.cli import printing
from unstale_papers.engine import Counts, Progress
from unstale_papers.jobs import Job
from unstale_papers.record import Record


class Printer:
    """A watcher that prints, each traceback once."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._news: list[str] = []
        self._printed: set[str] = set()

    def finished(self, job: Job, record: Record, seconds: float) -> None:
        name, values_E = record.main
        value = values_E[-1] if values_E else None
        if self._as_json:
            facts = {"seconds": seconds, name: value, "model_digest": record.model_digest}
            printing.json_line("finished", {**_which(job), **facts})
            return
        reached = "" if value is None else f", {name} {printing.figure(value, '.4f')}"
        self._news.append(f"{job.name}: {duration_text(seconds)}{reached}")

    def failed(self, job: Job, traceback: str) -> None:
        if self._as_json:
            printing.json_line("failed", {**_which(job), "traceback": traceback})
            return
        last = traceback.strip().rpartition("\n")[2]
        self._news.append(f"{job.name}: failed: {last}")
        if traceback.strip() != last and traceback not in self._printed:
            self._printed.add(traceback)
            print(traceback.rstrip(), file=sys.stderr, flush=True)

    def again(self, job: Job, why: str) -> None:
        if self._as_json:
            printing.json_line("again", {**_which(job), "why": why})
        else:
            self._news.append(f"{job.name}: {why}; it is tried again")

    def stands(self, standing: Progress) -> None:
        if self._as_json:
            printing.json_line("standing", asdict(standing))
            return
        if not self._news:
            shares = ", ".join(f"{share:.0%}" for share in standing.shares)
            self._news.append(f"{len(standing.shares)} running ({shares})")
        left = "" if not standing.left_s else f"; about {duration_text(standing.left_s)} left"
        counts = standing.counts
        settled = counts.before + counts.done + counts.failed
        printing.line("\n".join(f"[{settled}/{counts.jobs}] {news}" for news in self._news) + left)
        self._news.clear()

    def ended(self, counts: Counts, *, store: Path, was_stopped: bool) -> None:
        """Print the final counts."""
        left = counts.jobs - counts.before - counts.done - counts.failed
        if self._as_json:
            printing.json_line("ended", {**asdict(counts), "left": left, "stopped": was_stopped})
            return
        parts = [f"{counts.done} done"]
        parts += [f"{counts.before} done before"] * bool(counts.before)
        parts += [f"{counts.failed} failed"] * bool(counts.failed)
        parts += [f"{left} not done"] * bool(left)
        printing.line(f"{'stopped: ' * was_stopped}of {counts.jobs} jobs {', '.join(parts)}; kept in {store}")
        if left or counts.failed:
            printing.line("repeat the command to compute the remaining jobs and to retry failed ones")


def duration_text(seconds: float) -> str:
    """`40 s`, `12 min` or `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:,.1f} h"


def _which(job: Job) -> dict[str, object]:
    return {"preset": job.preset, "cell": job.cell, "seed": job.seed, "digest": job.digest}
