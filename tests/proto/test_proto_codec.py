"""Headers: encoding round trips, and refusal of invalid headers and noise with the right reason."""

import math
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from unstale_proto import codec, limits
from unstale_proto.codec import TYPES, decode, encode
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import (
    Ack,
    Bye,
    Chunk,
    Credit,
    DataPlan,
    Error,
    Heartbeat,
    Hello,
    Message,
    ModelPlan,
    ObjectivePlan,
    OwnEvaluation,
    PartitionPlan,
    Stop,
    Task,
    TensorSpec,
    TrainingPlan,
    Update,
    VariantPlan,
    Welcome,
    own_evaluation,
)

VECTORS = Path(__file__).parents[2] / "proto" / "vectors"
HEADERS = [path.read_bytes() for path in sorted(VECTORS.rglob("*.bin"))]
BEAT = {"protocol": 1, "type": "heartbeat", "number": 4, "version": 41}
DECODING_REASONS = {Reason.MALFORMED_HEADER, Reason.HEADER_TOO_LARGE, Reason.UNKNOWN_TYPE, Reason.WRONG_PROTOCOL}

many = settings(deadline=None, max_examples=300)

counts = st.integers(0, limits.INTEGER_MAX)
positives = st.integers(1, limits.INTEGER_MAX)
seconds = st.floats(0, limits.SECONDS_MAX, exclude_min=True)
rates = st.floats(0, limits.LEARNING_RATE_MAX, exclude_min=True)
losses = st.floats(-limits.LOSS_MAX, limits.LOSS_MAX)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=limits.NAME_MAX)
texts = st.text(st.characters(codec="utf-8"), max_size=limits.TEXT_MAX)
tokens = st.text("0123456789abcdef", min_size=32, max_size=32)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
offsets = st.integers(0, limits.PAYLOAD_BYTES_MAX)
checksums = st.text("0123456789abcdef", min_size=16, max_size=16)
sizes = st.integers(1, limits.PAYLOAD_BYTES_MAX // limits.FLOAT_BYTES).map(limits.FLOAT_BYTES.__mul__)
reasons = st.sampled_from(Reason)
tensors = st.builds(
    TensorSpec,
    name=names,
    shape=st.lists(st.integers(1, limits.DIMENSION_MAX), max_size=limits.RANK_MAX).map(tuple),
    dtype=st.just("float32"),
)
variants = st.builds(VariantPlan, name=names, rate=st.floats(limits.VARIANT_RATE_MIN, limits.VARIANT_RATE_MAX))
partitions = st.builds(
    PartitionPlan,
    name=names,
    alpha=st.none() | st.floats(0, 1e6, exclude_min=True),
    min_examples=positives,
    classes=st.none() | positives,
    slow_share=st.none() | st.floats(0, 1, exclude_min=True),
    slow_class=st.none() | counts,
)
trainings = st.builds(
    TrainingPlan,
    name=names,
    batch_size=positives,
    steps=st.none() | positives,
    epochs=st.none() | positives,
    momentum=st.floats(0, 1, exclude_max=True),
    weight_decay=st.floats(0, 1),
    mu=st.floats(0, limits.LEARNING_RATE_MAX),
)
metrics = st.dictionaries(
    st.from_regex(r"[a-z0-9_./-]{1,64}", fullmatch=True), st.floats(allow_nan=False, allow_infinity=False), max_size=32
)
client_settings = st.dictionaries(
    st.from_regex(r"[A-Za-z0-9_./-]{1,64}", fullmatch=True),
    st.integers(-limits.INTEGER_MAX, limits.INTEGER_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=limits.SETTING_TEXT_MAX),
    max_size=4,
)
evaluations = st.builds(own_evaluation, metrics | st.just({"accuracy": 0.75, "loss": 0.5}), positives)


@st.composite
def welcomes(draw: st.DrawFn) -> Welcome:
    client_id = draw(st.integers(0, limits.CLIENTS_MAX - 1))
    heartbeat_s = draw(st.floats(0, limits.SECONDS_MAX, exclude_min=True, exclude_max=True))
    return Welcome(
        client_id=client_id,
        run_id=draw(tokens),
        clients=draw(st.integers(client_id + 1, limits.CLIENTS_MAX)),
        seed=draw(counts),
        version=draw(counts),
        model=draw(names),
        data=draw(names),
        partition=draw(partitions),
        training=draw(trainings),
        tensors=tuple(draw(st.lists(tensors, min_size=1, max_size=8))),
        signature=draw(digests),
        heartbeat_s=heartbeat_s,
        lease_s=draw(st.floats(heartbeat_s, limits.SECONDS_MAX, exclude_min=True)),
        model_plan=draw(st.none() | st.builds(ModelPlan, norm=st.none() | names)),
        data_plan=draw(st.none() | st.builds(DataPlan, column=st.none() | names, variant=st.none() | variants)),
        buffers=draw(st.none() | st.lists(tensors, max_size=3).map(tuple)),
        extra=draw(st.none() | st.booleans()),
        settings=draw(st.none() | client_settings),
        frozen=draw(st.none() | digests),
        objective=draw(st.none() | st.builds(ObjectivePlan, name=names, ignore_index=st.integers(-100, 255))),
    )


@st.composite
def acks(draw: st.DrawFn) -> Ack:
    first_outcome: Any = draw(st.sampled_from(["accepted", "rejected"]))
    return Ack(
        task_id=draw(positives),
        outcome=draw(st.sampled_from([first_outcome, "duplicate"])),
        first_outcome=first_outcome,
        reason=draw(reasons) if first_outcome == "rejected" else None,
    )


MESSAGES: dict[str, st.SearchStrategy[Any]] = {
    "hello": st.builds(
        Hello,
        client_id=st.integers(0, limits.CLIENTS_MAX - 1),
        session=tokens,
        holding=st.lists(positives, max_size=limits.HOLDING_MAX).map(tuple),
    ),
    "welcome": welcomes(),
    "task": st.builds(
        Task,
        task_id=positives,
        number=counts,
        version=counts,
        learning_rate=rates,
        signature=digests,
        payload_bytes=sizes,
        evaluate=st.none() | st.booleans(),
        checksum=st.none() | checksums,
    ),
    "update": st.builds(
        Update,
        task_id=positives,
        base_version=counts,
        kind=st.sampled_from(["gradient", "delta"]),
        num_examples=positives,
        steps=positives,
        loss=losses,
        learning_rate=rates,
        signature=digests,
        payload_bytes=sizes,
        batch_examples=st.none() | positives,
        evaluation=st.none() | evaluations,
        checksum=st.none() | checksums,
        metrics=st.none() | metrics,
    ),
    "ack": acks(),
    "heartbeat": st.builds(
        Heartbeat, number=counts, version=counts, newest_task=st.none() | counts, heard=st.none() | counts
    ),
    "chunk": st.builds(Chunk, task_id=positives, offset=offsets),
    "credit": st.builds(
        lambda task_id, ends, again: Credit(task_id=task_id, have=min(ends), until=max(ends), again=again),
        positives,
        st.tuples(offsets, offsets),
        st.none() | st.booleans(),
    ),
    "bye": st.builds(Bye, reason=texts),
    "stop": st.builds(Stop, reason=st.sampled_from(["finished", "shutdown", "superseded"]), version=counts),
    "error": st.builds(Error, reason=reasons, message=texts, task_id=st.none() | positives),
}


def refusal(header: bytes) -> tuple[Reason, str]:
    with pytest.raises(RemoteContractError) as caught:
        decode(header)
    return caught.value.reason, str(caught.value)


def outcome(header: bytes) -> Message | RemoteContractError:
    try:
        return decode(header)
    except RemoteContractError as error:
        return error


def check_noise(header: bytes) -> None:
    """Check for a message that round-trips, or a refusal that can be sent to the peer."""
    result = outcome(header)
    if isinstance(result, RemoteContractError):
        assert result.reason in DECODING_REASONS
        assert str(result)
        assert encode(Error(reason=result.reason, message=str(result)))
    else:
        assert decode(encode(result)) == result


def test_every_type_has_generated_messages() -> None:
    assert MESSAGES.keys() == TYPES.keys()


@pytest.mark.parametrize("name", MESSAGES)
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_a_message_is_decoded_as_it_was_encoded(name: str, data: st.DataObject) -> None:
    message: Message = data.draw(MESSAGES[name])
    header = encode(message)
    assert decode(header) == message
    assert decode(memoryview(header)) == message
    assert encode(decode(header)) == header
    assert hash(decode(header)) == hash(message)
    assert len(header) <= limits.HEADER_BYTES_MAX


@many
@given(st.binary(max_size=300))
def test_any_bytes_decode_or_raise_the_contract_error(header: bytes) -> None:
    check_noise(header)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(st.characters(codec="utf-8"), max_size=40)
    | st.sampled_from([*TYPES, *Reason])
    | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.parametrize("name", TYPES)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_values_in_the_fields_of_a_type_decode_or_raise_the_contract_error(name: str, data: st.DataObject) -> None:
    fields = {"protocol": 1, "type": name} | {
        field: data.draw(values, label=field) for field in TYPES[name].model_fields
    }
    check_noise(msgpack.packb(fields))


@pytest.mark.parametrize("name", TYPES)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_one_arbitrary_value_in_a_valid_header_decodes_or_raises_the_contract_error(
    name: str, data: st.DataObject
) -> None:
    fields = msgpack.unpackb(encode(data.draw(MESSAGES[name])))
    fields[data.draw(st.sampled_from(sorted(fields)))] = data.draw(values)
    check_noise(msgpack.packb(fields))


@many
@given(
    header=st.sampled_from(HEADERS).filter(len),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=4),
    start=st.floats(0, 1, exclude_max=True),
    length=st.integers(0, 4),
    inserted=st.binary(max_size=4),
)
def test_a_damaged_header_decodes_or_raises_the_contract_error(
    header: bytes, flips: list[tuple[float, int]], start: float, length: int, inserted: bytes
) -> None:
    damaged = bytearray(header)
    for place, mask in flips:
        damaged[int(place * len(damaged))] ^= mask
    cut = int(start * len(damaged))
    damaged[cut : cut + length] = inserted
    check_noise(bytes(damaged))


@pytest.mark.parametrize("header", HEADERS, ids=[path.stem for path in sorted(VECTORS.rglob("*.bin"))])
def test_every_prefix_of_a_header_decodes_or_raises_the_contract_error(header: bytes) -> None:
    for length in range(min(len(header), 600)):
        check_noise(header[:length])


@pytest.mark.parametrize("opening", [b"\x91", b"\xdc\x00\x01", b"\xdd\x00\x00\x00\x01", b"\x81\xa1a", b"\xdc\x07\xd0"])
@pytest.mark.parametrize("depth", [17, 500, 2000, 9000])
def test_deep_nesting_raises_the_contract_error(opening: bytes, depth: int) -> None:
    check_noise(opening * depth + b"\xc0")
    check_noise(opening * depth)
    unknown_field = b"\x85" + msgpack.packb(BEAT)[1:] + b"\xa1x" + opening * depth + b"\xc0"
    check_noise(unknown_field)


def test_16_levels_in_an_unknown_field_are_accepted() -> None:
    nested: list[Any] = []
    for _ in range(15):
        nested = [nested]
    assert decode(msgpack.packb({**BEAT, "x": nested})) == Heartbeat(number=4, version=41)


def padded(header_bytes: int) -> bytes:
    """A valid heartbeat of exactly this size, padded with unknown fields."""
    fields: dict[str, Any] = dict(BEAT)
    for index in range(16):
        fields[f"x{index:02}"] = "x" * limits.STRING_BYTES_MAX
    fields["rest"] = "x" * 300
    fields["rest"] = "x" * (300 + header_bytes - len(msgpack.packb(fields)))
    header: bytes = msgpack.packb(fields)
    assert len(header) == header_bytes
    return header


def test_a_header_of_64_kib_is_accepted_and_one_byte_more_is_too_large() -> None:
    assert decode(padded(64 * 1024)) == Heartbeat(number=4, version=41)
    assert refusal(padded(64 * 1024 + 1)) == (
        Reason.HEADER_TOO_LARGE,
        "the header is 65537 bytes, expected at most 65536",
    )


def test_size_is_checked_first() -> None:
    assert refusal(b"\xc1" * (65 * 1024))[0] == Reason.HEADER_TOO_LARGE


def test_a_string_of_4000_bytes_is_accepted_and_one_byte_more_is_not() -> None:
    assert decode(encode(Bye(reason="\U0001f40c" * 1000))) == Bye(reason="\U0001f40c" * 1000)
    assert decode(msgpack.packb({**BEAT, "x": "x" * 4000})) == Heartbeat(number=4, version=41)
    assert refusal(msgpack.packb({**BEAT, "x": "x" * 4001}))[0] == Reason.MALFORMED_HEADER


def test_a_map_of_64_fields_is_accepted_and_one_more_is_not() -> None:
    fields = {**BEAT, **{f"x{index}": 0 for index in range(60)}}
    assert decode(msgpack.packb(fields)) == Heartbeat(number=4, version=41)
    assert refusal(msgpack.packb({**fields, "more": 0}))[0] == Reason.MALFORMED_HEADER


def test_an_array_of_2000_elements_is_accepted_and_one_more_is_not() -> None:
    assert decode(msgpack.packb({**BEAT, "x": [0] * 2000})) == Heartbeat(number=4, version=41)
    assert refusal(msgpack.packb({**BEAT, "x": [0] * 2001}))[0] == Reason.MALFORMED_HEADER


def test_the_version_is_checked_before_the_type_and_the_type_before_the_fields() -> None:
    assert refusal(msgpack.packb({"protocol": 2, "type": "salute"})) == (
        Reason.WRONG_PROTOCOL,
        "protocol version 2, expected 1",
    )
    assert refusal(msgpack.packb({"protocol": 1, "type": "salute", "number": -1})) == (
        Reason.UNKNOWN_TYPE,
        "type 'salute', expected one of hello, welcome, task, update, ack, heartbeat, bye, stop, error, chunk, credit",
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"number": True}, "heartbeat: field 'number': Input should be a valid integer"),
        ({"number": None}, "heartbeat: field 'number': Input should be a valid integer"),
        ({"number": -1}, "heartbeat: field 'number': Input should be greater than or equal to 0"),
        ({"protocol": "1"}, "field 'protocol' should be a whole number"),
        ({"type": 6}, "field 'type' should be a string"),
    ],
)
def test_the_error_of_a_malformed_header_names_the_field_and_the_expected_value(
    change: dict[str, Any], sentence: str
) -> None:
    assert refusal(msgpack.packb(BEAT | change)) == (Reason.MALFORMED_HEADER, sentence)


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"type": "update"}, "update"),  # its required fields are missing
        ({"type": "later"}, "later"),
        ({"type": "l" * 200}, "l" * 128),
        ({"type": ""}, None),
        ({"type": 7}, None),
        ({}, None),
    ],
)
def test_the_error_of_a_refused_header_names_its_type_if_that_can_be_read(
    fields: dict[str, Any], refused: str | None
) -> None:
    with pytest.raises(RemoteContractError) as caught:
        decode(msgpack.packb({"protocol": 1, **fields}))
    assert caught.value.refused == refused


def test_an_error_in_a_nested_map_names_its_path() -> None:
    welcome = msgpack.unpackb((VECTORS / "welcome.bin").read_bytes())
    welcome["tensors"][1]["shape"] = [2, 0]
    assert refusal(msgpack.packb(welcome)) == (
        Reason.MALFORMED_HEADER,
        "welcome: field 'tensors.1.shape.1': Input should be greater than or equal to 1",
    )


@pytest.mark.parametrize("value", [math.nan, -math.inf, [0.5, math.nan], {"low": [math.inf]}])
@pytest.mark.parametrize("plan", ["partition", "training"])
def test_a_part_setting_contains_only_finite_numbers(plan: str, value: Any) -> None:
    welcome = msgpack.unpackb((VECTORS / "welcome.bin").read_bytes())
    assert decode(msgpack.packb(welcome | {plan: welcome[plan] | {"of_a_plug_in": [0.5, "nan", {"low": -1.0}]}}))
    assert refusal(msgpack.packb(welcome | {plan: welcome[plan] | {"of_a_plug_in": value}})) == (
        Reason.MALFORMED_HEADER,
        f"welcome: field '{plan}': numbers should be finite: of_a_plug_in",
    )


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        ({"MAE": 0.5}, "field 'metrics.MAE': String should match pattern '^[a-z0-9_./-]{1,64}$'"),
        ({"mae": math.nan}, "field 'metrics.mae': Input should be a finite number"),
        ({"mae": "0.5"}, "field 'metrics.mae': Input should be a valid number"),
        (
            {f"m{index}": 0.5 for index in range(33)},
            "field 'metrics': Dictionary should have at most 32 items after validation, not more",
        ),
        ({"x" * 4000: 0.5}, f"field 'metrics.{'x' * 40}': String should match pattern '^[a-z0-9_./-]{{1,64}}$'"),
    ],
)
def test_a_refused_map_of_metrics_is_answered_with_the_name_and_what_was_expected(metrics: Any, sentence: str) -> None:
    update = msgpack.unpackb((VECTORS / "update.bin").read_bytes())
    assert refusal(msgpack.packb(update | {"metrics": metrics})) == (Reason.MALFORMED_HEADER, f"update: {sentence}")


def test_a_refused_setting_for_clients_is_named() -> None:
    welcome = msgpack.unpackb((VECTORS / "welcome.bin").read_bytes())
    assert refusal(msgpack.packb(welcome | {"settings": {"nesterov": True}})) == (
        Reason.MALFORMED_HEADER,
        "welcome: field 'settings.nesterov': should be a finite number, an integer of 64 bits, or a text of at most "
        "200 characters",
    )


def test_accuracy_and_loss_of_an_evaluation_are_sent_as_before_there_were_other_metrics() -> None:
    fields = ({"accuracy": 0.75, "loss": 0.5}, 40)
    assert own_evaluation(*fields) == OwnEvaluation(accuracy=0.75, loss=0.5, examples=40)
    assert codec._fields(own_evaluation(*fields)) == {"accuracy": 0.75, "loss": 0.5, "examples": 40}


@pytest.mark.parametrize(
    ("given", "accuracy", "loss", "others"),
    [
        ({"mae": 0.5}, None, None, {"mae": 0.5}),
        ({"accuracy": 93.5, "loss": 1e300}, None, None, {"accuracy": 93.5, "loss": 1e300}),
        ({"loss": -2.0, "f1": 0.5, "accuracy": 1.0}, 1.0, -2.0, {"f1": 0.5}),
    ],
)
def test_metrics_out_of_the_bounds_of_their_fields_are_sent_with_the_others(
    given: dict[str, float], accuracy: float | None, loss: float | None, others: dict[str, float]
) -> None:
    made = own_evaluation(given, 1)
    assert (made.accuracy, made.loss, made.metrics) == (accuracy, loss, others)
    assert made.by_name == given


def test_a_rate_that_never_replaces_an_example_is_refused() -> None:
    welcome = msgpack.unpackb((VECTORS / "welcome.bin").read_bytes())
    variant = {"name": "svhn", "rate": limits.VARIANT_RATE_MIN}
    assert decode(msgpack.packb(welcome | {"data_plan": {"variant": variant}}))
    variant["rate"] /= 10
    assert refusal(msgpack.packb(welcome | {"data_plan": {"variant": variant}})) == (
        Reason.MALFORMED_HEADER,
        "welcome: field 'data_plan.variant.rate': Input should be greater than or equal to 0.000001",
    )


def wrong_numbers() -> list[tuple[str, str, Any]]:
    """(vector, field, value) for every number in the golden headers except `protocol`."""
    found = []
    for name in (
        "hello",
        "welcome",
        "task",
        "update",
        "ack_accepted",
        "heartbeat",
        "stop",
        "error_task",
        "chunk",
        "credit",
    ):
        header = msgpack.unpackb((VECTORS / f"{name}.bin").read_bytes())
        for field, value in header.items():
            if isinstance(value, int | float) and field != "protocol":
                wrong = [float("nan"), float("inf"), float("-inf"), 1e300, -1e300, True, "1", b""]
                wrong += [2**64 - 1] if field != "loss" else []
                found += [(name, field, each) for each in wrong]
    return found


@pytest.mark.parametrize(("name", "field", "value"), wrong_numbers())
def test_no_number_is_nan_infinite_boolean_text_or_out_of_range(name: str, field: str, value: Any) -> None:
    header = msgpack.unpackb((VECTORS / f"{name}.bin").read_bytes())
    assert refusal(msgpack.packb(header | {field: value}))[0] == Reason.MALFORMED_HEADER


@pytest.mark.parametrize("name", [name for name in TYPES if name != "bye"])
def test_every_missing_required_field_is_refused(name: str) -> None:
    path = VECTORS / ("ack_rejected.bin" if name == "ack" else f"{name}.bin")
    header = msgpack.unpackb(path.read_bytes())
    required = [field for field, info in TYPES[name].model_fields.items() if info.is_required()]
    for field in required:
        without = msgpack.packb({key: value for key, value in header.items() if key != field})
        assert refusal(without) == (Reason.MALFORMED_HEADER, f"{name}: field '{field}': Field required")


def test_absent_values_are_omitted_and_defaults_are_written() -> None:
    assert msgpack.unpackb(encode(Error(reason=Reason.HELLO_FIRST))) == {
        "protocol": 1,
        "type": "error",
        "reason": "hello-first",
        "message": "",
    }


def test_an_integer_given_for_a_float_is_written_as_the_float() -> None:
    fields: dict[str, Any] = {"task_id": 1, "number": 0, "version": 0, "signature": "0" * 64, "payload_bytes": 4}
    assert encode(Task(learning_rate=1, **fields)) == encode(Task(learning_rate=1.0, **fields))


def test_a_message_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Heartbeat(number=4, version=41).version = 42  # type: ignore[misc]


def test_text_that_is_not_unicode_is_refused_in_a_message() -> None:
    with pytest.raises(ValidationError, match="unicode"):
        Bye(reason="\ud800")


def test_a_welcome_beyond_the_header_limit_is_not_encoded() -> None:
    welcome = decode((VECTORS / "welcome.bin").read_bytes())
    tensors = tuple(TensorSpec(name=f"{index:0128}", shape=(1,), dtype="float32") for index in range(500))
    large = welcome.model_copy(update={"tensors": tensors})
    with pytest.raises(ValueError, match=r"a 'welcome' header of \d+ bytes, expected at most 65536"):
        encode(large)
