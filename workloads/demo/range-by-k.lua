-- Rows in a range of k: entries of the secondary index, and the row of each.

local demo = require("demo.table")

demo.define(function(session)
    local first = sysbench.rand.uniform(1, session.size - session.width + 1)
    session.engine.demo_range_by_k(session.db, first, first + session.width - 1, session.rows, session.width)
end)
