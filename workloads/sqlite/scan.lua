-- Every row of the table, none of which is wanted.

local sbtest = require("sqlite.table")

sbtest.define(function(connection)
    local select = connection:prepare("SELECT * FROM sbtest1 WHERE length(c) < 0")
    return function()
        select:run()
    end
end)
