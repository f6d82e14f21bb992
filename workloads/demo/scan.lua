-- Every row, none of which is wanted.

local demo = require("demo.table")

demo.define(function(session)
    session.engine.demo_scan(session.db, 0)
end)
