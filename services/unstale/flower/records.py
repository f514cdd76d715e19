"""Records of Flower as values that the state of a client can hold: tensors, numbers, texts, and nests of them."""

from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

Nest = dict[str, Any]


def to_nest(records: RecordDict) -> Nest:
    """The records, each as its kind and its content."""
    return {name: (_KINDS[type(record)], _content(record)) for name, record in records.items()}


def from_nest(nest: Nest) -> RecordDict:
    """The inverse of `to_nest`."""
    records = RecordDict()
    for name, (kind, content) in nest.items():
        record = _RECORDS[kind]()
        for key, value in content.items():
            record[key] = _value(kind, value)
        records[name] = record
    return records


def _content(record: Any) -> Nest:
    if isinstance(record, ArrayRecord):
        return {
            key: (array.dtype, list(array.shape), array.stype, _tensor(array.data)) for key, array in record.items()
        }
    return {key: _stored(value) for key, value in record.items()}


def _stored(value: Any) -> Any:
    """A value with bytes as tensors."""
    if isinstance(value, bytes):
        return _tensor(value)
    return [_stored(one) for one in value] if isinstance(value, list) else value


def _value(kind: str, value: Any) -> Any:
    """The inverse of `_content` for one value."""
    if kind == "arrays":
        dtype, shape, stype, data = value
        return Array(dtype=dtype, shape=tuple(shape), stype=stype, data=_bytes(data))
    if isinstance(value, list):
        return [_value(kind, one) for one in value]
    return _bytes(value) if isinstance(value, Tensor) else value


def _tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()


_RECORDS: dict[str, Any] = {"arrays": ArrayRecord, "metrics": MetricRecord, "config": ConfigRecord}
_KINDS = {record: kind for kind, record in _RECORDS.items()}
