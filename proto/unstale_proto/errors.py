"""What can be wrong with something that arrives, as a closed list: metrics, answers and tests share it."""

from enum import StrEnum


class Reason(StrEnum):
    """Why a message or an update was refused."""

    MALFORMED_HEADER = (
        "malformed-header"  # no msgpack map, or a field missing, of the wrong type, out of range
    )
    HEADER_TOO_LARGE = "header-too-large"
    UNKNOWN_TYPE = "unknown-type"
    WRONG_PROTOCOL = "wrong-protocol"  # another protocol version
    WRONG_SIGNATURE = "wrong-signature"  # made for another model
    WRONG_SIZE = "wrong-size"  # payload bytes do not match the model, or a frame is over its bound
    MALFORMED_PAYLOAD = "malformed-payload"  # of the right size, and not what its encoding allows
    WRONG_CHECKSUM = "wrong-checksum"  # what came in chunks is not what was announced, again and again
    NO_CREDIT = "no-credit"  # a chunk beyond what may be sent
    NON_FINITE = "non-finite"  # NaN or infinity in the payload, or a norm that float32 cannot hold
    ZERO_UPDATE = "zero-update"  # a delta of nothing but zeros, which no training leaves
    UNKNOWN_TASK = "unknown-task"  # never given to this client
    EXPIRED_TASK = "expired-task"  # given, and taken back since
    UNKNOWN_VERSION = "unknown-version"  # a base version that the task was not given with, or never issued
    UNKNOWN_CLIENT = "unknown-client"  # an id that is not below the number of clients
    HELLO_FIRST = "hello-first"  # a connection that has not said hello, or whose client has moved to another
    UNEXPECTED_TYPE = "unexpected-type"  # a known message that this side does not take
    RUN_FINISHED = "run-finished"
    NORM_TOO_LARGE = "norm-too-large"  # longer than the run allows
    NOT_STORED = "not-stored"  # there is no room on the server's disk: no verdict yet
    RATE_LIMITED = "rate-limited"  # more messages a second than a client may send
    QUARANTINED = "quarantined"  # so many of the client's updates were refused that it must pause
    NOT_THE_OWNER = "not-the-owner"  # the connection's key does not own this client id
    UNAVAILABLE = "unavailable"  # a client cannot take part in this round, and gives its task back


class RemoteContractError(Exception):
    """The other side broke the wire contract. `reason` is for machines, the text for people."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
