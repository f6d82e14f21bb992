-- sysbench's table, and what the workloads on it share.

local ffi = require("ffi")
local pb = require("perfbisect")
local engine = require("sqlite.engine")

sysbench.cmdline.options = {
    table_size = {"Rows of the table", 50000},
    batch = {"Statements in one operation", 1},
    range_size = {"Rows of one range", 100},
    on_id = {"Ranges of the primary key; false: of k", true},
    covered = {"Ranges that need only the key; false: c as well", true},
}

local sbtest = {}

-- Makes the dataset, always the same one for the same size: rows in the order of their ids, then the index on k.
function sbtest.make()
    local connection, size = engine.connect(), sysbench.opt.table_size
    connection:execute([[
CREATE TABLE sbtest1 (
    id INTEGER PRIMARY KEY AUTOINCREMENT, k INTEGER NOT NULL DEFAULT 0,
    c CHAR(120) NOT NULL DEFAULT '', pad CHAR(60) NOT NULL DEFAULT ''
);
BEGIN;]])
    local insert = connection:prepare("INSERT INTO sbtest1 (k, c, pad) VALUES (?, ?, ?)")
    local c, pad = ffi.new("char[120]"), ffi.new("char[60]")
    for _ = 1, size do
        pb.digits(c, 119) -- ten groups of eleven digits with their hyphens; the rest of CHAR(120) stays empty
        pb.digits(pad, 59)
        insert:bind_int(1, 1 + pb.random(size))
        insert:bind_text(2, c, 119)
        insert:bind_text(3, pad, 59)
        insert:run()
    end
    connection:execute("COMMIT; CREATE INDEX k_1 ON sbtest1 (k);")
    connection:close()
end

-- Defines a workload from start(connection), which prepares what it needs and returns the function that is one statement.
function sbtest.define(start)
    pb.define{
        connect = function()
            local connection = engine.connect()
            return {connection = connection, batch = sysbench.opt.batch, call = start(connection)}
        end,
        operation = function(session)
            for _ = 1, session.batch do
                session.call()
            end
        end,
        disconnect = function(session)
            session.connection:close()
        end,
    }
end

-- A random id, uniform whatever --rand-type says.
function sbtest.id()
    return sysbench.rand.uniform(1, sysbench.opt.table_size)
end

return sbtest
