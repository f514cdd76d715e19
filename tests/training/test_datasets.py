import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from unstale.errors import UserError
from unstale.seeds import Stream, stream
from unstale.training.datasets import load

MNIST = Path(__file__).parents[2].parent / "shared" / "data" / "mnist.npz"


def arrays(**changes):
    """Two training images and one test image of 2x2, with the changes of a test."""
    return {
        "x_train": np.array([[[0, 255], [0, 255]], [[0, 255], [0, 255]]], dtype=np.uint8),
        "y_train": np.array([0, 1]),
        "x_test": np.array([[[51, 0], [0, 0]]], dtype=np.uint8),
        "y_test": np.array([1], dtype=np.uint8),
        **changes,
    }


def saved(folder: Path, **changes) -> Path:
    path = folder / "own.npz"
    np.savez(path, **{name: array for name, array in arrays(**changes).items() if array is not None})
    return path


def test_digits_are_split_once_and_for_all_with_equal_shares_of_each_class():
    first, second = load("digits"), load("digits")
    assert first.train_examples().shape == (1442, 1, 8, 8)
    assert first.test_examples().shape == (355, 1, 8, 8)
    assert (first.classes, first.input_shape) == (10, (1, 8, 8))
    train_C, test_C = torch.bincount(first.train.labels_N), torch.bincount(first.test.labels_N)
    assert torch.equal(test_C, (train_C + test_C) // 5)
    assert torch.equal(first.train.stored_NX, second.train.stored_NX)
    assert torch.equal(first.test.labels_N, second.test.labels_N)


def test_digits_are_those_that_scikit_learn_loads():
    ours, theirs = load("digits"), load_digits()
    is_test_N = np.zeros(len(theirs.target), dtype=bool)
    for label in range(10):
        is_test_N[np.flatnonzero(theirs.target == label)[4::5]] = True
    for split, chosen_N in ((ours.train, ~is_test_N), (ours.test, is_test_N)):
        assert np.array_equal(split.stored_NX.numpy()[:, 0], theirs.images[chosen_N])
        assert np.array_equal(split.labels_N.numpy(), theirs.target[chosen_N])


def test_digits_import_no_scikit_learn():
    # It would take half as long as to import PyTorch, in each process of a run.
    program = (
        "import sys; from unstale.training.datasets import load; load('digits'); "
        "sys.exit([name for name in ('sklearn', 'scipy') if name in sys.modules] or 0)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_digits_are_normalised_by_their_training_part():
    inputs = load("digits").train_examples().double()
    assert inputs.mean().item() == pytest.approx(0, abs=1e-6)
    assert inputs.std(correction=0).item() == pytest.approx(1, abs=1e-6)


def test_uint8_images_are_scaled_and_normalised_by_the_training_part(tmp_path):
    # Pixels of x_train are 0, 1, 0, 1, ...: mean 1/2, standard deviation 1/2. x_test: 51 / 255 = 0.2, and 0s.
    dataset = load("npz", saved(tmp_path))
    assert dataset.name == "own"
    assert dataset.classes == 2
    assert dataset.train.stored_NX.dtype == torch.uint8
    assert dataset.train_examples().shape == (2, 1, 2, 2)
    assert dataset.train_examples().flatten().tolist() == [-1, 1, -1, 1] * 2
    assert dataset.test_examples().flatten().tolist() == pytest.approx([(0.2 - 0.5) / 0.5, -1, -1, -1])
    assert dataset.train.labels_N.dtype == dataset.test.labels_N.dtype == torch.int64


def test_colour_images_get_their_channels_first_and_each_is_normalised_on_its_own(tmp_path):
    # Red is 0 and 1 (mean 1/2, deviation 1/2), green 1/5 and 3/5 (2/5, 1/5), blue always 1: only centred.
    x_train = np.array([[[[0, 51, 255], [255, 153, 255]]]] * 2, dtype=np.uint8)
    dataset = load("npz", saved(tmp_path, x_train=x_train, x_test=x_train[:1]))
    assert dataset.input_shape == (3, 1, 2)
    assert dataset.train.stored_NX.is_contiguous()
    np.testing.assert_allclose(dataset.test_examples()[0, :, 0].numpy(), [[-1, 1], [-1, 1], [0, 0]], atol=1e-6)


def test_floats_are_unchanged(tmp_path):
    x_train = np.array([[1.5, -300.0], [0.25, 0.0]])
    dataset = load("npz", saved(tmp_path, x_train=x_train, x_test=x_train[:1]))
    assert dataset.train_examples().dtype == torch.float32
    assert dataset.train_examples().tolist() == x_train.tolist()


def test_inputs_are_normalised_as_configured(tmp_path):
    # x_test: 51, 0, 0, 0. By 255: 0.2; standard: less 1/2 over 1/2.
    path = saved(tmp_path)
    for normalise, seen in (("raw", 51), ("unit", 0.2), ("standard", -0.6)):
        inputs = load("npz", path, normalise=normalise).test_examples([0])
        assert inputs.dtype == torch.float32
        assert inputs.flatten()[0].item() == pytest.approx(seen)
    assert load("digits", normalise="unit").train_examples().max().item() == 1
    assert load("digits", normalise="raw").train_examples().max().item() == 16


def test_the_numbers_are_those_of_float32_arithmetic_on_a_whole_copy(tmp_path):
    # The slow way, with numpy: a float copy of all images, its mean and deviation summed in float64.
    x_train = stream(0, Stream.PARTITION).integers(256, size=(50, 8, 9, 3)).astype(np.uint8)
    dataset = load("npz", saved(tmp_path, x_train=x_train, y_train=np.arange(50) % 2, x_test=x_train[:1]))
    scaled_NCHW = x_train.transpose(0, 3, 1, 2).astype(np.float32) / 255
    mean_C = scaled_NCHW.mean(axis=(0, 2, 3), dtype=np.float64, keepdims=True).astype(np.float32)
    std_C = scaled_NCHW.std(axis=(0, 2, 3), dtype=np.float64, keepdims=True).astype(np.float32)
    expected_NCHW = (scaled_NCHW - mean_C) / std_C
    assert np.array_equal(dataset.train_examples().numpy(), expected_NCHW)
    assert np.array_equal(dataset.train_examples(np.array([7, 3, 3])).numpy(), expected_NCHW[[7, 3, 3]])


def test_gathering_writes_to_nothing_that_is_stored(tmp_path):
    for x_train in (arrays()["x_train"], np.array([[1.5], [2.5]])):
        dataset = load("npz", saved(tmp_path, x_train=x_train, x_test=x_train[:1]))
        before = dataset.train.stored_NX.clone()
        dataset.train_examples([0]).zero_()
        dataset.train_examples()
        assert torch.equal(dataset.train.stored_NX, before)


def test_floats_have_no_unit(tmp_path):
    path = saved(tmp_path, x_train=np.zeros((2, 3)), x_test=np.zeros((1, 3)))
    assert load("npz", path, normalise="raw").train_examples().sum() == 0
    with pytest.raises(UserError, match=r"^data set 'own' holds floats, which are kept as they are, but"):
        load("npz", path, normalise="unit")


def test_a_column_of_numbers_contains_the_groups(tmp_path):
    dataset = load("npz", saved(tmp_path, writer_train=np.array([70, -3]), writer_test=np.array([70])), column="writer")
    assert dataset.train.groups_N.tolist() == [70, -3]
    assert dataset.test.groups_N.tolist() == [70]
    assert dataset.train.groups_N.dtype == torch.int64


def test_a_column_of_strings_is_numbered_in_sorted_order_over_both_parts(tmp_path):
    # Sorted: ann 0, bob 1, eve 2.
    dataset = load(
        "npz", saved(tmp_path, site_train=np.array(["eve", "ann"]), site_test=np.array(["bob"])), column="site"
    )
    assert dataset.train.groups_N.tolist() == [2, 0]
    assert dataset.test.groups_N.tolist() == [1]


def test_a_column_may_be_of_the_training_part_alone_and_is_not_read_unasked(tmp_path):
    path = saved(tmp_path, site_train=np.array(["b", "a"]))
    dataset = load("npz", path, column="site")
    assert dataset.train.groups_N.tolist() == [1, 0]
    assert dataset.test.groups_N is None
    assert load("npz", path).train.groups_N is None


BAD_COLUMNS = [
    ({}, "has no writer_train, which data.column asks for; expected one of x, y"),
    ({"writers_train": np.zeros(2, int)}, "has no writer_train, which data.column asks for; did you mean 'writers'?"),
    (
        {"writer_train": np.zeros(3, int)},
        "writer_train holds int64 [3], expected 2 integers or strings, one for each example",
    ),
    (
        {"writer_train": np.zeros(2)},
        "writer_train holds float64 [2], expected 2 integers or strings, one for each example",
    ),
    (
        {"writer_train": np.zeros(2, int), "writer_test": np.array(["a"])},
        "writer_train holds int64 [2], but writer_test <U1 [1]; expected the same type",
    ),
]


@pytest.mark.parametrize(("changes", "sentence"), BAD_COLUMNS)
def test_a_column_that_does_not_fit_is_refused_in_one_sentence(tmp_path, changes, sentence):
    path = saved(tmp_path, **changes)
    with pytest.raises(UserError) as caught:
        load("npz", path, column="writer")
    assert str(caught.value) == f"{path}: {sentence}"


def test_only_an_npz_has_columns():
    with pytest.raises(UserError, match=r"^data set 'digits' has no columns, got column 'writer'"):
        load("digits", column="writer")


NAMES = "x_train, y_train, x_test, y_test"
BAD = [
    ({"y_test": None}, f"has no y_test; expected an .npz with {NAMES}"),
    (
        {"x_train": np.zeros((2, 2), dtype=np.uint8)},
        "x_train holds uint8 [2, 2], expected uint8 images [N, H, W] or [N, H, W, C]",
    ),
    (
        {"x_train": np.zeros((2, 2, 2), dtype=int)},
        "x_train holds int64 [2, 2, 2], expected uint8 images or floats [N, ...]",
    ),
    ({"x_train": np.zeros(2)}, "x_train holds float64 [2], expected uint8 images or floats [N, ...]"),
    ({"x_test": np.array([[0.0, np.nan]])}, "x_test holds NaN, infinity or a number that float32 cannot hold"),
    ({"x_test": np.array([[0.0, -np.inf]])}, "x_test holds NaN, infinity or a number that float32 cannot hold"),
    ({"x_train": np.array([[1e39]] * 2)}, "x_train holds NaN, infinity or a number that float32 cannot hold"),
    ({"x_test": np.zeros((0, 2, 2), dtype=np.uint8)}, "x_test holds uint8 [0, 2, 2], expected at least one example"),
    ({"y_train": np.array([0.0, 1.0])}, "y_train holds float64 [2], expected 2 integers, one for each example"),
    ({"y_train": np.array([[0], [1]])}, "y_train holds int64 [2, 1], expected 2 integers, one for each example"),
    ({"y_test": np.array([0, 1])}, "y_test holds int64 [2], expected 1 integers, one for each example"),
    (
        {"y_train": np.array([-1, 0])},
        "y_train holds 2 labels from -1 to 0; expected two or more classes, numbered from 0 without a gap",
    ),
    (
        {"y_train": np.array([1, 2])},
        "y_train holds 2 labels from 1 to 2; expected two or more classes, numbered from 0 without a gap",
    ),
    (
        {"y_train": np.array([0, 2])},
        "y_train holds 2 labels from 0 to 2; expected two or more classes, numbered from 0 without a gap",
    ),
    (
        {"y_train": np.array([0, 0])},
        "y_train holds 1 labels from 0 to 0; expected two or more classes, numbered from 0 without a gap",
    ),
    ({"y_test": np.array([2])}, "y_test holds label 2, which y_train does not; expected 0 to 1"),
    ({"y_test": np.array([-1])}, "y_test holds label -1, which y_train does not; expected 0 to 1"),
    (
        {"x_test": np.zeros((1, 3, 2), dtype=np.uint8)},
        "x_test holds uint8 [1, 3, 2], but x_train uint8 [2, 2, 2]; expected the same shape and type",
    ),
    (
        {"x_test": np.zeros((1, 2, 2))},
        "x_test holds float64 [1, 2, 2], but x_train uint8 [2, 2, 2]; expected the same shape and type",
    ),
]


@pytest.mark.parametrize(("changes", "sentence"), BAD)
def test_an_invalid_file_is_refused_with_one_sentence(tmp_path, changes, sentence):
    path = saved(tmp_path, **changes)
    with pytest.raises(UserError) as caught:
        load("npz", path)
    assert str(caught.value) == f"{path}: {sentence}"


def test_a_missing_file_is_named(tmp_path):
    path = tmp_path / "nowhere.npz"
    with pytest.raises(UserError) as caught:
        load("npz", path)
    assert str(caught.value) == f"{path}: no such file; expected an .npz with {NAMES}"


def test_objects_are_not_unpickled(tmp_path):
    path = saved(tmp_path, y_test=np.array([{}], dtype=object))
    with pytest.raises(UserError, match="cannot be read as an"):
        load("npz", path)


def test_a_single_array_is_not_an_npz(tmp_path):
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(UserError, match="holds one array, expected an"):
        load("npz", tmp_path / "one.npy")


@pytest.mark.parametrize("kept", [0, 10, 200, -30])
def test_a_torn_file_is_refused(tmp_path, kept):
    path = saved(tmp_path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UserError, match="cannot be read as an"):
        load("npz", path)


def test_a_flipped_bit_is_found(tmp_path):
    path = saved(tmp_path)
    content = bytearray(path.read_bytes())
    content[content.index(b"\xff\x00\xff")] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="cannot be read as an"):
        load("npz", path)


def test_an_unknown_data_set_is_answered_with_the_nearest_name():
    with pytest.raises(UserError, match=r"^unknown data set 'digit'; did you mean 'digits'\?$"):
        load("digit")
    with pytest.raises(UserError, match=r"^unknown data set 'zzz'; expected one of celeba, cifar10, "):
        load("zzz")
    with pytest.raises(UserError, match=r"^unknown normalisation 'standart'; did you mean 'standard'\?$"):
        load("digits", normalise="standart")


def test_a_path_too_few_or_too_many_is_refused():
    with pytest.raises(UserError, match=r"^data set 'npz' needs a path to a file with x_train"):
        load("npz")
    with pytest.raises(UserError, match=r"^data set 'digits' is built in and reads no file, got path 'a.npz'"):
        load("digits", "a.npz")
    with pytest.raises(UserError, match=r"^data set 'mnist' lies in the cache and takes no path, got path 'a.npz'"):
        load("mnist", "a.npz")


@pytest.mark.skipif(not MNIST.is_file(), reason="needs mnist.npz in ../shared/data beside the checkout")
def test_mnist_has_the_published_normalisation():
    dataset = load("npz", MNIST)
    inputs = dataset.train_examples()
    assert inputs.shape == (60000, 1, 28, 28)
    # A black pixel is (0 - mean) / std, a white one (1 - mean) / std; docs/methods/models.md: 0.1307 and 0.3081.
    black, white = inputs.min().item(), inputs.max().item()
    std = 1 / (white - black)
    assert std == pytest.approx(0.3081, abs=5e-5)
    assert -black * std == pytest.approx(0.1307, abs=5e-5)
