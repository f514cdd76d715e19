"""CelebA in torchvision's layout: two lists and a folder of JPEG files."""

import numpy as np
import pytest
import torch
from PIL import Image

from unstale.errors import UserError
from unstale.training.datasets import load

# Celebrity 30 has ten images, 7 has five, 12 has four: too few. In the list they take turns.
WHO = [30, 7, 12, 30, 7, 30, 12, 30, 7, 30, 12, 30, 7, 30, 12, 30, 7, 30, 30]
GREEN = 64


def brightness(row):
    """The red of an image; green is always 64, blue 0."""
    return 10 * row


@pytest.fixture
def celeba(tmp_path):
    folder = tmp_path / "celeba"
    (folder / "img_align_celeba").mkdir(parents=True)
    names = [f"{row + 1:06}.jpg" for row in range(len(WHO))]
    for row, name in enumerate(names):
        image = Image.new("RGB", (178, 218), (brightness(row), GREEN, 0))
        image.save(folder / "img_align_celeba" / name, quality=95)
    (folder / "identity_CelebA.txt").write_text(
        "".join(f"{name} {who}\n" for name, who in zip(names, WHO, strict=True))
    )
    lines = [f"{name} -1 {1 if row % 3 == 0 else -1:2} 1\n" for row, name in enumerate(names)]
    (folder / "list_attr_celeba.txt").write_text(f"{len(WHO)}\nBald Smiling Young \n{''.join(lines)}")
    return folder


def rows_of(who):
    return [row for row, other in enumerate(WHO) if other == who]


def test_the_test_part_has_the_last_tenth_of_the_same_celebrities(celeba):
    dataset = load("celeba", cache=str(celeba.parent))
    # floor(0.9 * 10) = 9 and floor(0.9 * 5) = 4 to train on.
    train = sorted(rows_of(30)[:9] + rows_of(7)[:4])
    test = sorted(rows_of(30)[9:] + rows_of(7)[4:])
    assert dataset.train.groups_N.tolist() == [WHO[row] for row in train]
    assert dataset.test.groups_N.tolist() == [WHO[row] for row in test]
    assert dataset.train.labels_N.tolist() == [int(row % 3 == 0) for row in train]
    assert dataset.test.labels_N.tolist() == [int(row % 3 == 0) for row in test]
    assert (dataset.classes, dataset.input_shape) == (2, (3, 84, 84))
    red_N = dataset.train.stored_NX[:, 0, 40, 40].tolist()
    assert red_N == pytest.approx([brightness(row) for row in train], abs=3)
    assert dataset.test.stored_NX[:, 1].float().mean().item() == pytest.approx(GREEN, abs=3)


def test_images_are_decoded_once(celeba):
    first = load("celeba", cache=str(celeba.parent))
    for path in (celeba / "img_align_celeba").iterdir():
        path.write_bytes(b"")
    second = load("celeba", cache=str(celeba.parent))
    assert torch.equal(first.train_examples(), second.train_examples())
    assert torch.equal(first.test.stored_NX, second.test.stored_NX)
    assert len(list(celeba.glob("unstale-84-*.npy"))) == 1
    assert not list(celeba.glob(".unstale-*"))


def test_other_lists_make_another_file(celeba):
    load("celeba", cache=str(celeba.parent))
    identities = (celeba / "identity_CelebA.txt").read_text()
    (celeba / "identity_CelebA.txt").write_text(identities.replace("000002.jpg 7\n", "000002.jpg 30\n"))
    dataset = load("celeba", cache=str(celeba.parent))
    assert set(dataset.train.groups_N.tolist()) == {30}
    assert len(list(celeba.glob("unstale-84-*.npy"))) == 2


def test_a_broken_cached_file_is_refused_with_advice(celeba):
    load("celeba", cache=str(celeba.parent))
    (path,) = celeba.glob("unstale-84-*.npy")
    whole = path.read_bytes()
    for broken in (b"", whole[:50], whole[:5000]):
        path.write_bytes(broken)
        with pytest.raises(UserError, match=r"cannot be read .*; delete it to have it made again"):
            load("celeba", cache=str(celeba.parent))
    np.save(path, np.zeros((2, 3, 84, 84), dtype=np.uint8))
    with pytest.raises(UserError, match=r"expected 15 images\); delete it"):
        load("celeba", cache=str(celeba.parent))


def test_a_cache_that_cannot_be_kept_costs_nothing_but_time(celeba, monkeypatch):
    def full(*args):
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "save", full)
    assert len(load("celeba", cache=str(celeba.parent)).test.labels_N) == 2
    assert not list(celeba.glob("*unstale-*"))


def test_lists_that_do_not_fit_are_refused(celeba):
    attributes = celeba / "list_attr_celeba.txt"
    whole = attributes.read_text()
    for broken in (
        "",
        whole.replace("Smiling", "Frowning"),
        whole.replace("000003.jpg", "no.jpg"),
        whole[:300],
        whole.replace("-1", "x"),
    ):
        attributes.write_text(broken)
        with pytest.raises(
            UserError, match=r"^data set 'celeba' is not whole in .*; delete celeba/\* there and get it"
        ):
            load("celeba", cache=str(celeba.parent))


def test_an_image_that_is_missing_or_torn_is_named(celeba):
    path = celeba / "img_align_celeba" / "000004.jpg"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(UserError, match=r"000004.jpg: cannot be read as an image"):
        load("celeba", cache=str(celeba.parent))
    path.unlink()
    with pytest.raises(UserError, match=r"000004.jpg: cannot be read as an image \(.*No such file"):
        load("celeba", cache=str(celeba.parent))
