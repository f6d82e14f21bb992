-- Rows by a range of a key, primary or secondary, with or without a column that the key's index does not hold.

local sbtest = require("sysbench.sbtest")

sbtest.define(function(session)
    local key, columns = sbtest.columns()
    local select = session:prepare(("SELECT %s FROM sbtest%%d WHERE %s BETWEEN ? AND ?"):format(columns, key), "ii")
    return function()
        select(sbtest.table(), sbtest.range())
    end
end)
