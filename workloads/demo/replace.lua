-- One row deleted and inserted again: both trees lose and gain an entry.

local demo = require("demo.table")

demo.define(function(session)
    local id = sysbench.rand.uniform(1, session.size)
    demo.check(session.engine.demo_get(session.db, id, session.row), "demo_get")
    demo.check(session.engine.demo_delete(session.db, id), "demo_delete")
    demo.check(session.engine.demo_insert(session.db, session.row), "demo_insert")
end)
