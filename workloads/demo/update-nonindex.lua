-- A new c for one row: an update that no index has to follow.

local ffi = require("ffi")
local demo = require("demo.table")

local text = ffi.new("char[120]", ("68487932199-"):rep(10))

demo.define(function(session)
    local id = sysbench.rand.uniform(1, session.size)
    demo.check(session.engine.demo_set_c(session.db, id, text), "demo_set_c")
end)
