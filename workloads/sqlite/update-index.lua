-- k = k + 1 of one row, committed: its entry in the index moves.

local sbtest = require("sqlite.table")

sbtest.define(function(connection)
    local update = connection:prepare("UPDATE sbtest1 SET k = k + 1 WHERE id = ?")
    return function()
        update:bind_int(1, sbtest.id())
        update:run()
    end
end)
