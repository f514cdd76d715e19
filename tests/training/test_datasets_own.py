"""Data sets of users: folders of images, and code that makes a data set."""

import sys
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch
from PIL import Image

from support.archives import open_archive
from unstale.errors import UserError
from unstale.training.datasets import Dataset, Normalisation, Split, load

CIFAR = Path(__file__).parents[2].parent / "shared" / "data" / "cifar10-jpeg.tar.xz"


def draw(path: Path, colour, mode="L", size=(3, 2)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


@pytest.fixture
def cats_and_dogs(tmp_path):
    """Grey images 3 wide and 2 high; with different colours."""
    folder = tmp_path / "pets"
    draw(folder / "train" / "dog" / "1.png", 30)
    draw(folder / "train" / "cat" / "b.png", 20)
    draw(folder / "train" / "cat" / "a.PNG", 10)
    draw(folder / "test" / "dog" / "9.png", 40)
    (folder / "train" / "cat" / "notes.txt").write_text("not an image")
    (folder / "train" / "README").write_text("not a class")
    (folder / "train" / ".checkpoints").mkdir()  # hidden, and not a class either
    return folder


def test_classes_and_files_are_read_in_sorted_order(cats_and_dogs):
    dataset = load("folder", cats_and_dogs, normalise="raw")
    assert (dataset.name, dataset.classes, dataset.input_shape) == ("pets", 2, (1, 2, 3))
    assert dataset.train_examples()[:, 0, 0, 0].tolist() == [10, 20, 30]
    assert dataset.train.labels_N.tolist() == [0, 0, 1]
    assert dataset.test_examples()[:, 0, 1, 2].tolist() == [40]
    assert dataset.test.labels_N.tolist() == [1]


def test_one_colour_image_makes_all_of_them_colour(cats_and_dogs):
    draw(cats_and_dogs / "train" / "dog" / "2.jpg", (255, 0, 0), mode="RGB")
    draw(cats_and_dogs / "test" / "cat" / "3.png", (1, 2, 3, 128), mode="RGBA")
    dataset = load("folder", cats_and_dogs, normalise="raw")
    assert dataset.input_shape == (3, 2, 3)
    assert dataset.train_examples()[0, :, 0, 0].tolist() == [10, 10, 10]
    assert dataset.train_examples()[3, :, 0, 0].tolist() == pytest.approx([255, 0, 0], abs=3)
    assert dataset.test_examples()[:, :, 0, 0].tolist() == [[1, 2, 3], [40, 40, 40]]


def test_a_folder_that_is_none_of_images_is_refused(tmp_path, cats_and_dogs):
    expected = "train/<class>/ and test/<class>/ with .png or .jpg images"
    for path, sentence in (
        (tmp_path / "nowhere", f"{tmp_path}/nowhere: no such folder; expected {expected}"),
        (tmp_path, f"{tmp_path}: has 0 classes in train, expected two or more as {expected}"),
    ):
        with pytest.raises(UserError) as caught:
            load("folder", path)
        assert str(caught.value) == sentence
    (cats_and_dogs / "test" / "dog" / "9.png").unlink()
    with pytest.raises(UserError, match=r"pets: has no image in test; expected train"):
        load("folder", cats_and_dogs)
    draw(cats_and_dogs / "test" / "wolf" / "1.png", 1)
    with pytest.raises(UserError, match=r"pets: has class 'wolf' in test, but not in train"):
        load("folder", cats_and_dogs)
    with pytest.raises(UserError, match=r"^data set 'folder' needs a path to a folder with train/<class>/"):
        load("folder")


def test_an_image_that_does_not_fit_is_named(cats_and_dogs):
    odd = cats_and_dogs / "train" / "dog" / "odd.png"
    draw(odd, 5, size=(4, 2))
    with pytest.raises(UserError, match=r"odd.png: has 4x2 pixels, but .*a.PNG 3x2; expected images of one"):
        load("folder", cats_and_dogs)
    draw(odd, 5, mode="I;16")
    with pytest.raises(UserError, match=r"odd.png: has more than 8 bits a channel"):
        load("folder", cats_and_dogs)
    draw(odd, 0, mode="1", size=(5000, 1))
    with pytest.raises(UserError, match=r"odd.png: has 5000x1 pixels, expected at most 4096x4096"):
        load("folder", cats_and_dogs)
    odd.write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    with pytest.raises(UserError, match=r"odd.png: cannot be read as an image"):
        load("folder", cats_and_dogs)


@pytest.mark.skipif(not CIFAR.is_file(), reason="needs cifar10-jpeg.tar.xz in ../shared/data beside the checkout")
def test_some_of_cifar10_as_a_folder(tmp_path):
    wanted = {("test", "airplane"): 20, ("test", "automobile"): 20, ("train", "airplane"): 30}
    wanted["train", "automobile"] = 30
    with open_archive(CIFAR) as archive:
        for member in archive:
            place = tuple(member.name.split("/")[:2])
            if member.isfile() and wanted.get(place):
                wanted[place] -= 1
                archive.extract(member, tmp_path)
            if not any(wanted.values()):
                break
    dataset = load("folder", tmp_path)
    assert dataset.input_shape == (3, 32, 32)
    assert dataset.train.labels_N.tolist() == [0] * 30 + [1] * 30
    assert dataset.test.labels_N.tolist() == [0] * 20 + [1] * 20
    assert dataset.train_examples().mean().item() == pytest.approx(0, abs=1e-5)


def made_of(*, train=MappingProxyType({}), test=MappingProxyType({}), **changes):
    """A data set, with changes to its arguments and to those of its splits."""
    splits = {
        "train": Split(**{"stored_NX": torch.zeros(3, 4), "labels_N": torch.tensor([0, 1, 1]), **train}),
        "test": Split(**{"stored_NX": torch.ones(1, 4), "labels_N": torch.tensor([1]), **test}),
    }
    return Dataset(**{"name": "mine", "classes": 2, **splits, **changes})


WRONG = [
    ({"classes": 1}, "has 1 classes, expected at least 2"),
    (
        {"train": {"stored_NX": torch.zeros(3, 4, dtype=torch.float64)}},
        "has training examples of float64 [3, 4], expected uint8 or float32 [N, ...] with N >= 1",
    ),
    (
        {"test": {"stored_NX": torch.zeros(0, 4)}},
        "has test examples of float32 [0, 4], expected uint8 or float32 [N, ...] with N >= 1",
    ),
    ({"test": {"stored_NX": torch.full((1, 4), torch.nan)}}, "has test examples with NaN or infinity"),
    (
        {"train": {"labels_N": torch.tensor([0, 1])}},
        "has training labels of int64 [2], expected int64 [3], one for each example",
    ),
    (
        {"test": {"labels_N": torch.tensor([1.0])}},
        "has test labels of float32 [1], expected int64 [1], one for each example",
    ),
    ({"test": {"labels_N": torch.tensor([2])}}, "has test labels from 2 to 2, expected 0 to 1"),
    ({"train": {"labels_N": torch.tensor([0, -1, 1])}}, "has training labels from -1 to 1, expected 0 to 1"),
    (
        {"train": {"groups_N": torch.tensor([5])}},
        "has training groups of int64 [1], expected int64 [3], one for each example",
    ),
    (
        {"test": {"stored_NX": torch.ones(1, 5)}},
        "has training examples of float32 [4], but test examples of float32 [5]",
    ),
    (
        {"normalisation": Normalisation(mean_C=(0.5, 0.5), std_C=(1.0, 1.0))},
        "has means [0.5, 0.5] and deviations [1.0, 1.0], expected one for each of 4 channels",
    ),
]


@pytest.mark.parametrize(("changes", "sentence"), WRONG)
def test_a_data_set_whose_parts_do_not_fit_together_cannot_be_made(changes, sentence):
    with pytest.raises(UserError) as caught:
        made_of(**changes)
    assert str(caught.value) == f"data set 'mine' {sentence}"


MODULE = """
import torch
from unstale.training.datasets import Dataset, Split

def plain():
    return Dataset(
        name="mine",
        classes=2,
        train=Split(stored_NX=torch.zeros(3, 4), labels_N=torch.tensor([0, 1, 1])),
        test=Split(stored_NX=torch.ones(1, 4), labels_N=torch.tensor([1])),
    )

asked = {}

def asks(*, cache, download, path=None, normalise):
    asked.update(cache=cache, download=download, path=path, normalise=normalise)
    return plain()

def takes_anything(**options):
    asked.update(options)
    return plain()

def wrong():
    return [1, 2]

def needs(root):
    return plain()

number = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "my_data.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("my_data", None)


def test_a_factory_makes_the_data_set(module):
    dataset = load("my_data:plain")
    assert (dataset.name, dataset.input_shape) == ("mine", (4,))
    assert dataset.train_examples([2]).tolist() == [[0, 0, 0, 0]]


def test_a_factory_receives_the_arguments_it_takes(module):
    load("my_data:asks", "a", cache="/data", download=True, normalise="raw")
    expected = {"cache": Path("/data"), "download": True, "path": Path("a"), "normalise": "raw"}
    assert sys.modules["my_data"].asked == expected
    load("my_data:takes_anything", column="writer")
    assert sys.modules["my_data"].asked["column"] == "writer"


BAD_FACTORIES = {
    "my_data:wrong": "'my_data:wrong' is made as a list, expected an unstale.training.datasets.Dataset",
    "my_data:other": "'my_data:other': my_data has no 'other', expected package.module:name",
    "my_data:number": "'my_data:number' is of type int, expected a data set or a function that makes one",
    "my_data:needs": "'my_data:needs' needs 'root'; expected a factory that needs nothing but cache, download, ",
    "no_data:other": "'no_data:other' cannot be imported (No module named 'no_data'); expected package.module",
    ":x": "':x' is no name of an object, expected package.module:name",
    "../x:y": "'../x:y' is no name of an object, expected package.module:name",
    "a..b:y": "'a..b:y' is no name of an object, expected package.module:name",
}


@pytest.mark.parametrize(("name", "sentence"), BAD_FACTORIES.items())
def test_an_invalid_factory_is_refused_with_one_sentence(module, name, sentence):
    with pytest.raises(UserError) as caught:
        load(name)
    assert str(caught.value).startswith(f"data set {sentence}")


def test_arguments_that_a_factory_does_not_take_are_refused(module):
    for given in ({"path": "a"}, {"normalise": "raw"}, {"column": "writer"}):
        with pytest.raises(UserError, match=rf"^data set 'my_data:plain' takes no {next(iter(given))}, got '"):
            load("my_data:plain", **given)


def test_a_name_from_elsewhere_imports_nothing(module):
    with pytest.raises(UserError, match=r"^data set 'my_data:plain' is code, which only this machine's own"):
        load("my_data:plain", allow_factory=False)
    assert "my_data" not in sys.modules


def test_bytes_of_a_factory_have_its_normalisation():
    # 51 / 255 = 0.2; less 0.1, over 0.5: 0.2
    stored = torch.full((3, 1, 2, 2), 51, dtype=torch.uint8)
    rule = Normalisation(divisor=255, mean_C=(0.1,), std_C=(0.5,))
    dataset = made_of(train={"stored_NX": stored}, test={"stored_NX": stored[:1]}, normalisation=rule)
    np.testing.assert_allclose(dataset.train_examples([1]).numpy(), np.full((1, 1, 2, 2), 0.2), atol=1e-6)
