-- SQLite's C interface seen from Lua: only functions that every 3.x library since 3.6 has, so that one script drives them all.

local ffi = require("ffi")
local pb = require("perfbisect")

ffi.cdef[[
typedef struct sqlite3 sqlite3;
typedef struct sqlite3_stmt sqlite3_stmt;

int sqlite3_open(const char *path, sqlite3 **db);
int sqlite3_close(sqlite3 *db);
int sqlite3_busy_timeout(sqlite3 *db, int milliseconds);
const char *sqlite3_errmsg(sqlite3 *db);
int sqlite3_exec(sqlite3 *db, const char *sql, void *row, void *context, char **message);
int sqlite3_prepare_v2(sqlite3 *db, const char *sql, int size, sqlite3_stmt **statement, const char **rest);
int sqlite3_bind_int(sqlite3_stmt *statement, int place, int value);
int sqlite3_bind_text(sqlite3_stmt *statement, int place, const char *text, int size, void *destructor);
int sqlite3_step(sqlite3_stmt *statement);
int sqlite3_reset(sqlite3_stmt *statement);
int sqlite3_finalize(sqlite3_stmt *statement);
]]

local OK, ROW, DONE = 0, 100, 101
local BUSY_MILLISECONDS = 10000 -- threads wait for each other's locks instead of failing
local STATIC = ffi.cast("void *", 0) -- bound text is kept by its owner, not copied by the library

-- The same for all builds, so that the engine's processor time decides: nothing waits for a disk, the table fits in the
-- cache, and what later versions changed as a default (the page size, the journal) is written down.
local PRAGMAS = [[
PRAGMA page_size = 4096;
PRAGMA cache_size = 20000;
PRAGMA synchronous = OFF;
PRAGMA journal_mode = MEMORY;
PRAGMA temp_store = MEMORY;
]]

local Statement = {}
Statement.__index = Statement

local Connection = {}
Connection.__index = Connection

local engine = {}

-- Opens the dataset's file with the fixed settings; the file is made where it does not exist.
function engine.connect()
    local library, place = pb.library(), ffi.new("sqlite3 *[1]")
    local path = pb.data() .. "/data.db"
    local status = library.sqlite3_open(path, place)
    local connection = setmetatable({library = library, db = place[0], statements = {}}, Connection)
    connection:check(status, "open " .. path)
    library.sqlite3_busy_timeout(connection.db, BUSY_MILLISECONDS)
    connection:execute(PRAGMAS)
    return connection
end

-- Stops the run, with SQLite's own message, where a status is not the expected one.
function Connection:check(status, what, expected)
    if status ~= (expected or OK) then
        local message = ffi.string(self.library.sqlite3_errmsg(self.db))
        error(("SQLite cannot %s: %s (status %d)"):format(what, message, status), 0)
    end
end

-- Runs SQL whose rows nobody wants; it may hold several statements.
function Connection:execute(sql)
    self:check(self.library.sqlite3_exec(self.db, sql, nil, nil, nil), "execute " .. sql)
end

-- Prepares one statement, which the connection finalizes when it closes.
function Connection:prepare(sql)
    local place = ffi.new("sqlite3_stmt *[1]")
    self:check(self.library.sqlite3_prepare_v2(self.db, sql, #sql, place, nil), "prepare " .. sql)
    if place[0] == nil then
        error("SQLite finds no statement in: " .. sql, 0)
    end
    local statement = setmetatable({connection = self, library = self.library, handle = place[0], sql = sql}, Statement)
    table.insert(self.statements, statement)
    return statement
end

function Connection:close()
    for _, statement in ipairs(self.statements) do
        self.library.sqlite3_finalize(statement.handle)
    end
    self:check(self.library.sqlite3_close(self.db), "close the database")
end

function Statement:bind_int(place, value)
    self.connection:check(self.library.sqlite3_bind_int(self.handle, place, value), "bind a number")
end

-- Binds a char array that must outlive the statement's next run.
function Statement:bind_text(place, text, size)
    self.connection:check(self.library.sqlite3_bind_text(self.handle, place, text, size, STATIC), "bind a text")
end

-- Steps through all rows, makes the statement ready for its next run, and returns how many rows there were.
function Statement:run()
    local library, handle, rows = self.library, self.handle, 0
    local status = library.sqlite3_step(handle)
    while status == ROW do
        rows = rows + 1
        status = library.sqlite3_step(handle)
    end
    if status ~= DONE then
        self.connection:check(status, "run " .. self.sql, DONE)
    end
    library.sqlite3_reset(handle)
    return rows
end

return engine
