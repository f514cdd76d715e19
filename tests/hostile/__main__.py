"""Attacks on real servers: every attack once, one of them, or combinations that a seed draws.

python -m tests.hostile                          every attack once, with its usual server
python -m tests.hostile --attack silent-connections --scene keyed
python -m tests.hostile --seed 7 --count 10      ten combinations of attacks, drawn from the seed
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from hostile import table
from hostile.attacks import ALL
from hostile.attacks.attack import Attack
from hostile.play import Play, Played, draws
from hostile.scenes import SCENES, Scene

TOGETHER_MAX = 3
STRENGTH_MIN, STRENGTH_MAX = 0.2, 1.5


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def each_once(name: str | None, scene: str | None) -> Iterator[tuple[Scene, list[list[Attack]]]]:
    """Each attack alone in its usual scene, or only the named ones."""
    by_scene: dict[str, list[list[Attack]]] = {}
    for attack in ALL.values():
        if name in (None, attack.name):
            by_scene.setdefault(scene or attack.scenes[0], []).append([attack])
    for chosen, groups in by_scene.items():
        yield SCENES[chosen], groups


def drawn(seed: int, number: int) -> tuple[Scene, Sequence[Attack], float]:
    """The scene of a combination, attacks at the same time, and their strength."""
    rng = draws(seed, number)
    scene = SCENES[rng.choice(list(SCENES))]
    possible = [name for name, attack in ALL.items() if scene.name in attack.scenes]
    count = min(len(possible), int(rng.integers(1, TOGETHER_MAX + 1)))
    names = rng.choice(possible, size=count, replace=False)
    return scene, [ALL[name] for name in names], float(rng.uniform(STRENGTH_MIN, STRENGTH_MAX))


def combinations(seed: int, count: int, folder: Path, longer: float) -> Iterator[Played]:
    for number in range(count):
        scene, attacks, strength = drawn(seed, number)
        say(f"combination {number}: {' + '.join(one.name for one in attacks)}, strength {strength:.2f}")
        play = Play(scene, folder / str(number), seed=seed + number, longer=longer, strength=strength)
        yield from play.run([attacks])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.hostile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="draw combinations of attacks from this seed")
    parser.add_argument("--count", type=int, default=10, help="how many combinations")
    parser.add_argument("--attack", choices=ALL, help="this attack alone")
    parser.add_argument("--scene", choices=SCENES, help="the server in place of the usual one")
    parser.add_argument("--longer", type=float, default=1.0, help="multiplies the times of all phases")
    parser.add_argument("--list", action="store_true", help="list the attacks and end")
    given = parser.parse_args()
    if given.list:
        for attack in ALL.values():
            say(f"{attack.name:<24}{attack.about} ({', '.join(attack.scenes)})")
        return 0
    failed = 0
    with tempfile.TemporaryDirectory(prefix="unstale-hostile-") as name:
        folder = Path(name)
        say(table.heading())
        for played in _played(given, folder):
            failed += bool(played.wrong or played.is_slow)
            for line in table.lines(played):
                say(line)
            if played.is_slow:
                say(f"    FAILED {played.name}, {played.scene}: honest updates a second are less than half")
    say(f"{failed} failed")
    return 1 if failed else 0


def _played(given: argparse.Namespace, folder: Path) -> Iterator[Played]:
    if given.seed is not None:
        yield from combinations(given.seed, given.count, folder, given.longer)
        return
    for scene, groups in each_once(given.attack, given.scene):
        yield from Play(scene, folder, longer=given.longer).run(groups)


if __name__ == "__main__":
    sys.exit(main())
