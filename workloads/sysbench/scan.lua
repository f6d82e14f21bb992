-- Every row of a table, none of which is wanted. Each thread keeps to one table.

local sbtest = require("sysbench.sbtest")

sbtest.define(function(session)
    local select = ("SELECT * FROM sbtest%d WHERE length(c) < 0"):format(session.thread % sysbench.opt.tables + 1)
    return function()
        session.connection:query(select)
    end
end)
