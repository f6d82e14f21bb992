-- A new c for one row, committed: an update that no index has to follow.

local ffi = require("ffi")
local sbtest = require("sqlite.table")

local SIZE = 119

sbtest.define(function(connection)
    local update = connection:prepare("UPDATE sbtest1 SET c = ? WHERE id = ?")
    local text = ffi.new("char[?]", SIZE)
    ffi.fill(text, SIZE, 48)
    return function()
        text[sysbench.rand.uniform(0, SIZE - 1)] = sysbench.rand.uniform(48, 57) -- a text that differs from the row's
        update:bind_text(1, text, SIZE)
        update:bind_int(2, sbtest.id())
        update:run()
    end
end)
