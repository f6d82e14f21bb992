-- Rows by a list of keys, primary or secondary, with or without a column that the key's index does not hold.

local sbtest = require("sysbench.sbtest")

sbtest.define(function(session)
    local key, columns = sbtest.columns()
    local count = sysbench.opt.random_points
    local list, kinds = sbtest.list(count)
    local select = session:prepare(("SELECT %s FROM sbtest%%d WHERE %s IN %s"):format(columns, key, list), kinds)
    return function()
        select(sbtest.table(), sbtest.keys(count))
    end
end)
