-- One number from a range of the primary key.

local sbtest = require("sysbench.sbtest")

sbtest.define(function(session)
    local select = session:prepare("SELECT count(c) FROM sbtest%d WHERE id BETWEEN ? AND ?", "ii")
    return function()
        select(sbtest.table(), sbtest.range())
    end
end)
