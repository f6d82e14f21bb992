-- One row by its primary key.

local sbtest = require("sqlite.table")

sbtest.define(function(connection)
    local select = connection:prepare("SELECT c FROM sbtest1 WHERE id = ?")
    return function()
        select:bind_int(1, sbtest.id())
        select:run()
    end
end)
