-- Consecutive rows by the primary key.

local demo = require("demo.table")

demo.define(function(session)
    local first = sysbench.rand.uniform(1, session.size - session.width + 1)
    session.engine.demo_range(session.db, first, first + session.width - 1, session.rows, session.width)
end)
