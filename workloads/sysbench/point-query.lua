-- One row by its primary key.

local sbtest = require("sysbench.sbtest")

sbtest.define(function(session)
    local select = session:prepare("SELECT c FROM sbtest%d WHERE id = ?", "i")
    return function()
        select(sbtest.table(), {sbtest.key()})
    end
end)
