"""Tables and views of `run.db`, for `sqlite3` too. docs/run-directory.md describes them."""

FORMAT = 5
OLDEST_FORMAT = 3
ADDED_COLUMNS = {4: ("norm", "norm_buffers", "norm_extra", "state_checksum"), 5: ("metrics",)}
"""Columns of updates by the format that added them. A database of a former format is read without them, and a server
converts it: they are null for its updates.
"""
METRICS_FORMAT = 5
"""The format that added metrics by name to rounds and evaluations; before, evaluations had two columns of their own."""

APPLICATION = 0x756E7374  # "unst", identifies our databases

UPDATES = """
CREATE TABLE updates (
  seq INTEGER PRIMARY KEY,
  at_s REAL NOT NULL,
  client_id INTEGER NOT NULL,
  task_id INTEGER NOT NULL,
  base_version INTEGER NOT NULL,
  outcome TEXT NOT NULL,
  reason TEXT,
  num_examples INTEGER NOT NULL,
  batch_examples INTEGER NOT NULL,
  loss ANY NOT NULL,  -- a REAL column forgets the sign of zero
  local_rate REAL NOT NULL,
  norm ANY,  -- Euclidean norms of the vectors of the update; null where it has none
  norm_buffers ANY,
  norm_extra ANY,
  metrics TEXT,  -- JSON, of the training, by name; null for none
  handle INTEGER UNIQUE,
  offset INTEGER,  -- in the segment, bytes
  size_bytes INTEGER,
  checksum INTEGER,  -- xxh3_64 of the bytes of the update, as a signed number
  row_checksum INTEGER NOT NULL,  -- of the columns above
  segment INTEGER,  -- null when it is deleted, because checkpoints cover it
  round INTEGER REFERENCES rounds (version),
  position INTEGER,  -- in the round, from 0
  staleness INTEGER,
  weight ANY,
  state_checksum INTEGER NOT NULL,  -- of seq, handle, segment, round, position, staleness, weight
  CHECK ((reason IS NULL) = (handle IS NOT NULL)),
  CHECK (round IS NULL OR handle IS NOT NULL)
) STRICT;
CREATE INDEX updates_by_round ON updates (round) WHERE handle IS NOT NULL;
CREATE INDEX updates_by_segment ON updates (segment) WHERE segment IS NOT NULL;
"""

ROUNDS = """
CREATE TABLE rounds (
  version INTEGER PRIMARY KEY,
  closed_s REAL NOT NULL,
  applied_s REAL NOT NULL,
  wait_s REAL NOT NULL,
  compensate_s REAL NOT NULL,
  aggregate_s REAL NOT NULL,
  learning_rate REAL NOT NULL,
  rate_factor ANY,
  overflowed INTEGER NOT NULL,
  digest TEXT NOT NULL,
  compensation TEXT,  -- JSON; null without a compensator
  metrics TEXT,  -- JSON, of policy and compensator, by name; null for none
  row_checksum INTEGER NOT NULL
) STRICT;
"""

_ACCURACY_AND_LOSS = """
  accuracy ANY AS (CASE WHEN json_valid(metrics) THEN json_extract(metrics, '$.accuracy') END),
  loss ANY AS (CASE WHEN json_valid(metrics) THEN json_extract(metrics, '$.loss') END)
"""  # for queries

EVALUATIONS = f"""
CREATE TABLE evaluations (
  version INTEGER PRIMARY KEY,
  at_s REAL NOT NULL,
  metrics TEXT NOT NULL,  -- JSON, by name; null for what is not a number
  class_accuracy TEXT NOT NULL,  -- JSON, by class
  evaluate_s REAL NOT NULL,
  row_checksum INTEGER NOT NULL,{_ACCURACY_AND_LOSS}) STRICT;
"""

OWN_EVALUATIONS = f"""
CREATE TABLE own_evaluations (
  seq INTEGER PRIMARY KEY,  -- of the update that it came with
  client_id INTEGER NOT NULL,
  version INTEGER NOT NULL,
  metrics TEXT NOT NULL,  -- JSON, by name
  examples INTEGER NOT NULL,
  row_checksum INTEGER NOT NULL,{_ACCURACY_AND_LOSS}) STRICT;
"""

VIEWS = """
CREATE VIEW conservation AS
SELECT
  count(*) AS received,
  count(round) AS aggregated,
  count(*) FILTER (WHERE reason IS NULL AND round IS NULL) AS pending,
  count(reason) AS rejected
FROM updates;

CREATE VIEW clients AS
SELECT client_id, sum(task) AS tasks, sum(NOT task) AS received, sum(aggregated) AS aggregated,
  sum(NOT task AND NOT aggregated AND NOT rejected) AS pending, sum(rejected) AS rejected,
  avg(staleness) AS mean_staleness, max(update_s) AS last_update_s
FROM (
  SELECT client_id, 1 AS task, 0 AS aggregated, 0 AS rejected, NULL AS staleness, NULL AS update_s FROM tasks
  UNION ALL
  SELECT client_id, 0, round IS NOT NULL, reason IS NOT NULL, staleness, at_s FROM updates
)
GROUP BY client_id;
"""

SCHEMA = f"""
CREATE TABLE meta (
  key TEXT PRIMARY KEY,
  value TEXT NOT NULL,
  row_checksum INTEGER NOT NULL  -- here and below: xxh3_64 of the row, as a signed number
) STRICT;

CREATE TABLE events (
  seq INTEGER PRIMARY KEY,
  at_s REAL NOT NULL,
  kind TEXT NOT NULL,
  fields TEXT NOT NULL,  -- JSON
  row_checksum INTEGER NOT NULL
) STRICT;

CREATE TABLE tasks (
  task_id INTEGER PRIMARY KEY,
  client_id INTEGER NOT NULL,
  number INTEGER NOT NULL,
  version INTEGER NOT NULL,
  at_s REAL NOT NULL,
  row_checksum INTEGER NOT NULL
) STRICT;

{ROUNDS}
{EVALUATIONS}
{OWN_EVALUATIONS}
CREATE TABLE checkpoints (
  version INTEGER PRIMARY KEY,
  seq INTEGER NOT NULL,
  file TEXT NOT NULL,
  size_bytes INTEGER NOT NULL,
  at_s REAL NOT NULL,
  row_checksum INTEGER NOT NULL
) STRICT;

{UPDATES}
{VIEWS}"""
