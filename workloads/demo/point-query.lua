-- One row by its primary key.

local demo = require("demo.table")

demo.define(function(session)
    local id = sysbench.rand.uniform(1, session.size)
    demo.check(session.engine.demo_get(session.db, id, session.row), "demo_get")
end)
