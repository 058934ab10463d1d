-- The tables of a duly store in a SQLite file, format 1.
--
-- The body of a job is written once, into duly_job. The state of a job is one narrow row in exactly one of
-- duly_scheduled, duly_ready, duly_running and duly_ended. A state change never rewrites the args.
--
-- Columns that end in `_no` are small integer keys. Columns that end in `_id` are ids of 16 bytes.
-- Columns that end in `_at` are microseconds since 1970. Columns that end in `_uptime` are microseconds since the
-- machine started, on a clock that never steps. Durations carry their unit in the name.
--
-- `job_no` and `seq` come from one counter (duly_sequence 'next_number') that never goes back.
-- A job that is ready when it is pushed has seq = job_no. A later move to the tail of the queue takes a new seq.

-- Facts about the file: its format, and the version that created it.
CREATE TABLE duly_meta (
  name  TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Counters that never go back: 'next_number' (job_no and seq) and 'last_fence' (claims and locks).
-- Also 'removed_id_table' and 'removed_id_swapped_at', which belong to duly_removed_id_0, and 'removed_queues'.
CREATE TABLE duly_sequence (
  name  TEXT PRIMARY KEY,
  value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Queues. A queue gets its number on first use and keeps it. No other queue gets it after the queue is removed.
CREATE TABLE duly_queue (
  queue_no       INTEGER PRIMARY KEY AUTOINCREMENT,
  name           TEXT NOT NULL UNIQUE,
  paused         INTEGER NOT NULL DEFAULT 0,
  transfer_mark  TEXT,                    -- set while the queue moves to another store: who moves it, and where to
  cron_check_at  INTEGER,                 -- when to check the first of its cron rules
  planned_at     INTEGER,                 -- the latest time at which a tick of its rules was planned
  capacity_jobs  INTEGER,                 -- a push beyond either capacity is refused
  capacity_bytes INTEGER
) STRICT;

-- The body of every job, in any state.
CREATE TABLE duly_job (
  job_no       INTEGER PRIMARY KEY,
  id           BLOB NOT NULL,             -- 16 bytes, chosen by the client that pushed
  queue_no     INTEGER NOT NULL,
  kind         TEXT NOT NULL,
  args         TEXT NOT NULL,             -- JSON, never interpreted by the store
  priority     INTEGER NOT NULL,          -- 0 critical, 1 high, 2 normal, 3 low
  pushed_at    INTEGER NOT NULL,
  max_attempts INTEGER NOT NULL,
  timeout_ms   INTEGER NOT NULL,
  keep_ms      INTEGER NOT NULL,          -- how long the job is kept after it is done
  unique_key   TEXT,
  tags         TEXT,                      -- separated by spaces
  traceparent  TEXT,
  checksum     INTEGER NOT NULL           -- CRC-32 of the id, kind, args, tags, traceparent and numbers
) STRICT;
CREATE UNIQUE INDEX duly_job_id ON duly_job (id, queue_no);

-- Jobs that other programs push: they insert a row here in a transaction of their own. The next transaction of duly that
-- writes to the file turns the rows into jobs and deletes them. NULL means the default of a push.
CREATE TABLE duly_inbox (
  inbox_no     INTEGER PRIMARY KEY,       -- the rows of a queue become jobs in this order
  kind         TEXT NOT NULL,
  args         TEXT NOT NULL DEFAULT 'null', -- JSON
  queue        TEXT NOT NULL DEFAULT 'default',
  id           TEXT,                      -- a UUID; a job that has it already counts as pushed
  due_at       INTEGER,                   -- not together with delay_ms
  delay_ms     INTEGER,                   -- counts from inserted_at
  priority     TEXT,                      -- critical, high, normal, low
  unique_key   TEXT,
  unique_scope TEXT,                      -- kind, queue
  on_conflict  TEXT,                      -- keep, replace
  max_attempts INTEGER,
  timeout_ms   INTEGER,
  keep_ms      INTEGER,
  tags         TEXT,                      -- separated by spaces
  traceparent  TEXT,
  inserted_at  INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000),
  error        TEXT                       -- why the row cannot become a job; it is tried again once this is NULL
) STRICT;
CREATE INDEX duly_inbox_waiting ON duly_inbox (queue, inbox_no) WHERE error IS NULL;

-- Jobs that wait for their due time.
CREATE TABLE duly_scheduled (
  queue_no INTEGER NOT NULL,
  due_at   INTEGER NOT NULL,
  job_no   INTEGER NOT NULL,
  priority INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  crashes  INTEGER NOT NULL,
  PRIMARY KEY (queue_no, due_at, job_no)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX duly_scheduled_job_no ON duly_scheduled (job_no);

-- Jobs that can be claimed, in claim order.
CREATE TABLE duly_ready (
  queue_no INTEGER NOT NULL,
  priority INTEGER NOT NULL,
  seq      INTEGER NOT NULL,
  job_no   INTEGER NOT NULL,
  due_at   INTEGER NOT NULL,              -- the time from which it could be claimed
  attempts INTEGER NOT NULL,
  crashes  INTEGER NOT NULL,
  PRIMARY KEY (queue_no, priority, seq)
) STRICT, WITHOUT ROWID;
-- A job that never moved is found by its own number. Only the others need an index.
CREATE UNIQUE INDEX duly_ready_job_no ON duly_ready (job_no) WHERE seq <> job_no;

-- Jobs that a node holds. The table has one row per running job, so it needs no index by node.
CREATE TABLE duly_running (
  job_no   INTEGER PRIMARY KEY,
  node_no  INTEGER NOT NULL,
  queue_no INTEGER NOT NULL,
  fence    INTEGER NOT NULL,
  priority INTEGER NOT NULL,
  seq      INTEGER NOT NULL,              -- its position in duly_ready, restored by a release or a take back
  due_at   INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  crashes  INTEGER NOT NULL,
  cancel_keep_ms INTEGER,                 -- set by a cancel: the job ends cancelled, and is kept this long
  alone    INTEGER,                       -- 1 while its node runs no other job, as far as the node has said so
  acked    INTEGER                        -- 1 once the handler has acked it in a transaction of its own
) STRICT;

-- Done (state 3), dead (state 4) and cancelled (state 5) jobs, until they are pruned.
CREATE TABLE duly_ended (
  job_no   INTEGER PRIMARY KEY,
  queue_no INTEGER NOT NULL,
  state    INTEGER NOT NULL,
  prune_at INTEGER NOT NULL,              -- may be pruned from this time on
  ended_at INTEGER NOT NULL,
  due_at   INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  crashes  INTEGER NOT NULL,
  group_no INTEGER,                       -- the group of a dead job in duly_dead_group
  started_at  INTEGER,                    -- of the run that made the job done, with the three columns below
  duration_us INTEGER,
  node_id     BLOB,
  output      TEXT                        -- the end of what it logged
) STRICT;
CREATE INDEX duly_ended_prune_at ON duly_ended (queue_no, state, prune_at);
CREATE INDEX duly_ended_ended_at ON duly_ended (queue_no, state, ended_at, job_no);

-- Hints at scheduled jobs that a node deferred because it has no handler for their kind. A node with a handler takes
-- them before they are due. A hint counts only while the job is scheduled for exactly due_at. Other hints are deleted
-- when they are found.
CREATE TABLE duly_deferred (
  queue_no INTEGER NOT NULL,
  kind     TEXT NOT NULL,
  priority INTEGER NOT NULL,
  job_no   INTEGER NOT NULL,
  due_at   INTEGER NOT NULL,
  PRIMARY KEY (queue_no, kind, priority, job_no)
) STRICT, WITHOUT ROWID;

-- Search terms of scheduled (state 0) and dead (state 4) jobs: `k` and the kind, `t` and a tag, `g` and the dead group.
CREATE TABLE duly_job_index (
  queue_no        INTEGER NOT NULL,
  state           INTEGER NOT NULL,
  term            TEXT NOT NULL,
  due_or_ended_at INTEGER NOT NULL,       -- due_at of a scheduled job, ended_at of a dead one
  job_no          INTEGER NOT NULL,
  PRIMARY KEY (queue_no, state, term, due_or_ended_at, job_no)
) STRICT, WITHOUT ROWID;

-- Groups of dead jobs that have the same kind and died of the same error.
CREATE TABLE duly_dead_group (
  group_no  INTEGER PRIMARY KEY,
  queue_no  INTEGER NOT NULL,
  id        TEXT NOT NULL,
  kind      TEXT NOT NULL,
  error     TEXT NOT NULL,                -- without the parts that differ from job to job
  count     INTEGER NOT NULL,
  oldest_at INTEGER NOT NULL,
  newest_at INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX duly_dead_group_id ON duly_dead_group (queue_no, id);

-- The number of jobs of a queue in each state, and the counters of the current minute.
-- A transaction that changes any of them writes the row once.
CREATE TABLE duly_queue_stats (
  queue_no         INTEGER PRIMARY KEY,
  scheduled        INTEGER NOT NULL,
  ready            INTEGER NOT NULL,
  running          INTEGER NOT NULL,
  done             INTEGER NOT NULL,
  dead             INTEGER NOT NULL,
  cancelled        INTEGER NOT NULL,
  unfinished_bytes INTEGER NOT NULL,      -- bytes of args of scheduled, ready and running jobs
  minute           INTEGER NOT NULL,      -- since 1970
  counters         BLOB NOT NULL          -- packed numbers
) STRICT;

-- The counters of earlier minutes, kept for a day.
CREATE TABLE duly_history (
  queue_no INTEGER NOT NULL,
  minute   INTEGER NOT NULL,
  counters BLOB NOT NULL,
  PRIMARY KEY (queue_no, minute)
) STRICT, WITHOUT ROWID;

-- The counters of hours, kept for 30 days. A minute is added to its hour when it ends; the current one is in
-- duly_queue_stats.
CREATE TABLE duly_history_hour (
  queue_no INTEGER NOT NULL,
  hour     INTEGER NOT NULL,              -- since 1970
  counters BLOB NOT NULL,
  PRIMARY KEY (queue_no, hour)
) STRICT, WITHOUT ROWID;

-- The counters of a queue since its beginning, without the current minute. Added up when a minute ends, never deleted.
CREATE TABLE duly_queue_total (
  queue_no INTEGER PRIMARY KEY,
  counters BLOB NOT NULL
) STRICT;

-- The counters of the attempts of a kind in a minute, kept for two hours.
CREATE TABLE duly_kind_minute (
  minute   INTEGER NOT NULL,              -- since 1970
  kind     TEXT NOT NULL,
  counters BLOB NOT NULL,
  PRIMARY KEY (minute, kind)
) STRICT, WITHOUT ROWID;

-- The counters of the attempts of a kind in an hour, kept for 30 days.
CREATE TABLE duly_kind_hour (
  hour     INTEGER NOT NULL,              -- since 1970
  kind     TEXT NOT NULL,
  counters BLOB NOT NULL,
  PRIMARY KEY (hour, kind)
) STRICT, WITHOUT ROWID;

-- The progress of a job's last attempt, and its result.
CREATE TABLE duly_progress (
  job_no     INTEGER PRIMARY KEY,
  fraction   REAL,                        -- 0 to 1
  message    TEXT,
  updated_at INTEGER,
  result     TEXT                         -- JSON
) STRICT;

-- Log lines of a job's attempts.
CREATE TABLE duly_log (
  job_no    INTEGER NOT NULL,
  logged_at INTEGER NOT NULL,
  attempt   INTEGER NOT NULL,
  line      TEXT NOT NULL
) STRICT;
CREATE INDEX duly_log_job_no ON duly_log (job_no);

-- Runs of jobs that are still in the store: their attempts, except the one that made a job done, see duly_ended.
CREATE TABLE duly_run (
  job_no      INTEGER NOT NULL,
  ended_at    INTEGER NOT NULL,
  attempt     INTEGER NOT NULL,
  node_id     BLOB NOT NULL,
  outcome     TEXT NOT NULL,              -- ack, retry, bury, release, crash
  started_at  INTEGER,                    -- NULL if it is not known
  duration_us INTEGER,
  error       TEXT,                       -- of a run that failed
  output      TEXT                        -- the end of what it logged
) STRICT;
CREATE INDEX duly_run_job_no ON duly_run (job_no, ended_at);

-- Unique keys of unfinished jobs, with their scope: `KIND KEY`, or `* KEY` for all kinds.
-- The transaction that ends the job frees its key.
CREATE TABLE duly_unique_key (
  queue_no   INTEGER NOT NULL,
  unique_key TEXT NOT NULL,
  job_no     INTEGER NOT NULL,
  PRIMARY KEY (queue_no, unique_key)
) STRICT, WITHOUT ROWID;

-- Ids of jobs that were removed recently: a repeated push of such an id changes nothing.
-- One of the two tables takes new ids. When it is old enough, the other is emptied and takes over: no id needs its own
-- time of removal.
CREATE TABLE duly_removed_id_0 (
  queue_no INTEGER NOT NULL,
  job_id   BLOB NOT NULL,
  PRIMARY KEY (queue_no, job_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE duly_removed_id_1 (
  queue_no INTEGER NOT NULL,
  job_id   BLOB NOT NULL,
  PRIMARY KEY (queue_no, job_id)
) STRICT, WITHOUT ROWID;

-- The last batch that a transfer from another store brought into a queue. A resumed transfer continues from it.
CREATE TABLE duly_transfer_checkpoint (
  queue_no    INTEGER NOT NULL,
  begun_by    BLOB NOT NULL,              -- the id of the node that started the transfer
  checkpoint  TEXT NOT NULL,
  PRIMARY KEY (queue_no, begun_by)
) STRICT, WITHOUT ROWID;

-- Cron rules. Workers interpret `rule`; for the store a tick is only a time.
CREATE TABLE duly_cron (
  name         TEXT PRIMARY KEY,
  queue_no     INTEGER NOT NULL,
  rule         TEXT NOT NULL,             -- JSON with the number of its format
  revision     INTEGER NOT NULL,          -- grows with every change of this row
  paused       INTEGER NOT NULL,
  next_tick_at INTEGER,                   -- the tick that fires next
  check_at     INTEGER,                   -- next_tick_at, or later while the tick waits; NULL if paused
  waiting      INTEGER NOT NULL,          -- the tick is due, and waits until the job of an earlier tick ends
  last_tick_at INTEGER                    -- the last tick that fired
) STRICT, WITHOUT ROWID;
CREATE INDEX duly_cron_check_at ON duly_cron (queue_no, check_at) WHERE check_at IS NOT NULL;

-- Nodes that joined. The slot in the directory FILE-nodes says whether a node is alive; this row does not.
CREATE TABLE duly_node (
  node_no   INTEGER PRIMARY KEY,
  id        BLOB NOT NULL UNIQUE,
  slot      INTEGER NOT NULL,
  host      TEXT NOT NULL,
  pid       INTEGER NOT NULL,
  queues    TEXT NOT NULL,                -- separated by spaces
  joined_at INTEGER NOT NULL,
  profile   TEXT                          -- its kinds and slots, as JSON
) STRICT;

-- Locks that are held. Expired rows may remain: no timer deletes them.
-- A row from before the last start of the machine has an extended_uptime in the future, or a node that is gone.
CREATE TABLE duly_lock (
  name            TEXT NOT NULL,
  slot            INTEGER NOT NULL,       -- 1 for the only holder of a plain lock
  owner_id        BLOB NOT NULL,          -- one acquisition
  node_id         BLOB NOT NULL,
  ends_with_node  INTEGER NOT NULL,       -- 1 until the node leaves in an orderly way
  note            TEXT NOT NULL,
  fence           INTEGER NOT NULL,
  acquired_at     INTEGER NOT NULL,
  extended_uptime INTEGER NOT NULL,
  expires_uptime  INTEGER NOT NULL,
  PRIMARY KEY (name, slot)
) STRICT, WITHOUT ROWID;
CREATE INDEX duly_lock_expires_uptime ON duly_lock (expires_uptime);

-- Waiters for locks, first come first served. Waiters of a node without a current lease are skipped and deleted.
CREATE TABLE duly_lock_waiter (
  lock_name TEXT NOT NULL,
  seq       INTEGER NOT NULL,
  owner_id  BLOB NOT NULL,
  node_id   BLOB NOT NULL,
  slots     INTEGER NOT NULL,             -- how many holders this waiter allows
  PRIMARY KEY (lock_name, seq)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX duly_lock_waiter_owner_id ON duly_lock_waiter (lock_name, owner_id);

-- Tokens that authenticate HTTP clients.
CREATE TABLE duly_token (
  name       TEXT PRIMARY KEY,
  role       TEXT NOT NULL,               -- viewer, pusher, operator, admin
  hash       BLOB NOT NULL,               -- SHA-256 of the token; the token itself is not stored
  created_at INTEGER NOT NULL,
  expires_at INTEGER
) STRICT, WITHOUT ROWID;

-- The newest audit entries of each actor: changes made over HTTP and on the command line.
CREATE TABLE duly_audit (
  number      INTEGER PRIMARY KEY AUTOINCREMENT,
  recorded_at INTEGER NOT NULL,
  actor       TEXT NOT NULL,
  action      TEXT NOT NULL,
  target      TEXT,                       -- id or name of the changed thing
  filter      TEXT,                       -- filter that selected the changed jobs
  changed     INTEGER,                    -- how many things were changed
  outcome     TEXT NOT NULL,              -- started, done, refused, unknown
  address     TEXT                        -- the client's address
) STRICT;
CREATE INDEX duly_audit_actor ON duly_audit (actor, number);

-- How many audit entries each actor has: the largest makes room for a new one.
CREATE TABLE duly_audit_count (
  actor   TEXT PRIMARY KEY,
  entries INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX duly_audit_count_entries ON duly_audit_count (entries, actor);
