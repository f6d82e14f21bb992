-- k = k + 1 of one row: its entry in the secondary index moves.

local sbtest = require("sysbench.sbtest")

sbtest.define(function(session)
    local update = session:prepare("UPDATE sbtest%d SET k = k + 1 WHERE id = ?", "i")
    return function()
        update(sbtest.table(), {sbtest.key()})
    end
end)
