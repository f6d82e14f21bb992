-- A range of the primary key or of k, with or without a column that its index does not hold.

local sbtest = require("sqlite.table")

sbtest.define(function(connection)
    local key = sysbench.opt.on_id and "id" or "k"
    local columns = sysbench.opt.covered and key or key .. ", c"
    local select = connection:prepare(("SELECT %s FROM sbtest1 WHERE %s BETWEEN ? AND ?"):format(columns, key))
    local width = sysbench.opt.range_size
    return function()
        local first = sysbench.rand.uniform(1, sysbench.opt.table_size - width + 1)
        select:bind_int(1, first)
        select:bind_int(2, first + width - 1)
        select:run()
    end
end)
