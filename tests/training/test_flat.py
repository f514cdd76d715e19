import hashlib
import math
import struct

import pytest
import torch
from torch import nn

from unstale import flat
from unstale.flat import FlatModel, digest, digest_of_frames, float_buffers, from_bytes, to_bytes


def test_parameters_and_gradients_are_views_in_the_order_of_their_names():
    # weight (1, 2), then bias (1): y = 3 * 5 + 4 * 6 + 7 = 46; dy/dweight = (5, 6), dy/dbias = 1.
    model = FlatModel(nn.Linear(2, 1))
    model.load(torch.tensor([3.0, 4.0, 7.0]))
    output = model.module(torch.tensor([5.0, 6.0]))
    output.backward()
    assert output.item() == 46
    assert model.gradient_d.tolist() == [5, 6, 1]
    model.parameters_d[2] = 0
    assert model.module.bias.item() == 0


def test_making_a_model_flat_keeps_its_parameters():
    module = nn.Linear(2, 3)
    before_d = nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    assert torch.equal(FlatModel(module).parameters_d, before_d)


def frozen_linear(dtype=torch.float32) -> nn.Module:
    module = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1))
    module[0].to(dtype).requires_grad_(False)
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor([[1.0], [-2.5]]))
        module[0].bias.copy_(torch.tensor([0.5, 0.0]))
    return module


def test_the_digest_of_frozen_parameters_is_over_names_shapes_types_and_values():
    expected = hashlib.sha256()
    for name, shape, values in (("0.bias", (2,), (0.5, 0.0)), ("0.weight", (2, 1), (1.0, -2.5))):
        expected.update(struct.pack("<I", 6 if name == "0.bias" else 8) + name.encode())
        expected.update(struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
        expected.update(struct.pack("<I", 7) + b"float32" + struct.pack("<2f", *values))
    first, other = frozen_linear(), frozen_linear()
    assert FlatModel(first).frozen_digest == expected.hexdigest()
    other[1].weight.data += 1  # trained, and therefore sent
    assert FlatModel(other).frozen_digest == expected.hexdigest()
    changed = frozen_linear()
    changed[0].bias.data[1] = -0.0
    half = frozen_linear(torch.bfloat16)  # which represents the same values
    assert len({FlatModel(one).frozen_digest for one in (first, changed, half)}) == 3


def test_a_model_without_frozen_parameters_has_no_digest_of_them():
    assert FlatModel(nn.Linear(2, 1)).frozen_digest is None
    assert FlatModel(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))).frozen_digest is None


def test_frozen_values_that_are_no_bytes_are_compared_by_name_shape_and_type():
    module = nn.Linear(1, 1)
    module.table = nn.Parameter(torch.eye(2).to_sparse(), requires_grad=False)
    other = nn.Linear(1, 1)
    other.table = nn.Parameter(2 * torch.eye(2).to_sparse(), requires_grad=False)
    assert FlatModel(module).frozen_digest == FlatModel(other).frozen_digest is not None


def test_bytes_are_little_endian_float32_and_come_back_from_any_frames():
    model_d = torch.tensor([1.0, -2.5, 0.1])
    content = struct.pack("<3f", 1.0, -2.5, 0.1)
    assert bytes(to_bytes(model_d)) == content
    for cut in range(len(content) + 1):
        assert torch.equal(from_bytes([content[:cut], memoryview(content)[cut:]], 3), model_d)


def test_frames_of_the_wrong_size_in_all_are_our_own_mistake():
    with pytest.raises(AssertionError, match="payload is 4 bytes, expected 8"):
        from_bytes([bytes(4)], 2)
    with pytest.raises(AssertionError, match="payload is longer than 8 bytes"):
        from_bytes([bytes(4), bytes(8)], 2)


def test_a_received_vector_has_its_own_memory():
    content = bytearray(4)
    model_d = from_bytes([content], 1)
    content[:] = struct.pack("<f", 9.0)
    assert model_d.tolist() == [0]


def test_a_digest_is_the_sha256_of_the_bytes():
    assert digest(torch.tensor([1.0, 2.0])) == hashlib.sha256(struct.pack("<2f", 1.0, 2.0)).hexdigest()


def test_a_digest_of_frames_is_that_of_the_vectors_however_they_are_cut():
    content = memoryview(struct.pack("<3f", 1.0, 2.0, 3.0))
    expected = digest(torch.tensor([1.0, 2.0]), torch.tensor([3.0]))
    assert digest_of_frames([content]) == digest_of_frames([content[:4], content[4:]]) == expected


def test_the_bytes_of_a_parameter_are_those_of_its_values_without_a_copy():
    parameter = nn.Parameter(torch.tensor([1.0, 2.0]))
    content = to_bytes(parameter)
    assert bytes(content) == struct.pack("<2f", 1.0, 2.0)
    with torch.no_grad():
        parameter.zero_()
    assert bytes(content) == struct.pack("<2f", 0.0, 0.0)


def test_float_buffers_are_views_into_a_vector_of_their_own_and_move_in_training():
    # momentum 0.1; inputs 1 and 3 have mean 2 and, of a sample, variance 2: 0.9 * (0, 1) + 0.1 * (2, 2).
    model = FlatModel(nn.BatchNorm1d(1))
    assert (model.dimension, model.buffers_b.tolist()) == (2, [0, 1])
    inputs = torch.tensor([[1.0], [3.0]])
    model.module.train()
    model.module(inputs)
    torch.testing.assert_close(model.buffers_b, torch.tensor([0.2, 1.1]))
    assert model.module.num_batches_tracked == 1
    model.module.eval()
    model.module(inputs)
    torch.testing.assert_close(model.buffers_b, torch.tensor([0.2, 1.1]))


def test_buffers_are_loaded_where_they_are_given_and_else_stay():
    model = FlatModel(nn.BatchNorm1d(1))
    model.load(torch.tensor([3.0, 4.0]), torch.tensor([5.0, 6.0]))
    model.load(torch.tensor([1.0, 2.0]))
    assert model.parameters_d.tolist() == [1, 2]
    assert (model.module.running_mean.item(), model.module.running_var.item()) == (5, 6)


def test_the_count_of_batches_changes_no_result():
    model, inputs = FlatModel(nn.BatchNorm1d(1)), torch.tensor([[1.0], [3.0]])
    results = []
    for _ in range(2):
        model.load(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
        results.append((model.module(inputs), model.buffers_b.clone()))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_a_version_is_used_without_a_copy_and_buffers_with_one():
    model = FlatModel(nn.BatchNorm1d(1))
    model_d, buffers_b = torch.tensor([3.0, 4.0]), torch.tensor([5.0, 6.0])
    with model.using(model_d, buffers_b):
        assert model.module.weight.data_ptr() == model_d.data_ptr()
        model.module.train()
        model.module(torch.tensor([[1.0], [3.0]]))
    assert buffers_b.tolist() == [5, 6]
    assert (model.module.weight.item(), model.module.bias.item()) == (1, 0)


def test_a_released_model_holds_nothing_and_keeps_its_description():
    model = FlatModel(nn.Linear(2, 1))
    before = [(name, parameter.shape) for name, parameter in model.module.named_parameters()]
    model.gradient_d.fill_(1.0)
    model.release()
    assert (model.parameters_d.numel(), model.gradient_d.numel(), model.dimension) == (0, 0, 3)
    assert [(name, parameter.shape) for name, parameter in model.module.named_parameters()] == before
    with model.using(torch.tensor([3.0, 4.0, 7.0])):
        assert model.module(torch.tensor([5.0, 6.0])).item() == 46
    assert all(parameter.grad is None for parameter in model.module.parameters())


def test_the_number_of_batches_is_no_float_buffer():
    assert [name for name, _ in float_buffers(nn.BatchNorm1d(2))] == ["running_mean", "running_var"]
    assert float_buffers(nn.Linear(2, 1)) == []
    assert FlatModel(nn.Linear(2, 1)).buffers_b.shape == (0,)


@pytest.mark.parametrize(
    ("values", "expected"),
    [((1.0, -1.0), True), ((3e38, 3e38), True), ((math.inf, 1.0), False), ((math.inf, -math.inf), False)],
)
def test_a_vector_is_finite_also_when_its_sum_is_not(values: tuple[float, ...], expected: bool) -> None:
    assert flat.is_finite(torch.tensor(values)) is expected


def test_frozen_parameters_are_in_no_vector_and_stay_as_they_are():
    module = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    module[0].requires_grad_(False)
    before = module[0].weight.item()
    model = FlatModel(module)
    assert [name for name, _ in model.parameters] == ["1.weight", "1.bias"]
    model.load(torch.tensor([5.0, 6.0]))
    assert (module[0].weight.item(), module[1].weight.item(), module[1].bias.item()) == (before, 5, 6)


def test_names_choose_the_tensors_and_their_order():
    module = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2))
    model = FlatModel(module, exchanged=["1.running_var", "1.bias", "0.bias"])
    model.load(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([5.0, 6.0]))
    assert module[1].bias.tolist() == [1, 2]
    assert module[0].bias.tolist() == [3, 4]
    assert module[1].running_var.tolist() == [5, 6]
    assert module[1].running_mean.tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tensors_in_half_precision_are_float32_in_the_vectors_and_keep_their_type(dtype):
    module = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1)).to(dtype)
    module[1].float()
    model = FlatModel(module)
    assert model.converts and model.parameters_d.dtype == model.buffers_b.dtype == torch.float32
    base_d = torch.tensor([1 / 3, -2.0, 1 / 3, 0.5])
    rounded_d = torch.cat([base_d[:2].to(dtype).float(), base_d[2:]])
    model.load(base_d, torch.tensor([1.0, 2.0]))
    assert module[0].weight.dtype == dtype and module[0].weight.item() == rounded_d[0].item()
    assert module[1].weight.item() == base_d[2].item()
    model.gather()
    assert torch.equal(model.parameters_d, rounded_d)
    with model.using(2 * base_d):
        assert module[0].weight.dtype == dtype and module[0].weight.item() == 2 * rounded_d[0].item()
    assert module[0].weight.item() == rounded_d[0].item()


def test_gathering_reads_what_code_has_put_in_place_of_the_tensors():
    module = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    model = FlatModel(module)
    first = module[0].weight
    module[0].weight = nn.Parameter(torch.tensor([[7.0]]))
    module[0].bias.data = torch.tensor([8.0])
    module[1].running_mean = torch.tensor([9.0])
    model.gather()
    assert model.parameters_d[:2].tolist() == [7, 8]
    assert model.buffers_b.tolist() == [9, 1]
    model.restore()
    model.load(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([5.0, 6.0]))
    assert module[0].weight is first
    assert [parameter.item() for parameter in module.parameters()] == [1, 2, 3, 4]
    assert (module[1].running_mean.item(), module[1].running_var.item()) == (5, 6)


def test_a_module_that_is_cast_is_cast_back():
    model = FlatModel(nn.Linear(1, 1))
    half = FlatModel(nn.Linear(1, 1).half())
    model.module.half()
    half.module.float()
    for one, dtype in ((model, torch.float32), (half, torch.float16)):
        one.restore()
        one.load(torch.tensor([1.5, 2.5]))
        assert one.module.weight.dtype == dtype
        assert (one.module.weight.item(), one.module.bias.item()) == (1.5, 2.5)


def test_a_tensor_that_is_gone_or_of_another_shape_is_named():
    model = FlatModel(nn.Sequential(nn.Linear(2, 1)))
    model.module[0] = nn.Linear(3, 1)
    with pytest.raises(ValueError, match=r"the model has shape \[1, 3\] for '0.weight', expected shape \[1, 2\]"):
        model.gather()
    del model.module[0]
    with pytest.raises(ValueError, match=r"the model has no tensor for '0.weight', expected shape \[1, 2\]"):
        model.gather()


def test_a_tensor_of_another_type_or_one_that_is_new_is_named():
    model = FlatModel(nn.Linear(2, 1))
    model.module.double()
    with pytest.raises(ValueError, match=r"the model has torch.float64 for 'weight', expected torch.float32"):
        model.gather()
    model.restore()
    model.module.register_buffer("count", torch.ones(1, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"the model has 'count', which it did not have before, expected the same"):
        model.gather()
