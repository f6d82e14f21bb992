-- Rows by a list of primary keys.

local sbtest = require("sysbench.sbtest")

sbtest.define(function(session)
    local count = sysbench.opt.random_points
    local list, kinds = sbtest.list(count)
    local select = session:prepare("SELECT c FROM sbtest%d WHERE id IN " .. list, kinds)
    return function()
        select(sbtest.table(), sbtest.keys(count))
    end
end)
