-- Always the same rows, neighbours in the middle of a table, by a list of primary keys.

local sbtest = require("sysbench.sbtest")

sbtest.define(function(session)
    local count = sysbench.opt.random_points
    local list, kinds = sbtest.list(count)
    local select = session:prepare("SELECT c FROM sbtest%d WHERE id IN " .. list, kinds)
    local ids = {}
    for place = 1, count do
        ids[place] = math.floor(sysbench.opt.table_size / 2) + place
    end
    return function()
        select(sbtest.table(), ids)
    end
end)
