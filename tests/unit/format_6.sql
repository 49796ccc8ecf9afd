BEGIN TRANSACTION;
CREATE TABLE generation (number INTEGER PRIMARY KEY, last_seq INTEGER NOT NULL, began REAL NOT NULL);
INSERT INTO "generation" VALUES(6,3,1700000000.0);
INSERT INTO "generation" VALUES(7,5,1700000060.0);
CREATE TABLE kept_generation (
    number INTEGER PRIMARY KEY,
    last_seq INTEGER NOT NULL,
    files INTEGER NOT NULL,
    listed BLOB NOT NULL
);
INSERT INTO "kept_generation" VALUES(7,5,4,X'0100000000000000000000003B3000000100000400010001000400');
CREATE TABLE history (
    uptime_s INTEGER PRIMARY KEY,          -- how long daemons have served this cache, in all
    at INTEGER NOT NULL,                   -- seconds since 1970, by the clock of the machine
    state TEXT NOT NULL,
    generation INTEGER NOT NULL,
    files INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    limit_bytes INTEGER NOT NULL,
    listed_files INTEGER NOT NULL,
    share_files INTEGER NOT NULL,
    files_seen INTEGER NOT NULL,
    opens INTEGER NOT NULL,
    fetched_files INTEGER NOT NULL,        -- this and what follows: from the first row on
    fetched_bytes INTEGER NOT NULL,
    evicted_files INTEGER NOT NULL,
    missed_files INTEGER NOT NULL,
    wait_ms INTEGER NOT NULL
);
INSERT INTO "history" VALUES(60,1700000060,'complete',7,4,16384,1000000000,3,5,4,6,4,360,0,0,0);
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
INSERT INTO "meta" VALUES('boot_id','');
INSERT INTO "meta" VALUES('clean',0);
INSERT INTO "meta" VALUES('listing',1);
INSERT INTO "meta" VALUES('pass',1);
CREATE TABLE node (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused: the kernel may have cached it
    parent INTEGER NOT NULL,
    name TEXT NOT NULL,
    is_dir INTEGER NOT NULL,
    size INTEGER,                          -- in bytes; NULL while it is unknown
    mtime_ns INTEGER,
    version TEXT NOT NULL DEFAULT '',
    drawn INTEGER NOT NULL DEFAULT 0,      -- the last pass that drew it; negative: deferred it
    pinned INTEGER NOT NULL DEFAULT 0,     -- PINNED and FROZEN as bits; 0: may be delisted and evicted
    first_shown INTEGER,                   -- generations that showed it before its last eviction
    last_shown INTEGER,
    UNIQUE (parent, name)
);
INSERT INTO "node" VALUES(1,0,'',1,NULL,NULL,'',0,0,NULL,NULL);
INSERT INTO "node" VALUES(1025,1,'a',1,NULL,NULL,'',0,0,NULL,NULL);
INSERT INTO "node" VALUES(1026,1025,'0.jpg',0,100,5,'v1',1,1,NULL,NULL);
INSERT INTO "node" VALUES(1027,1025,'1.jpg',0,100,5,'v1',1,0,NULL,NULL);
INSERT INTO "node" VALUES(1028,1025,'2.jpg',0,100,5,'v1',1,0,NULL,NULL);
INSERT INTO "node" VALUES(1029,1025,'README',0,120,5,'v1',1,0,NULL,NULL);
INSERT INTO "node" VALUES(1030,1025,'missing.jpg',0,220,5,'v1',1,0,NULL,NULL);
CREATE TABLE resident (
    id INTEGER PRIMARY KEY REFERENCES node,
    parent INTEGER NOT NULL,
    suffix TEXT,                           -- the extension of a file's name; NULL for a directory
    seq INTEGER NOT NULL UNIQUE,           -- the order of admission
    queue_position INTEGER NOT NULL,       -- position in the queue to be delisted; a group has one
    delisted INTEGER,                      -- the generation that delisted it
    opened INTEGER NOT NULL DEFAULT 0,     -- whether it was opened since its admission
    bytes INTEGER NOT NULL,                -- allocated on the disk
    ino INTEGER NOT NULL,                  -- with file_mtime_ns: identifies the cached file
    file_mtime_ns INTEGER NOT NULL,
    digest TEXT NOT NULL,                  -- of the content, as growfs.remote.digest makes it
    durable INTEGER NOT NULL DEFAULT 0     -- 1: a syncfs has covered it
);
INSERT INTO "resident" VALUES(1025,1,NULL,1,1,NULL,0,0,0,0,'',1);
INSERT INTO "resident" VALUES(1026,1025,'jpg',2,2,NULL,1,4096,0,0,'crc64nvme:72e2507107dd2ca5',1);
INSERT INTO "resident" VALUES(1027,1025,'jpg',3,3,NULL,1,4096,0,0,'crc64nvme:494609feb14e0b95',1);
INSERT INTO "resident" VALUES(1028,1025,'jpg',4,4,7,0,4096,0,0,'crc64nvme:05aae36e6afb62c5',1);
INSERT INTO "resident" VALUES(1029,1025,'',5,5,NULL,0,4096,0,0,'crc64nvme:8d4d235ecb88053b',1);
CREATE TABLE skipped (path TEXT PRIMARY KEY, reason TEXT NOT NULL, listing INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO "skipped" VALUES('a/..','has .. in its name',1);
CREATE TABLE usage (id INTEGER PRIMARY KEY, fetches INTEGER NOT NULL DEFAULT 0, opens INTEGER NOT NULL DEFAULT 0);
INSERT INTO "usage" VALUES(1026,1,0);
INSERT INTO "usage" VALUES(1027,1,1);
INSERT INTO "usage" VALUES(1028,1,2);
INSERT INTO "usage" VALUES(1029,1,3);
CREATE INDEX directories ON node (id) WHERE is_dir = 1;
CREATE INDEX pinned ON node (id) WHERE pinned > 0;
CREATE INDEX resident_by_parent ON resident (parent, seq);
CREATE INDEX not_durable ON resident (id) WHERE durable = 0;
CREATE INDEX resident_by_queue_position ON resident (queue_position, delisted, seq) WHERE suffix IS NOT NULL;
CREATE INDEX delisted ON resident (delisted, queue_position, bytes) WHERE delisted IS NOT NULL;
CREATE INDEX resident_files ON resident (seq) WHERE suffix IS NOT NULL;
CREATE INDEX generation_by_seq ON generation (last_seq);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('node',1030);
COMMIT;
PRAGMA user_version = 6;
