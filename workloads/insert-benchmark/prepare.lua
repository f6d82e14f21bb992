-- Makes the tables as they are before a step: always the same ones for the same rows, tables, written and after.

local pb = require("perfbisect")
local ibench = require("ibench")

local BATCH = 1000 -- rows of an INSERT while loading
local STEPS = {none = 0, ["l.i0"] = 1, ["l.x"] = 2, ["l.i1"] = 3, ["l.i2"] = 4}

-- A time that depends only on how many rows there were before.
local function at(row)
    return os.date("!%Y-%m-%d %H:%M:%S", 1577836800 + math.floor(row / 1000))
end

-- Inserts so many rows and deletes as many of the oldest, `each` in a transaction, the rest in a last one. Returns the number of rows so far.
local function write(own, row, count, each)
    for begin = 0, count - 1, each do
        local some = math.min(each, count - begin)
        own:insert(some, pb.random, at(row))
        own:delete(some, row - sysbench.opt.rows + 1)
        row = row + some
    end
    return row
end

local function load(own, done)
    own:create()
    local row, rows = 0, sysbench.opt.rows
    while done >= 1 and row < rows do
        local count = math.min(BATCH, rows - row)
        own:insert(count, pb.random, at(row))
        row = row + count
    end
    if done >= 2 then
        own:create_indexes()
    end
    local written = sysbench.opt.written > 0 and sysbench.opt.written or rows
    local first = math.floor(0.8 * written + 0.5)
    if done >= 3 then
        row = write(own, row, first, 50)
    end
    if done >= 4 then
        write(own, row, written - first, 5)
    end
end

pb.prepare(function()
    local done = STEPS[sysbench.opt.after] or error("after is no step: " .. sysbench.opt.after, 0)
    for client = 0, sysbench.opt.tables - 1 do
        local own = ibench.connect(client)
        load(own, done)
        own.connection:disconnect()
    end
end)
