-- Makes the dataset: always the same one for the same table size.

local ffi = require("ffi")
local pb = require("perfbisect")
local demo = require("demo.table")

-- Park and Miller's generator: its products stay below 2^53, so that Lua's numbers hold them exactly.
local state = 1

local function random(limit)
    state = state * 48271 % 2147483647
    return state % limit
end

local function digits(text, size)
    for i = 0, size - 1 do
        text[i] = i % 12 == 11 and 45 or 48 + random(10)
    end
end

pb.prepare(function()
    local engine, row = pb.library(), ffi.new("demo_row")
    local size = sysbench.opt.table_size
    local db = engine.demo_create()
    for id = 1, size do
        row.id, row.k = id, 1 + random(size)
        digits(row.c, ffi.sizeof(row.c))
        digits(row.pad, ffi.sizeof(row.pad))
        demo.check(engine.demo_insert(db, row), "demo_insert")
    end
    demo.check(engine.demo_save(db, demo.file()), "demo_save")
    engine.demo_close(db)
end)
