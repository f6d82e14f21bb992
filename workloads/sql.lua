-- A workload given as plain SQL, for servers that sysbench has a driver for.

local pb = require("perfbisect")

local function run(connection, variable)
    for _, statement in ipairs(pb.statements(os.getenv(variable))) do
        connection:query(statement)
    end
end

pb.prepare(function()
    local connection = sysbench.sql.driver():connect()
    run(connection, "PERFBISECT_PREPARE")
    connection:disconnect()
end)

pb.define{
    connect = function()
        local connection = sysbench.sql.driver():connect()
        run(connection, "PERFBISECT_SETUP")
        return {connection = connection, statement = os.getenv("PERFBISECT_STATEMENT")}
    end,
    operation = function(session)
        session.connection:query(session.statement)
    end,
    disconnect = function(session)
        session.connection:disconnect()
    end,
}
