"""What a server that inverts could see: stale updates of a played run are inverted, and held against the clients' data.

Legend: r reconstructed examples, X the shape of one example, C classes.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softmax

from unstale.compensators import Compensated, Compensator, FreshUpdate, Made, Outcome, StaleRound, StaleUpdate
from unstale.compensators.compensator import UNCHANGED
from unstale.compensators.inversion.inversions import Inversions
from unstale.compensators.inversion.settings import InversionSettings
from unstale.compensators.inversion.state import Inversion
from unstale.compensators.registry import describe
from unstale.config.compensation import compensator
from unstale.config.settings import Settings
from unstale.config.workspace import Workspace
from unstale.errors import UserError
from unstale.metrics.progress import Progress
from unstale.privacy import image_similarity
from unstale.privacy.findings import POOLS, Findings, Matches, findings, label_distance
from unstale.privacy.image_similarity import Measure
from unstale.seeds import Stream, stream
from unstale.simulator.assemble import simulation
from unstale.simulator.client_examples import ClientExamples

INVERSION = "gradient-inversion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconstructed:
    """What one stale update gave away."""

    client_id: int
    round: int  # whose update it is, from 1
    staleness: int  # rounds
    disparity: Sequence[float]  # before each iteration
    pixels_rX: Tensor  # the examples, in [0, 1]
    certainty: Sequence[float]  # what the label of each says of its class, [r]
    closest: Mapping[
        str, Tensor
    ]  # by pool, the example there that is closest to each one, by the first measure, [r, X]
    matches: Matches  # how close they are


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What was found."""

    findings: Findings
    reconstructed: Sequence[Reconstructed]
    measures: Sequence[Measure]  # that examples were compared by, in order
    notes: Sequence[str]  # sentences about what is left out


def audit(
    settings: Settings,
    rounds: Collection[int],
    *,
    updates_max: int,
    on_progress: Callable[[Progress], None] = lambda _: None,
    on_reconstructed: Callable[[Reconstructed], None] = lambda _: None,
) -> Audit:
    """Play a run up to the last of some rounds, and invert the stale updates of these.

    The run itself is not compensated; `compensator` says how the updates are inverted. rounds: from 1, the one that
    makes version 1. updates_max: that are inverted in all, the first to come. on_progress: as in `Simulation`.
    on_reconstructed: told of each. Raises UserError for what cannot be inverted or compared.
    """
    for number in rounds:
        if not 1 <= number <= settings.rounds:
            raise UserError(f"--at is {number}, expected 1 to {settings.rounds}, which is rounds")
    if settings.clients < 2:
        raise UserError("clients is 1, but reconstructions are held against the data of others; expected 2 or more")
    if settings.compensator.ray is not None:
        raise UserError(
            f"compensator.ray is {settings.compensator.ray!r}, but an audit inverts in its own process, expected null; "
            "leave it out"
        )
    name = settings.compensator.name
    if name == UNCHANGED:
        chosen = settings.compensator.model_copy(update={"name": INVERSION})
        settings = settings.model_copy(update={"compensator": chosen})
    elif not describe(name).inverts:
        raise UserError(
            f"compensator.name is {name!r}, which inverts nothing, expected {INVERSION}; leave it out for its defaults"
        )
    watches: list[_Watch] = []

    def watch(
        settings: Settings, workspace: Workspace, *, fresh_update: FreshUpdate | None = None
    ) -> Compensator[InversionSettings]:
        watches.append(_Watch(settings, workspace, fresh_update, rounds, updates_max, on_reconstructed))
        return watches[0]

    run = simulation(settings, on_progress=on_progress, compensator_of=watch)
    with suppress(_Enough):
        run.run()
    (watched,) = watches
    if not watched.reconstructed:
        numbers = ", ".join(map(str, sorted(rounds)))
        raise UserError(
            f"no update of round{'s' * (len(rounds) > 1)} {numbers} was stale, so there was nothing to invert; name "
            "later rounds, or a scenario whose clients are slower"
        )
    result = findings(
        [one.matches for one in watched.reconstructed], watched.measures, stream(settings.seed, Stream.INVERSION, 0)
    )
    return Audit(findings=result, reconstructed=watched.reconstructed, measures=watched.measures, notes=watched.notes)


class _Enough(Exception):  # noqa: N818  (nothing went wrong)
    """All was inverted that was to be: the run need not go on."""


class _Watch(Compensator[InversionSettings]):
    """Leaves updates as they are, and inverts those that are asked for on the side."""

    source = "ours"

    def __init__(
        self,
        settings: Settings,
        workspace: Workspace,
        fresh_update: FreshUpdate | None,
        rounds: Collection[int],
        updates_max: int,
        on_reconstructed: Callable[[Reconstructed], None],
    ) -> None:
        inverting = compensator(settings, workspace, fresh_update=fresh_update)
        assert inverting is not None
        assert isinstance(inverting.settings, InversionSettings)
        super().__init__(inverting.settings, inverting.context)
        self._inversions = Inversions(self.settings, self.context)
        self._client_examples = ClientExamples(workspace.division)
        self._rounds = frozenset(rounds)
        self._left = updates_max
        self._on_reconstructed = on_reconstructed
        self.measures, self.notes = _measures(workspace.dataset.input_shape)
        self.reconstructed: list[Reconstructed] = []

    def make(self, stale: StaleRound) -> Made:
        number = stale.version + 1
        if number in self._rounds:
            self._look(number, [update for update in stale.updates if update.staleness > 0][: self._left])
        if number >= max(self._rounds) or not self._left:
            raise _Enough
        return {}

    def take(self, stale: StaleRound, made: Made) -> Outcome:  # noqa: ARG002  (nothing is made)
        return Outcome(vectors={}, counts_as_fresh=(), updates=[Compensated() for _ in stale.updates])

    def _look(self, number: int, updates: Sequence[StaleUpdate]) -> None:
        self._left -= len(updates)
        inverted, disparities = self._invert(updates)
        for update, one, disparity in zip(updates, inverted, disparities, strict=True):
            self._inversions.remember(update.client_id, one.now.on_host())
            reconstructed = self._compared(number, update, one, disparity)
            self.reconstructed.append(reconstructed)
            self._on_reconstructed(reconstructed)

    def _invert(self, updates: Sequence[StaleUpdate]) -> tuple[list[Inversion], list[list[float]]]:
        """The updates of a round inverted together, and the disparity of each before each iteration."""
        try:
            ones = [self._inversions.begin(update) for update in updates]
            disparities: list[list[Tensor]] = [[] for _ in ones]
            while waiting := [index for index, one in enumerate(ones) if not one.is_over]:
                some = [index for index in waiting if ones[index].kind == ones[waiting[0]].kind]
                self._inversions.engine.iterate([ones[index] for index in some])
                for index in some:
                    disparities[index].append(ones[index].disparity)
        except torch.OutOfMemoryError:
            raise UserError(
                "the device's memory is too small to invert even one update at a time; lower "
                "compensator.settings.images_max, or give --device cpu"
            ) from None
        return ones, [torch.stack(of_one).tolist() if of_one else [] for of_one in disparities]

    def _compared(self, number: int, update: StaleUpdate, one: Inversion, disparity: Sequence[float]) -> Reconstructed:
        of_update = update.client_id, update.base_version, update.task_id
        every = (
            *self._client_examples.own_and_others(*of_update),
            *self._client_examples.own_and_others_of_its_classes(*of_update),
        )
        pools = {pool: examples for pool, examples in zip(POOLS, every, strict=True) if len(examples)}
        pixels_rX = self._client_examples.pixels(one.now.inputs_rX)
        certainty_rC = softmax(one.now.labels_rC.to("cpu", torch.float64), -1)
        closest = {
            measure.key: {pool: measure.closest(pixels_rX, pool_data.pixels_nX) for pool, pool_data in pools.items()}
            for measure in self.measures
        }
        first = closest[self.measures[0].key]
        shares_C = certainty_rC.mean(0).numpy()
        return Reconstructed(
            client_id=update.client_id,
            round=number,
            staleness=update.staleness,
            disparity=disparity,
            pixels_rX=pixels_rX,
            certainty=certainty_rC.max(1).values.tolist(),
            closest={pool: pools[pool].pixels_nX[which_r] for pool, (_, which_r) in first.items()},
            matches=Matches(
                client_id=update.client_id,
                labels=certainty_rC.argmax(1).tolist(),
                best={
                    key: {pool: best_r.double().numpy() for pool, (best_r, _) in by_pool.items()}
                    for key, by_pool in closest.items()
                },
                pool_examples={pool: len(pool_data) for pool, pool_data in pools.items()},
                label_distance={
                    pool: label_distance(shares_C, pool_data.labels_n) for pool, pool_data in pools.items()
                },
            ),
        )


def _measures(shape: Sequence[int]) -> tuple[list[Measure], list[str]]:
    """What examples of a shape are compared by, and sentences about what is left out."""
    measures, notes = [image_similarity.PSNR], []
    if image_similarity.is_image(shape):
        measures.append(image_similarity.SSIM)
    else:
        notes.append(
            f"SSIM is left out: examples of shape {tuple(shape)} are no images of {image_similarity.WINDOW} x "
            f"{image_similarity.WINDOW} pixels or more"
        )
    try:
        measures.append(image_similarity.lpips(shape))
    except image_similarity.LeftOut as reason:
        notes.append(str(reason))
    return measures, notes
