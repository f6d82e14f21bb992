-- A new c for one row, which no secondary index has to follow.

local sbtest = require("sysbench.sbtest")

local IDS = {uniform = sbtest.key, zipfian = require("sysbench.zipfian"), one = function() return 1 end}

sbtest.define(function(session)
    local update = session:prepare("UPDATE sbtest%d SET c = ? WHERE id = ?", "ti")
    local keys = sysbench.opt.keys
    local id = IDS[keys] or error(("keys are uniform, zipfian or one, and not '%s'"):format(keys), 0)
    return function()
        update(sbtest.table(), {sysbench.rand.string(sbtest.C), id()})
    end
end)
