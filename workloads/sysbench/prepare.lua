-- Makes the dataset: always the same one for the same tables, table-size and churn.

local ffi = require("ffi")
local pb = require("perfbisect")
local sbtest = require("sysbench.sbtest")

local LOADED = 1000 -- rows of one INSERT: 200 KB, less than the packet that any server takes
local CHURNED = 100 -- rows of one statement when they are written again

local c, pad = ffi.new("char[?]", #sbtest.C), ffi.new("char[?]", #sbtest.PAD)

local function digits(text)
    pb.digits(text, ffi.sizeof(text))
    return ffi.string(text, ffi.sizeof(text))
end

-- Inserts rows with these ids.
local function insert(connection, number, ids)
    local rows = {}
    for place, id in ipairs(ids) do
        local k = 1 + pb.random(sysbench.opt.table_size)
        rows[place] = ("(%d,%d,'%s','%s')"):format(id, k, digits(c), digits(pad))
    end
    connection:query(("INSERT INTO sbtest%d (id, k, c, pad) VALUES "):format(number) .. table.concat(rows, ","))
end

local function load(connection, dialect, number)
    local size = sysbench.opt.table_size
    connection:query(([[
CREATE TABLE sbtest%d (
    id %s, k INTEGER NOT NULL DEFAULT 0, c CHAR(120) NOT NULL DEFAULT '', pad CHAR(60) NOT NULL DEFAULT ''
)%s]]):format(number, dialect.id, dialect.suffix))
    for first = 1, size, LOADED do
        local ids = {}
        for id = first, math.min(first + LOADED - 1, size) do
            table.insert(ids, id)
        end
        insert(connection, number, ids)
    end
    if dialect.loaded then
        connection:query(dialect.loaded:format(number, size))
    end
    connection:query(("CREATE INDEX k_%d ON sbtest%d (k)"):format(number, number))
end

-- Some ids, each of them once.
local function some_ids()
    local ids, known = {}, {}
    for _ = 1, CHURNED do
        local id = 1 + pb.random(sysbench.opt.table_size)
        if not known[id] then
            known[id] = true
            table.insert(ids, id)
        end
    end
    return ids
end

-- Leaves a table as writing does: the same ids, but split pages, versions of rows, and indexes out of order.
local function churn(connection, number)
    for _ = 1, sysbench.opt.churn * sysbench.opt.table_size, CHURNED do
        local function write(statement)
            local ids = some_ids()
            connection:query(statement:format(number, table.concat(ids, ",")))
            return ids
        end
        write("UPDATE sbtest%d SET k = k + 1 WHERE id IN (%s)")
        write("UPDATE sbtest%d SET c = '" .. digits(c) .. "' WHERE id IN (%s)")
        insert(connection, number, write("DELETE FROM sbtest%d WHERE id IN (%s)"))
    end
end

pb.prepare(function()
    local connection, dialect = sbtest.connect()
    for number = 1, sysbench.opt.tables do
        load(connection, dialect, number)
        churn(connection, number)
    end
    connection:disconnect()
end)
