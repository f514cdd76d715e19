"""Attacks against a stage: calm, attack, calm; the measurements, and the violations."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hostile.attacks.attack import ACCURACY_MIN, Attack, Facts
from hostile.gauges import Watch, memory_bytes, page
from hostile.scenes import MEMORY_BYTES_MAX, Scene
from hostile.stage import Stage
from hostile.target import Target
from unstale.seeds import Generator, Stream, stream
from unstale_client.net.clock import now_s

STOP_S = 30.0
RATIO_MIN = 0.5
LOG_BYTES_PER_S_MAX = 64 * 1024
HEALTH_S = 10.0
WEIGHT_MAX = 0.99
MEMORY_OVER = 1.1  # bytes of a loopback connection between two memory samples
_PURPOSE = 7  # of the draws, behind the stream of toxics; no toxic has this number in the second place


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One attack, or several at a time.

    Attributes:
        name: of the attacks.
        scene: of the attack.
        before_per_s: accepted updates of honest clients a second, before the attack.
        during_per_s: during it.
        after_per_s: after it.
        memory_bytes: of the server at its peak.
        taken_bytes: of these, in addition to those before.
        log_bytes_per_s: of the server's log during the attack.
        descriptors: maximum of open ones of the server.
        health_s: the longest response time of /healthz.
        facts: the attack's own figures.
        wrong: violations, one sentence each; empty if there are none.
    """

    name: str
    scene: str
    before_per_s: float = 0.0
    during_per_s: float = 0.0
    after_per_s: float = 0.0
    memory_bytes: int = 0
    taken_bytes: int = 0
    log_bytes_per_s: float = 0.0
    descriptors: int = 0
    health_s: float = 0.0
    facts: Facts = field(default_factory=dict)
    wrong: Sequence[str] = ()

    @property
    def is_slow(self) -> bool:
        """Whether the rate of honest updates was less than half of that without the attack."""
        return bool(self.before_per_s or self.after_per_s) and self.ratio < RATIO_MIN

    @property
    def ratio(self) -> float:
        """The rate of honest updates during the attack over that without it."""
        calm = (self.before_per_s + self.after_per_s) / 2
        return self.during_per_s / calm if calm else 0.0


def draws(seed: int, number: int) -> Generator:
    return stream(seed, Stream.TOXICS, number, _PURPOSE)


class Play:
    """Runs attacks in one scene, on a new stage whenever the previous one did not survive.

    Args:
        scene: of all attacks.
        folder: for the files of the processes.
        seed: of the run, and of the attacks' draws.
        longer: multiplies the times of the scene.
        strength: of the attacks.
    """

    def __init__(
        self, scene: Scene, folder: Path, *, seed: int = 0, longer: float = 1.0, strength: float = 1.0
    ) -> None:
        self._scene = scene
        self._folder = folder
        self._seed = seed
        self._longer = longer
        self._strength = strength
        self._stages = self._attacks = 0

    def run(self, groups: Sequence[Sequence[Attack]]) -> Iterator[Played]:
        """Run groups of attacks one after the other; those of a group concurrently. At the end of a stage the
        recorded run is checked, which gives a row without an attack."""
        waiting = list(groups)
        while waiting:
            self._stages += 1
            folder = self._folder / f"{self._scene.name}-{self._stages}"
            folder.mkdir(parents=True)
            with Stage(self._scene, folder, self._seed) as stage:
                held = True
                while waiting and held:
                    played = self._one(stage, waiting.pop(0))
                    held = not played.wrong  # a broken stage is not reused for the next attack
                    yield played
                if stage.server.is_alive:
                    yield Played(name="(end)", scene=self._scene.name, wrong=stage.end())

    def _one(self, stage: Stage, attacks: Sequence[Attack]) -> Played:
        calm_s, attack_s = self._scene.calm_s * self._longer, self._scene.attack_s * self._longer
        before = self._rate(stage, calm_s)
        memory, log = memory_bytes(stage.server.pid), stage.log_bytes
        self._attacks += 1
        facts: dict[str, float] = {}
        errors: list[str] = []
        target = self._target(stage, now_s() + attack_s)
        threads = [threading.Thread(target=_attack, args=(attack, target, facts, errors)) for attack in attacks]
        started_s = now_s()
        with Watch(stage.server.pid, stage.http_address) as watch:
            for thread in threads:
                thread.start()
            first_half = self._rate(stage, attack_s / 2)
            second_half = self._rate(stage, attack_s / 2)
            lasted_s = now_s() - started_s
            logged_bytes = stage.log_bytes - log
        target.stopped.set()
        for thread in threads:
            thread.join(STOP_S)
            assert not thread.is_alive(), "an attack does not end"
        self._rate(stage, self._scene.settle_s)
        after = self._rate(stage, calm_s)
        peak = watch.peak
        taken = max(0, peak.memory_bytes - memory)
        wrong = errors + [
            sentence
            for attack in attacks
            for sentence in _violations(attack, stage, facts, taken=taken, late=second_half, after=after)
        ]
        if peak.memory_bytes > MEMORY_OVER * MEMORY_BYTES_MAX:
            wrong.append(
                f"the server used {peak.memory_bytes / 1e6:.0f} MB, expected at most {MEMORY_OVER} times "
                f"server.memory_bytes_max, {MEMORY_BYTES_MAX / 1e6:.0f} MB"
            )
        if 2 * peak.health_missed > peak.health_asked:
            wrong.append(f"/healthz did not answer {peak.health_missed} of {peak.health_asked} times")
        if logged_bytes / lasted_s > LOG_BYTES_PER_S_MAX:
            wrong.append(f"the server logged {logged_bytes / lasted_s / 1e3:.0f} KB a second")
        return Played(
            name=" + ".join(attack.name for attack in attacks),
            scene=self._scene.name,
            before_per_s=before,
            during_per_s=(first_half + second_half) / 2,
            after_per_s=after,
            memory_bytes=peak.memory_bytes,
            taken_bytes=taken,
            log_bytes_per_s=logged_bytes / lasted_s,
            descriptors=peak.descriptors,
            health_s=peak.health_s,
            facts=facts,
            wrong=tuple(dict.fromkeys(wrong)),
        )

    def _target(self, stage: Stage, until_s: float) -> Target:
        return Target(
            address=stage.address,
            http_address=stage.http_address,
            client_ids=stage.client_ids,
            identities=stage.identities,
            source=f"127.0.1.{1 + self._attacks % 250}",
            until_s=until_s,
            draws=draws(self._seed, self._stages),
            strength=self._strength,
        )

    def _rate(self, stage: Stage, seconds: float) -> float:
        """Accepted updates of honest clients per second, over this time; shorter when the server ends."""
        if not seconds:
            return 0.0
        before, started_s = stage.accepted(), now_s()
        pause = threading.Event()
        while stage.server.is_alive and now_s() < started_s + seconds:
            pause.wait(0.05)
        lasted_s = now_s() - started_s
        return max(0.0, stage.accepted() - before) / max(lasted_s, seconds)


def _attack(attack: Attack, target: Target, facts: dict[str, float], errors: list[str]) -> None:
    try:
        facts |= attack.run(target)
    except Exception as error:  # noqa: BLE001  (an attack that fails is a row of the table)
        errors.append(f"the attack {attack.name} failed: {error!r}")


def _violations(attack: Attack, stage: Stage, facts: Facts, *, taken: int, late: float, after: float) -> Iterator[str]:
    """The violations during an attack."""
    if not stage.server.is_alive:
        yield f"the server ended with {stage.server.process.returncode}: {stage.server.last_line}"
        return
    if attack.honest_rounds and not late:
        yield "no update of an honest client was accepted in the second half of the attack"
    if attack.honest_rounds and not after:
        yield "no update of an honest client was accepted after the attack"
    if taken > attack.memory_bytes_max:
        yield (f"the server took {taken / 1e6:.0f} MB more, expected at most {attack.memory_bytes_max / 1e6:.0f}")
    for name in attack.none_of:
        if facts.get(name):
            yield f"{facts[name]:g} {name}, expected none"
    if attack.honest_rounds and (blamed := stage.blamed()):
        yield f"honest clients were refused: {blamed}"
    if attack.learns and (weight := stage.weight_of_the_hostile()) > WEIGHT_MAX:
        yield f"an update of a hostile client had the weight {weight:g}, expected at most {WEIGHT_MAX}"
    accuracy = stage.accuracy()
    if attack.learns and (accuracy is None or accuracy < ACCURACY_MIN):
        yield f"the accuracy is {accuracy}, expected at least {ACCURACY_MIN}"
    if attack.logged is not None and attack.logged not in stage.server.log.read_text(errors="replace"):
        yield f"the log does not say {attack.logged!r}"
    if attack.name == "unasked-evaluation" and (taken := stage.evaluations_of_the_hostile()):
        yield f"{taken} evaluations that were not asked for were taken"
    if page(stage.http_address, "/healthz", HEALTH_S) is None:
        yield "/healthz does not answer after the attack"
