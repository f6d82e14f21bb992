-- One row by its primary key, if it is still there.

local sbtest = require("sysbench.sbtest")

sbtest.define(function(session)
    local delete = session:prepare("DELETE FROM sbtest%d WHERE id = ?", "i")
    return function()
        delete(sbtest.table(), {sbtest.key()})
    end
end)
