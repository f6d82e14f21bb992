-- Makes the dataset: always the same one for the same table size.

local ffi = require("ffi")
local pb = require("perfbisect")
local demo = require("demo.table")

pb.prepare(function()
    local engine, row = pb.library(), ffi.new("demo_row")
    local size = sysbench.opt.table_size
    local db = engine.demo_create()
    for id = 1, size do
        row.id, row.k = id, 1 + pb.random(size)
        pb.digits(row.c, ffi.sizeof(row.c))
        pb.digits(row.pad, ffi.sizeof(row.pad))
        demo.check(engine.demo_insert(db, row), "demo_insert")
    end
    demo.check(engine.demo_save(db, demo.file()), "demo_save")
    engine.demo_close(db)
end)
