-- The bus: what passes between processes and ends with them. Nothing here needs to survive a restart.
--
-- A build with other tables names its file differently: two builds side by side would make each other's anew.

-- Which start of the machine this file is from.
CREATE TABLE duly_meta (
  name  TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Messages, each until it is old. Numbers are never given twice: readers remember the last that they have seen.
CREATE TABLE duly_message (
  no      INTEGER PRIMARY KEY AUTOINCREMENT,
  to_node BLOB,                           -- NULL for all
  sender  BLOB NOT NULL,                  -- the process, which has told its own nodes already
  at      INTEGER NOT NULL,               -- microseconds since the machine started
  body    BLOB NOT NULL
) STRICT;

-- Nodes that can be asked to do something. Whether one is there is told by its slot on the board.
CREATE TABLE duly_guest (
  node    BLOB PRIMARY KEY,
  host    TEXT NOT NULL,
  pid     INTEGER NOT NULL,
  joined  INTEGER NOT NULL,               -- microseconds since 1970
  methods TEXT NOT NULL                   -- one a line
) STRICT, WITHOUT ROWID;

-- Connections that nodes hold.
CREATE TABLE duly_connection (
  name TEXT PRIMARY KEY,
  node BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX duly_connection_node ON duly_connection (node);
