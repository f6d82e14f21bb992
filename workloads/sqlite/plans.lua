-- Asks SQLite for the plans of a workload's statements. It runs the workload's own script, at PERFBISECT_SCRIPT, and prints
-- what EXPLAIN QUERY PLAN answers about all that it prepares, before its connection is closed. No part of a measured run.

local ffi = require("ffi")
local engine = require("sqlite.engine")

ffi.cdef[[
int sqlite3_column_int(sqlite3_stmt *statement, int column);
const char *sqlite3_column_text(sqlite3_stmt *statement, int column);
const char *sqlite3_column_name(sqlite3_stmt *statement, int column);
]]

local ROW = 100

local function say(what, text)
    print(("perfbisect %s: %s"):format(what, (text:gsub("\\", "\\\\"):gsub("\n", "\\n"):gsub("\r", "\\r"))))
end

-- Prints a plan: a line for each step, indented below the one that it belongs to. Before 3.24 steps had no parents.
local function explain(library, handle)
    local nested = ffi.string(library.sqlite3_column_name(handle, 1)) == "parent"
    local depth = {}
    while library.sqlite3_step(handle) == ROW do
        local parent = nested and library.sqlite3_column_int(handle, 1) or 0
        local level = depth[parent] and depth[parent] + 1 or 0
        depth[library.sqlite3_column_int(handle, 0)] = level
        say("plan", ("  "):rep(level) .. ffi.string(library.sqlite3_column_text(handle, 3)))
    end
end

local connect = engine.connect

function engine.connect()
    local connection = connect()
    local prepare, close, seen = connection.prepare, connection.close, {}
    function connection.prepare(self, sql)
        if not seen[sql] then
            seen[sql] = true
            table.insert(seen, sql)
        end
        return prepare(self, sql)
    end
    function connection.close(self)
        for _, sql in ipairs(seen) do
            local done, statement = pcall(prepare, self, "EXPLAIN QUERY PLAN " .. sql)
            if done then
                say("statement", sql)
                explain(self.library, statement.handle)
            end
        end
        return close(self)
    end
    return connection
end

dofile(os.getenv("PERFBISECT_SCRIPT"))
