-- The message bus between processes. No row needs to survive a restart of the machine.
--
-- A build with other tables must use another file name: two builds on one file would replace each other's tables.
-- Column names follow the rules of schema.sql.

-- The start of the machine that this file belongs to ('boot_id').
CREATE TABLE duly_meta (
  name  TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Messages, until they are old. A number is never used twice, so a reader only remembers the last one it read.
CREATE TABLE duly_message (
  message_no  INTEGER PRIMARY KEY AUTOINCREMENT,
  to_node_id  BLOB,                       -- NULL for a broadcast
  sender_id   BLOB NOT NULL,              -- the sending process, which delivers to its own nodes directly
  sent_uptime INTEGER NOT NULL,
  body        BLOB NOT NULL
) STRICT;

-- Nodes that can be called. The slot in the node registry says whether a node is alive; this row does not.
CREATE TABLE duly_peer (
  node_id   BLOB PRIMARY KEY,
  host      TEXT NOT NULL,
  pid       INTEGER NOT NULL,
  joined_at INTEGER NOT NULL,
  methods   TEXT NOT NULL                 -- one per line
) STRICT, WITHOUT ROWID;

-- Connections that nodes hold.
CREATE TABLE duly_connection (
  name    TEXT PRIMARY KEY,
  node_id BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX duly_connection_node_id ON duly_connection (node_id);
