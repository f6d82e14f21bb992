-- k = k + 1 of one row: an update of an indexed column, which moves its entry in the secondary index.

local demo = require("demo.table")

demo.define(function(session)
    local id = sysbench.rand.uniform(1, session.size)
    demo.check(session.engine.demo_add_to_k(session.db, id, 1), "demo_add_to_k")
end)
