"""Every bound of the wire contract, with its reason. PROTOCOL.md repeats them."""

PROTOCOL_VERSION = 1

HEADER_BYTES_MAX = 64 * 1024  # a signature of 500 parameters is about 30 KiB; everything else is under 5 KiB
FRAME_BYTES_MAX = 4 * 1024 * 1024  # payloads in 4 MiB frames move 1.8 times as fast as in one frame of 45 MB
FRAMES_MAX = 4096  # with full frames 16 GiB of payload: 4 billion float32 parameters
CHUNK_BYTES = FRAME_BYTES_MAX  # longest payload that is sent with its message; a longer one goes in chunks
PAYLOAD_BYTES_MAX = FRAMES_MAX * FRAME_BYTES_MAX
FLOAT_BYTES = 4  # payloads are float32, and a frame ends between two numbers
CLIENTS_MAX = 1_000_000
TEXT_MAX = 1000  # characters of a text for people
NAME_MAX = 128  # characters of a name
STRING_BYTES_MAX = 4 * TEXT_MAX  # the longest text, in UTF-8
MAP_ENTRIES_MAX = 64  # fields of one map: four times those of `welcome`, for later additions
TENSORS_MAX = 2000  # of a model; the bound on the header is met first
RANK_MAX = 8  # dimensions of one tensor
DIMENSION_MAX = 2**40  # length of one dimension; the bound on the payload is met first
HOLDING_MAX = 64  # tasks that a hello names: the current one, and a few without an ack
ENCODINGS_MAX = 16  # that a hello names; there are five
BLOCK_MIN = 8  # numbers that share a scale: with fewer, the scales cost as much as is saved
BLOCK_MAX = 65_536
INTEGER_MAX = 2**63 - 1  # ids, versions and seeds are non-negative and fit a signed 64-bit integer
SECONDS_MAX = 7 * 24 * 3600.0
LOSS_MAX = (2 - 2**-23) * 2.0**127  # the largest float32: losses are kept as float32
LEARNING_RATE_MAX = 1e6
METRICS_MAX = 32  # metrics of one training or evaluation
METRIC_NAME_MAX = 64  # characters of the name of a metric, or of a setting for clients
SETTINGS_MAX = 32  # settings for clients
SETTING_TEXT_MAX = 200  # characters of a setting that is a text: with all settings the header stays under its bound
VARIANT_RATE_MIN = 1e-6  # a rate is a fraction of integers up to a million
VARIANT_RATE_MAX = 1e6  # more examples at a time than a client holds
