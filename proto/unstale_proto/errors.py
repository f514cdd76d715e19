"""The closed list of reasons to refuse a message, for metrics, answers and tests."""

from enum import StrEnum


class Reason(StrEnum):
    """Why a message or an update was refused."""

    MALFORMED_HEADER = "malformed-header"  # not a msgpack map, or a field missing, of the wrong type, out of range
    HEADER_TOO_LARGE = "header-too-large"
    UNKNOWN_TYPE = "unknown-type"
    WRONG_PROTOCOL = "wrong-protocol"  # another protocol version
    WRONG_SIGNATURE = "wrong-signature"  # made for another model
    WRONG_SIZE = "wrong-size"  # payload bytes do not match the model, or a frame is over its bound
    MALFORMED_PAYLOAD = "malformed-payload"  # of the right size, but invalid in its encoding
    WRONG_CHECKSUM = "wrong-checksum"  # a payload in chunks differs from the announced one, repeatedly
    NO_CREDIT = "no-credit"  # a chunk beyond the credit
    NON_FINITE = "non-finite"  # NaN or infinity in the payload, or a norm that float32 cannot hold
    ZERO_UPDATE = "zero-update"  # a delta of zeros only, which no training makes
    UNKNOWN_TASK = "unknown-task"  # never given to this client
    EXPIRED_TASK = "expired-task"  # given, and expired since
    UNKNOWN_VERSION = "unknown-version"  # another base version than the task's
    UNKNOWN_CLIENT = "unknown-client"  # an id not below the number of clients
    HELLO_FIRST = "hello-first"  # a connection without a hello, or whose client has moved to another
    UNEXPECTED_TYPE = "unexpected-type"  # a known type that this side does not accept
    RUN_FINISHED = "run-finished"
    NORM_TOO_LARGE = "norm-too-large"  # above the run's limit
    NOT_STORED = "not-stored"  # no space on the server's disk: no verdict yet
    RATE_LIMITED = "rate-limited"  # more messages a second than a client may send
    QUARANTINED = "quarantined"  # too many of the client's messages were refused
    NOT_THE_OWNER = "not-the-owner"  # the connection's key does not own this client id
    UNAVAILABLE = "unavailable"  # a client skips this round, and gives its task back


class RemoteContractError(Exception):
    """The other side broke the wire contract. The message is for people. refused: type of its message, if known."""

    def __init__(self, reason: Reason, message: str, refused: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.refused = refused
