"""Groups of runs and their labels."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from report.made import curve, run
from unstale.errors import UserError
from unstale.journal.rundir import decides
from unstale.report.groups import GROUPS_MAX, differing, grouped
from unstale.report.recorded import Run, read

Make = Callable[..., Run]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def one(name: str, **changes: Any) -> Run:
        return read(run(tmp_path / name, curve(0.5), **changes), name)

    return one


FEDBUFF, DYNSGD = {"name": "fedbuff"}, {"name": "dynsgd"}


def test_runs_that_differ_only_in_their_seed_form_a_group(make: Make) -> None:
    runs = [make("a", seed=0, policy=FEDBUFF), make("b", seed=0, policy=DYNSGD), make("c", seed=1, policy=FEDBUFF)]
    groups = grouped(runs)
    assert [(group.label, [one.name for one in group.runs]) for group in groups] == [
        ("fedbuff", ["a", "c"]),
        ("dynsgd", ["b"]),
    ]
    assert groups[0].legend == "fedbuff (n = 2)"


def test_keys_that_cannot_change_the_model_do_not_separate_groups(make: Make) -> None:
    assert len(grouped([make("a"), make("b", server={"heartbeat_s": 1.0}, evaluate_every=3)])) == 1
    assert len(grouped([make("c"), make("d", server={"norm_max": 3.0})])) == 2


def test_groups_are_named_by_their_differences(make: Make) -> None:
    runs = [
        make("a", policy={"name": "fedasync", "settings": {"alpha": 0.5}}),
        make("b", policy=DYNSGD, scenario={"name": "lognormal"}),
    ]
    assert [group.label for group in grouped(runs)] == ["fedasync, alpha 0.5, no scenario", "dynsgd, lognormal"]


def test_by_pools_other_differences_and_lists_them(make: Make) -> None:
    runs = [make("a", rounds=2), make("b", rounds=3), make("c", rounds=2, policy=DYNSGD)]
    groups = grouped(runs, by=["policy"])
    assert [(group.label, len(group.runs), group.pooled) for group in groups] == [
        ("fedbuff", 2, ["rounds"]),
        ("dynsgd", 1, []),
    ]


def test_a_single_run_is_called_by_its_name(make: Make) -> None:
    assert [group.legend for group in grouped([make("mine")])] == ["mine"]


def test_labels_name_groups_in_their_order(make: Make) -> None:
    runs = [make("a"), make("b", policy=DYNSGD)]
    assert [group.label for group in grouped(runs, labels=["ours", "$x_1$"])] == ["ours", "$x_1$"]
    with pytest.raises(UserError, match="--label is given 1 times, expected one for each of the 2 groups"):
        grouped(runs, labels=["ours"])
    with pytest.raises(UserError, match="--label is 'x', expected a different name for each group"):
        grouped(runs, labels=["x", "x"])


def test_an_unknown_key_is_reported_with_the_nearest(make: Make) -> None:
    with pytest.raises(UserError, match=r"unknown key 'policy\.nam'; did you mean 'policy\.name'"):
        grouped([make("a")], by=["policy.nam"])


def test_more_groups_than_colours_are_refused(make: Make) -> None:
    runs = [make(str(number), rounds=number + 1) for number in range(GROUPS_MAX + 1)]
    with pytest.raises(UserError, match=f"form {GROUPS_MAX + 1} groups by rounds, expected at most"):
        grouped(runs)


def test_a_key_that_only_one_run_has_is_a_difference() -> None:
    assert differing([{"seed": "1", "policy.settings.beta": "2"}, {"seed": "1"}]) == ["policy.settings.beta"]
    assert decides("policy.settings.beta") and decides("seed") and not decides("run.directory")
