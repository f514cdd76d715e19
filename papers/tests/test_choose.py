"""The choice of cells, and the axes that determine their differing settings."""

from typing import Any

import pytest

from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale_papers.choose import chosen, common, data_sets, differences
from unstale_papers.preset import Cell, Preset


def cell(method: str, beta: str, **settings: Any) -> Cell:
    return Cell(labels={"beta": beta, "method": method}, settings=Settings(**settings))


def preset(name: str, *cells: Cell) -> Preset:
    return Preset(
        name=name, paper="FedHist", item="", title="", cells=cells, measures=(), rows=("method",), columns=("beta",),
        sources=(),
    )  # fmt: skip


FOUR = preset(
    "four",
    *(
        cell(
            method,
            beta,
            rounds=9,
            policy={"name": policy, "settings": own},
            partition={"alpha": float(beta)},
            training={"mu": 2.0} if (method, beta) == ("GI (ours)", "1.0") else {},
        )
        for beta in ("0.3", "1.0")
        for method, policy, own in (("FedAvg", "fedavg", {}), ("GI (ours)", "fedbuff", {"alpha": None}))
    ),
)
OTHER = preset("other", cell("FedAvg", "IID"))


def names(text: str | None, *presets: Preset) -> list[str]:
    return [one.name for _, cells in chosen(presets, text) for one in cells]


def test_a_label_may_contain_a_comma() -> None:
    waits = preset("waits", *(cell(method, "1") for method in ("FedAvg (S=50, waits)", "FedAvg", "MIFA")))
    assert names("method='FedAvg (S=50, waits)'", waits) == ["beta=1 method=FedAvg (S=50, waits)"]
    both = names("method='MIFA,FedAvg (S=50, waits)'", waits)
    assert both == ["beta=1 method=FedAvg (S=50, waits)", "beta=1 method=MIFA"]
    with pytest.raises(UserError, match=r"method=FedAvg \(S=50; did you mean"):
        names("method='FedAvg (S=50,FedAvg'", waits)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ["0.3 FedAvg", "0.3 GI (ours)", "1.0 FedAvg", "1.0 GI (ours)"]),
        ("", ["0.3 FedAvg", "0.3 GI (ours)", "1.0 FedAvg", "1.0 GI (ours)"]),
        ("beta=0.3", ["0.3 FedAvg", "0.3 GI (ours)"]),
        ("method=FedAvg beta=1.0,0.3", ["0.3 FedAvg", "1.0 FedAvg"]),
        ("'method=GI (ours)' beta=1.0", ["1.0 GI (ours)"]),
        ("method='GI (ours),FedAvg' beta=1.0", ["1.0 FedAvg", "1.0 GI (ours)"]),
    ],
)
def test_cells_are_chosen_by_their_labels(text: str | None, expected: list[str]) -> None:
    assert [name.replace("beta=", "").replace("method=", "") for name in names(text, FOUR)] == expected


def test_presets_without_a_chosen_cell_are_left_out() -> None:
    assert [one.name for one, _ in chosen([FOUR, OTHER], "beta=IID")] == ["other"]
    assert len(names("method=FedAvg", FOUR, OTHER)) == 3


def test_a_combination_of_labels_without_a_cell_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        chosen([FOUR, OTHER], "beta=IID 'method=GI (ours)'")
    assert str(caught.value) == (
        """--cells is "beta=IID 'method=GI (ours)'", and no cell is all of that; leave a part of it out"""
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("method=GI", "method=GI; put a value with a space in quotes, as in method='GI (ours)'"),
        (
            "method=GI (ours)",
            "'(ours)', expected AXIS=VALUE,VALUE, such as method=FedHist,FedAvg; put a value with a space in quotes",
        ),
    ],
)
def test_a_label_cut_at_its_space_is_refused_with_advice(text: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        chosen([FOUR], text)
    assert str(caught.value) == f"--cells has {expected}"


def test_differing_settings_are_grouped_by_the_fewest_axes_that_determine_them() -> None:
    assert common(FOUR.cells) == {"rounds": 9, "measurement": "run"}
    by = {one.axes: one.rows for one in differences(FOUR.cells)}
    assert by == {
        # 0.3 is the default, but is listed beside the other value.
        ("beta",): {("0.3",): {"partition.alpha": 0.3}, ("1.0",): {"partition.alpha": 1.0}},
        ("method",): {
            ("FedAvg",): {"policy.name": "fedavg"},
            ("GI (ours)",): {"policy.name": "fedbuff", "policy.settings.alpha": None},
        },
        ("beta", "method"): {
            ("0.3", "FedAvg"): {},
            ("0.3", "GI (ours)"): {},
            ("1.0", "FedAvg"): {},
            ("1.0", "GI (ours)"): {"training.mu": 2.0},
        },
    }


def test_each_data_set_is_listed_once_including_later_ones() -> None:
    later = {"name": "svhn", "rate": 0.5}
    cells = [cell("a", "1"), cell("b", "1", data={"name": "mnist", "variant": later}), cell("c", "1")]
    assert data_sets(cells) == ["digits", "mnist", "svhn"]
