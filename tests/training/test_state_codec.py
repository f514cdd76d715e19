"""States of apps as vectors, and back."""

from collections import OrderedDict
from math import inf, isnan, nan
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from unstale.training.state_codec import pack, unpack

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
NESTS = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers() | st.none(), inner)
    ),
)


@given(NESTS)
def test_a_nest_of_numbers_and_strings_comes_back(nest: Any) -> None:
    found = unpack(pack(nest))
    assert found == nest
    assert repr(found) == repr(nest)  # 1 is not True, and a tuple no list


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1.5, -inf, 3e-45]),
        torch.tensor(7),
        torch.tensor([True, False, True]),
        torch.arange(6, dtype=torch.int8).reshape(2, 3).t(),
        torch.empty(0, 3, dtype=torch.float64),
        torch.randn(3, 2, generator=torch.Generator().manual_seed(0)).bfloat16(),
        torch.tensor([1 + 2j]).conj(),
        nn.Parameter(torch.ones(2)),
    ],
)
def test_a_tensor_comes_back_with_its_type_and_shape(tensor: torch.Tensor) -> None:
    found = unpack(pack({"a": [1, tensor], "b": tensor}))
    for one in (found["a"][1], found["b"]):
        assert one.dtype == tensor.dtype
        assert torch.equal(one, tensor.detach())


def test_the_state_of_an_optimiser_goes_on_where_it_was() -> None:
    def steps(parameter: nn.Parameter, optimiser: torch.optim.Optimizer, count: int) -> None:
        for _ in range(count):
            optimiser.zero_grad()
            (parameter**2).sum().backward()
            optimiser.step()

    first, second = (nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2))
    optimiser = torch.optim.Adam([first], lr=0.1)
    steps(first, optimiser, 5)
    second.data.copy_(first.data)
    other = torch.optim.Adam([second], lr=0.3)
    other.load_state_dict(unpack(pack(optimiser.state_dict())))
    steps(first, optimiser, 5)
    steps(second, other, 5)
    assert torch.equal(first, second)


def test_numbers_of_numpy_are_numbers_and_nan_stays() -> None:
    found = unpack(pack(OrderedDict(a=np.float32(0.5), b=np.int64(3), c=nan)))
    assert (found["a"], found["b"], isnan(found["c"])) == (0.5, 3, True)


def contains_itself() -> list[Any]:
    nest: list[Any] = []
    nest.append(nest)
    return nest


@pytest.mark.parametrize(
    ("nest", "message"),
    [
        ({"a": [1, {2}]}, r"state\['a'\]\[1\] is of type set, expected tensors, numbers, strings"),
        ({"a": np.ones(2)}, r"state\['a'\] is of type ndarray, expected tensors"),
        ({(1, 2): 3}, "state has a key of type tuple, expected strings and numbers"),
        ({"s": torch.eye(2).to_sparse()}, r"state\['s'\] is a sparse or quantized tensor, expected a dense one"),
        (contains_itself(), "state contains itself, or is too deep"),
    ],
)
def test_anything_else_is_refused_with_its_place(nest: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack(nest)
