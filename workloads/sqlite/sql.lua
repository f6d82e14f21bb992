-- A workload given as plain SQL: its setup runs in every connection, its statement is prepared once and stepped to its end.

local pb = require("perfbisect")
local engine = require("sqlite.engine")

pb.prepare(function()
    local connection = engine.connect()
    connection:execute(os.getenv("PERFBISECT_PREPARE") or "")
    connection:close()
end)

pb.define{
    connect = function()
        local connection = engine.connect()
        connection:execute(os.getenv("PERFBISECT_SETUP") or "")
        return {connection = connection, statement = connection:prepare(os.getenv("PERFBISECT_STATEMENT") or "")}
    end,
    operation = function(session)
        session.statement:run()
    end,
    disconnect = function(session)
        session.connection:close()
    end,
}
