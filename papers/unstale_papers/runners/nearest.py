"""Similarity of reconstructed examples to real ones of their client, and to as many of others.

Figure 5 of the paper.
Source: Gradient inversion (Wang & Gao, 2023), docs/methods/measures.md#inversion

Legend: r reconstructed examples, X the shape of one example.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unstale.config.settings import Settings
from unstale.privacy import image_similarity
from unstale.privacy.image_similarity import Measure
from unstale.simulator.client_examples import ClientExamples
from unstale_client.net.clock import now_s
from unstale_papers.record import Record
from unstale_papers.runners.inverting import inverted
from unstale_papers.runners.stale_updates import played


def measure(
    settings: Settings,
    options: Mapping[str, Any],  # noqa: ARG001  (there are none)
    *,
    on_progress: Callable[[float], None],
) -> Record:
    """Invert a late client's update from the last model of a run, and find the closest real examples.

    found: for each available measure `M to own examples` and `M to others' examples`, the mean over reconstructed
    examples of the similarity to the closest one; `notes`, sentences on unavailable measures. `unstale inversion audit`
    measures more, of the updates of a run.
    """
    started_s = now_s()
    run = played(settings, [settings.rounds])
    update = run.update(run.late_client(), settings.rounds, task=settings.rounds)
    one, _ = inverted(run.inverting(), update, on_iteration=on_progress)
    client_examples = ClientExamples(run.context.client_data)
    pixels_rX = client_examples.pixels(one.now.inputs_rX)
    own, others = client_examples.own_and_others(update.client_id, update.base_version, update.task_id)
    measures, notes = measures_of(run.context.dataset.input_shape)
    return Record(
        found={
            **{
                f"{how.name} to {whose} examples": how.closest(pixels_rX, pool.pixels_nX)[0].mean().item()
                for how in measures
                for whose, pool in (("own", own), ("others'", others))
            },
            "notes": notes,
        },
        seconds=now_s() - started_s,
    )


def measures_of(shape: Sequence[int]) -> tuple[list[Measure], list[str]]:
    """Available measures for examples of a shape, and the reasons for missing ones."""
    found, notes = [image_similarity.PSNR], []
    if image_similarity.is_image(shape):
        found.append(image_similarity.SSIM)
    try:
        found.append(image_similarity.lpips(shape))
    except image_similarity.LeftOut as reason:
        notes.append(str(reason))
    return found, notes
