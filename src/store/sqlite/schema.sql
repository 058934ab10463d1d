-- duly's tables in a SQLite file, format 1.
--
-- A job's body is written once (duly_job). Where it is in its life is one narrow row in exactly one of
-- duly_scheduled, duly_ready, duly_held, duly_ended: moving a job never touches its args.
--
-- Moments are microseconds since 1970, durations carry their unit in the name.
-- `no` and `seq` come from one counter (duly_mark 'number') that never goes back:
-- a job that is ready at its push has seq = no; any later move to the tail takes a new seq.

-- What kind of file this is: format, when it was made, by which version.
CREATE TABLE duly_meta (
  name  TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- High-water marks: 'number' (of jobs and places), 'fence' (of claims and locks), 'gone_half' and 'gone_since' (see duly_gone_0).
CREATE TABLE duly_mark (
  name  TEXT PRIMARY KEY,
  value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Queues get a short number at their first job, and keep it.
CREATE TABLE duly_queue (
  no     INTEGER PRIMARY KEY,
  name   TEXT NOT NULL UNIQUE,
  paused INTEGER NOT NULL DEFAULT 0,
  moving TEXT,                            -- to another store: who moves it, who began, and where to
  tick   INTEGER,                         -- when to look at the first of its cron rules
  limit_jobs  INTEGER,                    -- a push beyond is refused
  limit_bytes INTEGER
) STRICT;

-- The body of every job, in whatever state.
CREATE TABLE duly_job (
  no           INTEGER PRIMARY KEY,
  id           BLOB NOT NULL,             -- 16 bytes, made by whoever pushed
  queue        INTEGER NOT NULL,
  kind         TEXT NOT NULL,
  args         TEXT NOT NULL,             -- JSON, never looked into
  priority     INTEGER NOT NULL,          -- 0 critical, 1 high, 2 normal, 3 low
  pushed       INTEGER NOT NULL,
  max_attempts INTEGER NOT NULL,
  timeout_ms   INTEGER NOT NULL,
  keep_ms      INTEGER NOT NULL,
  unique_key   TEXT,
  tags         TEXT,                      -- separated by spaces
  traceparent  TEXT,
  sum          INTEGER                    -- CRC-32 of what stands here and never changes, and of the args
) STRICT;
CREATE UNIQUE INDEX duly_job_id ON duly_job (id, queue);

-- Jobs that wait for their due moment.
CREATE TABLE duly_scheduled (
  queue    INTEGER NOT NULL,
  due      INTEGER NOT NULL,
  no       INTEGER NOT NULL,
  priority INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  crashes  INTEGER NOT NULL,
  PRIMARY KEY (queue, due, no)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX duly_scheduled_no ON duly_scheduled (no);

-- Jobs that may be claimed, in the order in which they will be.
CREATE TABLE duly_ready (
  queue    INTEGER NOT NULL,
  priority INTEGER NOT NULL,
  seq      INTEGER NOT NULL,
  no       INTEGER NOT NULL,
  due      INTEGER NOT NULL,              -- the moment from which it could be claimed
  attempts INTEGER NOT NULL,
  crashes  INTEGER NOT NULL,
  PRIMARY KEY (queue, priority, seq)
) STRICT, WITHOUT ROWID;
-- A job that never moved is found by its own number; only the others need an index.
CREATE UNIQUE INDEX duly_ready_no ON duly_ready (no) WHERE seq <> no;

-- Jobs in a node's hands. As small as the number of running jobs, so it needs no index by node.
CREATE TABLE duly_held (
  no       INTEGER PRIMARY KEY,
  node     INTEGER NOT NULL,
  queue    INTEGER NOT NULL,
  fence    INTEGER NOT NULL,
  priority INTEGER NOT NULL,
  seq      INTEGER NOT NULL,              -- its place in ready, to go back to when it is released or taken back
  due      INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  crashes  INTEGER NOT NULL
) STRICT;

-- Done (state 3) and dead (state 4) jobs, until they are pruned.
CREATE TABLE duly_ended (
  no       INTEGER PRIMARY KEY,
  queue    INTEGER NOT NULL,
  state    INTEGER NOT NULL,
  until    INTEGER NOT NULL,              -- pruned from this moment on
  ended    INTEGER NOT NULL,
  due      INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  crashes  INTEGER NOT NULL,
  grp      INTEGER                        -- of a dead one, in duly_group
) STRICT;
CREATE INDEX duly_ended_until ON duly_ended (queue, state, until);
CREATE INDEX duly_ended_ended ON duly_ended (queue, state, ended, no);

-- Scheduled jobs that a node has put off because it does not know their kind: one that does takes them before they are due.
-- Hints, not places: one counts while the job is scheduled for that very moment, and goes when somebody comes upon it.
CREATE TABLE duly_put_off (
  queue    INTEGER NOT NULL,
  kind     TEXT NOT NULL,
  priority INTEGER NOT NULL,
  no       INTEGER NOT NULL,
  due      INTEGER NOT NULL,
  PRIMARY KEY (queue, kind, priority, no)
) STRICT, WITHOUT ROWID;

-- Words by which scheduled (state 0) and dead (state 4) jobs are found: `k` and the kind, `t` and a tag, `g` and the group.
CREATE TABLE duly_find (
  queue INTEGER NOT NULL,
  state INTEGER NOT NULL,
  word  TEXT NOT NULL,
  at    INTEGER NOT NULL,                 -- when it is due, or when it ended
  no    INTEGER NOT NULL,
  PRIMARY KEY (queue, state, word, at, no)
) STRICT, WITHOUT ROWID;

-- Dead jobs of one kind that died of the same.
CREATE TABLE duly_group (
  no     INTEGER PRIMARY KEY,
  queue  INTEGER NOT NULL,
  id     TEXT NOT NULL,
  kind   TEXT NOT NULL,
  error  TEXT NOT NULL,                   -- without what differs from one to the next
  count  INTEGER NOT NULL,
  oldest INTEGER NOT NULL,
  newest INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX duly_group_id ON duly_group (queue, id);

-- How many jobs of a queue are in which state, and what has happened in the present minute: one row, written once in each
-- transaction that changes any of it.
CREATE TABLE duly_count (
  queue     INTEGER PRIMARY KEY,
  scheduled INTEGER NOT NULL,
  ready     INTEGER NOT NULL,
  running   INTEGER NOT NULL,
  done      INTEGER NOT NULL,
  dead      INTEGER NOT NULL,
  bytes     INTEGER NOT NULL,             -- of args of unfinished jobs
  minute    INTEGER NOT NULL,             -- since 1970
  tally     BLOB NOT NULL
) STRICT;

-- What happened in earlier minutes, for a day.
CREATE TABLE duly_history (
  queue  INTEGER NOT NULL,
  minute INTEGER NOT NULL,
  tally  BLOB NOT NULL,
  PRIMARY KEY (queue, minute)
) STRICT, WITHOUT ROWID;

-- What has ever happened in a queue, but for the present minute: added up when a minute is over, never deleted.
CREATE TABLE duly_total (
  queue INTEGER PRIMARY KEY,
  tally BLOB NOT NULL
) STRICT;

-- What attempts of a kind came to in an hour, for a day.
CREATE TABLE duly_kind (
  hour  INTEGER NOT NULL,                 -- since 1970
  kind  TEXT NOT NULL,
  tally BLOB NOT NULL,
  PRIMARY KEY (hour, kind)
) STRICT, WITHOUT ROWID;

-- How far a job's last attempt has come, and what it gave.
CREATE TABLE duly_note (
  no       INTEGER PRIMARY KEY,
  progress REAL,
  said     TEXT,
  at       INTEGER,
  result   TEXT
) STRICT;

-- What a job's attempts have said.
CREATE TABLE duly_log (
  no      INTEGER NOT NULL,
  at      INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  line    TEXT NOT NULL
) STRICT;
CREATE INDEX duly_log_no ON duly_log (no);

-- Failed attempts of jobs that are still here.
CREATE TABLE duly_failure (
  no      INTEGER NOT NULL,
  at      INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  node    BLOB NOT NULL,
  error   TEXT NOT NULL
) STRICT;
CREATE INDEX duly_failure_no ON duly_failure (no, at);

-- Unique keys of unfinished jobs: freed in the same step in which the job ends.
CREATE TABLE duly_unique (
  queue INTEGER NOT NULL,
  key   TEXT NOT NULL,
  no    INTEGER NOT NULL,
  PRIMARY KEY (queue, key)
) STRICT, WITHOUT ROWID;

-- Ids of jobs that are gone, so that a repeated push of them changes nothing.
-- Two halves swap roles when the older one is over age: forgetting is one DELETE without a scan.
CREATE TABLE duly_gone_0 (
  queue INTEGER NOT NULL,
  id    BLOB NOT NULL,
  PRIMARY KEY (queue, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE duly_gone_1 (
  queue INTEGER NOT NULL,
  id    BLOB NOT NULL,
  PRIMARY KEY (queue, id)
) STRICT, WITHOUT ROWID;

-- What a move from another store into a queue has brought last, for whoever takes it up again.
CREATE TABLE duly_marker (
  queue    INTEGER NOT NULL,
  begun_by BLOB NOT NULL,                 -- names the move
  note     TEXT NOT NULL,
  PRIMARY KEY (queue, begun_by)
) STRICT, WITHOUT ROWID;

-- Cron rules. Only `rule` says when they fire, and only programs read it: to the store a tick is a moment.
CREATE TABLE duly_cron (
  name     TEXT PRIMARY KEY,
  queue    INTEGER NOT NULL,
  rule     TEXT NOT NULL,                 -- JSON with the number of its format
  revision INTEGER NOT NULL,              -- another with every change of this row
  paused   INTEGER NOT NULL,
  next     INTEGER,                       -- the tick that is fired next
  look     INTEGER,                       -- when to look at it: at that tick, or later while it is held back; never if paused
  held     INTEGER NOT NULL,              -- that tick is due, and waits for the job of an earlier one to end
  last     INTEGER                        -- the newest tick that was fired
) STRICT, WITHOUT ROWID;
CREATE INDEX duly_cron_look ON duly_cron (queue, look) WHERE look IS NOT NULL;

-- Nodes that have joined. Whether one lives is told by its slot in the directory beside the file, never by this row.
CREATE TABLE duly_node (
  no     INTEGER PRIMARY KEY,
  id     BLOB NOT NULL UNIQUE,
  slot   INTEGER NOT NULL,
  host   TEXT NOT NULL,
  pid    INTEGER NOT NULL,
  queues TEXT NOT NULL,                   -- separated by spaces
  joined INTEGER NOT NULL,
  takes  TEXT                             -- what it can take on, as JSON
) STRICT;

-- Locks that are held. Those that have ended may still stand here: nothing happens at the moment at which one ends.
-- `extended` and `ends` are microseconds since the machine started, on a clock that never steps;
-- a hold from before that start is told by an `extended` that is yet to come, and by its node, which is gone.
CREATE TABLE duly_lock (
  name     TEXT NOT NULL,
  slot     INTEGER NOT NULL,              -- 1 for the only holder of a plain lock
  owner    BLOB NOT NULL,                 -- one acquisition
  node     BLOB NOT NULL,
  bound    INTEGER NOT NULL,              -- ends with its node; not any more once that has departed in good order
  note     TEXT NOT NULL,
  fence    INTEGER NOT NULL,
  since    INTEGER NOT NULL,
  extended INTEGER NOT NULL,
  ends     INTEGER NOT NULL,
  PRIMARY KEY (name, slot)
) STRICT, WITHOUT ROWID;
CREATE INDEX duly_lock_ends ON duly_lock (ends);

-- Places in the lines before locks. One whose node does not attend counts for nothing, and is deleted when it is met.
CREATE TABLE duly_line (
  name  TEXT NOT NULL,
  seq   INTEGER NOT NULL,
  owner BLOB NOT NULL,
  node  BLOB NOT NULL,
  slots INTEGER NOT NULL,                 -- how many holders this one would allow
  PRIMARY KEY (name, seq)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX duly_line_owner ON duly_line (name, owner);

-- Tokens, by which somebody over HTTP is known.
CREATE TABLE duly_token (
  name    TEXT PRIMARY KEY,
  role    TEXT NOT NULL,                  -- viewer, pusher, operator, admin
  hash    BLOB NOT NULL,                  -- SHA-256 of the token, which is kept nowhere
  created INTEGER NOT NULL,
  expires INTEGER
) STRICT, WITHOUT ROWID;

-- Who has changed what: the newest entries.
CREATE TABLE duly_audit (
  no      INTEGER PRIMARY KEY AUTOINCREMENT,
  at      INTEGER NOT NULL,
  who     TEXT NOT NULL,
  what    TEXT NOT NULL,
  address TEXT,
  status  INTEGER NOT NULL
) STRICT;
