-- One row, with the next id.

local sbtest = require("sysbench.sbtest")

sbtest.define(function(session)
    return function()
        local c, pad = sysbench.rand.string(sbtest.C), sysbench.rand.string(sbtest.PAD)
        session.connection:query(
            ("INSERT INTO sbtest%d (k, c, pad) VALUES (%d, '%s', '%s')"):format(sbtest.table(), sbtest.key(), c, pad)
        )
    end
end)
