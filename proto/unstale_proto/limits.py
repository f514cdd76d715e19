"""Every bound of the wire contract, with the reason for its number. PROTOCOL.md repeats them."""

PROTOCOL_VERSION = 1

HEADER_BYTES_MAX = 64 * 1024  # a signature of 500 parameters is about 30 KiB; everything else is under 5 KiB
FRAME_BYTES_MAX = 4 * 1024 * 1024  # payloads in 4 MiB frames move 1.8 times as fast as in one frame of 45 MB
FRAMES_MAX = 4096  # with full frames 16 GiB of payload: 4 billion float32 parameters
CHUNK_BYTES = (
    FRAME_BYTES_MAX  # longest payload that goes with its message; a longer one goes in chunks, under credit
)
PAYLOAD_BYTES_MAX = FRAMES_MAX * FRAME_BYTES_MAX
FLOAT_BYTES = 4  # payloads are float32, and no number is cut by the end of a frame
CLIENTS_MAX = 1_000_000
TEXT_MAX = 1000  # characters of a sentence meant for people
NAME_MAX = 128  # characters of a name
STRING_BYTES_MAX = 4 * TEXT_MAX  # the longest text there is, in UTF-8
MAP_ENTRIES_MAX = 64  # fields of one map: four times what `welcome` has, for fields that are added later
TENSORS_MAX = 2000  # parameters of a model, counted as tensors; the header's own bound is met first
RANK_MAX = 8  # dimensions of one tensor
DIMENSION_MAX = 2**40  # length of one dimension; the payload's own bound is met first
HOLDING_MAX = 64  # tasks that a client names in hello; it works on one and may have a few unanswered
ENCODINGS_MAX = 16  # that a client may offer; there are five
BLOCK_MIN = 8  # numbers that share a scale: with fewer the scales would take as much room as is saved
BLOCK_MAX = 65_536
INTEGER_MAX = 2**63 - 1  # ids, versions and seeds are non-negative and fit a signed 64-bit integer
SECONDS_MAX = 7 * 24 * 3600.0
LOSS_MAX = (2 - 2**-23) * 2.0**127  # the largest float32: losses are kept as float32
LEARNING_RATE_MAX = 1e6
VARIANT_RATE_MIN = 1e-6  # a rate counts as a fraction of whole numbers up to a million
VARIANT_RATE_MAX = 1e6  # more examples at a time than a client holds
