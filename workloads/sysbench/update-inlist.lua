-- A new c for the rows in a list of primary keys.

local sbtest = require("sysbench.sbtest")

sbtest.define(function(session)
    local count = sysbench.opt.random_points
    local list, kinds = sbtest.list(count)
    local update = session:prepare("UPDATE sbtest%d SET c = ? WHERE id IN " .. list, "t" .. kinds)
    return function()
        update(sbtest.table(), {sysbench.rand.string(sbtest.C), unpack(sbtest.keys(count))})
    end
end)
