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

-- What `sysbench sql.lua check` does: prints every row of every answer.
sysbench.cmdline.commands = {
    check = {function()
        local connection = sysbench.sql.driver():connect()
        for _, statement in ipairs(pb.statements(os.getenv("PERFBISECT_CHECK"))) do
            local rows = connection:query(statement)
            for _ = 1, rows.nrows do
                local row = rows:fetch_row()
                for column = 1, rows.nfields do
                    row[column] = row[column] or "NULL"
                end
                print("perfbisect answer: " .. table.concat(row, " "))
            end
        end
        connection:disconnect()
    end},
}

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
