"""Draw the layers of the target layout: docs/images/target-layout.png. See docs/decisions/0033-the-target-layout.md."""

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.patches import FancyBboxPatch

OUT = Path(__file__).resolve().parents[1] / "docs/images/target-layout.png"

PURE, ACTS, OUTSIDE = "#dcecf9", "#fde8cf", "#e9e9e9"
LAYERS: list[list[tuple[str, str, str]]] = [
    [("papers", "unstale_papers: presets, printed numbers, results", OUTSIDE)],
    [("cli", "parse, call one function, print", ACTS)],
    [("report", "recorded runs as a page", ACTS), ("privacy", "audit of inversions", ACTS)],
    [("runtime", "sockets, threads: server, client, injector", ACTS), ("simulator", "virtual time and network", ACTS)],
    [("protocol", "the server without sockets and threads", PURE), ("workers", "one pool: local, Ray", ACTS)],
    [("config", "file, options; build(settings)", ACTS), ("journal", "a run on disk", ACTS)],
    [
        ("coordinator", "tasks and rounds", PURE),
        ("learner", "the next version", PURE),
        ("toxics", "faults of a network", PURE),
        ("metrics", "what is counted", PURE),
    ],
    [
        ("training", "local training", PURE),
        ("policies", "updates to one step", PURE),
        ("compensators", "stale to fresh", PURE),
    ],
    [("settings", "one declaration per setting; no torch", PURE), ("unstale_proto", "the wire contract", PURE)],
]
WIDTH, HEIGHT, GAP = 12.0, 1.0, 0.25


def main() -> None:
    figure, axes = plt.subplots(figsize=(11, 8.2), dpi=110)
    for row, layer in enumerate(reversed(LAYERS)):
        width = (WIDTH - GAP * (len(layer) - 1)) / len(layer)
        for column, (name, about, colour) in enumerate(layer):
            left, bottom = column * (width + GAP), row * (HEIGHT + GAP)
            box = FancyBboxPatch(
                (left, bottom), width, HEIGHT, boxstyle="round,pad=0,rounding_size=0.12", fc=colour, ec="#555555"
            )
            axes.add_patch(box)
            axes.text(left + width / 2, bottom + 0.64, name, ha="center", va="center", fontsize=12, weight="bold")
            axes.text(left + width / 2, bottom + 0.28, about, ha="center", va="center", fontsize=9)
    axes.annotate(
        "",
        (-0.5, 0),
        (-0.5, len(LAYERS) * (HEIGHT + GAP) - GAP),
        arrowprops={"arrowstyle": "->", "lw": 1.5, "color": "#555555"},
    )
    axes.text(-0.8, 4.5, "imports", rotation=90, ha="center", va="center", fontsize=10)
    for number, (words, colour) in enumerate((("pure: no socket, thread, clock or file", PURE), ("acts", ACTS))):
        axes.add_patch(
            FancyBboxPatch((number * 4.6, -0.75), 0.4, 0.3, boxstyle="square,pad=0", fc=colour, ec="#555555")
        )
        axes.text(number * 4.6 + 0.6, -0.6, words, va="center", fontsize=9)
    axes.set_xlim(-1.1, WIDTH + 0.1)
    axes.set_ylim(-1, len(LAYERS) * (HEIGHT + GAP))
    axes.axis("off")
    figure.savefig(OUT, bbox_inches="tight", facecolor="white")


if __name__ == "__main__":
    main()
