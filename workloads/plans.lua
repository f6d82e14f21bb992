-- Asks a server for the plans of a workload's statements. It runs the workload's own script, at PERFBISECT_SCRIPT, notes
-- what that sends, and prints what EXPLAIN answers on the same connection before that is closed. No part of a measured run.

local MOST = 32 -- statements
local LONGEST = 100000 -- characters of one

local EXPLAINED = {
    select = true, with = true, update = true, delete = true, insert = true, replace = true, values = true, merge = true,
}

-- The tables that MySQL and its kin print: with and without partitions and the share that a condition leaves.
local SHORT = {"id", "select_type", "table", "type", "possible_keys", "key", "key_len", "ref", "rows", "Extra"}
local LONG = {
    "id", "select_type", "table", "partitions", "type", "possible_keys", "key", "key_len", "ref", "rows", "filtered", "Extra",
}
local COLUMNS = {[#SHORT] = SHORT, [#LONG] = LONG}

local ASK = {mysql = "EXPLAIN ", pgsql = "EXPLAIN (COSTS OFF) "}

local function say(what, text)
    print(("perfbisect %s: %s"):format(what, (text:gsub("\\", "\\\\"):gsub("\n", "\\n"):gsub("\r", "\\r"))))
end

-- A statement with ? in place of its values, one for a list of them: the same for all executions.
local function shape(sql)
    local found = sql:gsub("'[^']*'", "?"):gsub("%f[%w_]%d[%d%.]*%f[^%w_]", "?")
    return (found:gsub("%?%s*,[%s,%?]*%?", "?, …"))
end

-- A row of a plan as one line: what the server prints, or name=value where that are columns.
local function line(row, size)
    local names = COLUMNS[size]
    local cells = {}
    for column = 1, size do
        local value = row[column]
        if value ~= nil and names then
            table.insert(cells, names[column] .. "=" .. value)
        elseif value ~= nil then
            table.insert(cells, value)
        end
    end
    return table.concat(cells, " ")
end

-- `own`, with everything else that `real` has.
local function around(real, own)
    return setmetatable(own, {__index = function(_, name)
        local value = real[name]
        if type(value) ~= "function" then
            return value
        end
        return function(_, ...)
            return value(real, ...)
        end
    end})
end

local function literal(value)
    if type(value) == "cdata" then
        value = tonumber(value)
    end
    if type(value) == "number" then
        return ("%.14g"):format(value)
    end
    return value == nil and "NULL" or "'" .. tostring(value):gsub("\\", "\\\\"):gsub("'", "''") .. "'"
end

-- A statement with values in place of its parameters.
local function filled(sql, values)
    local place = 0
    return (sql:gsub("%?", function()
        place = place + 1
        return literal(values[place])
    end))
end

-- What is asked of a statement that was prepared: PostgreSQL plans it for the types of its parameters, which values written
-- into it need not have, and after some executions without their values. So it is asked for what it has prepared.
local function execution(connection, driver, noted)
    if driver ~= "pgsql" or not noted.prepared then
        return noted.sql
    end
    local place, values = 0, {}
    local numbered = noted.prepared:gsub("%?", function()
        place = place + 1
        values[place] = literal(noted.values[place])
        return "$" .. place
    end)
    local rows = connection:query("SELECT name, statement FROM pg_prepared_statements")
    for _ = 1, rows.nrows do
        local row = rows:fetch_row()
        if row[2] == numbered then
            return ('EXECUTE "%s"(%s)'):format(row[1], table.concat(values, ", "))
        end
    end
    return noted.sql -- sysbench was told to prepare nothing
end

local function explain(connection, driver, noted)
    local done, rows = pcall(function()
        return connection:query(ASK[driver] .. execution(connection, driver, noted))
    end)
    if not done then
        return -- a statement that this version cannot explain
    end
    say("statement", noted.shape)
    for _ = 1, rows.nrows do
        say("plan", line(rows:fetch_row(), rows.nfields))
    end
end

local function parameter(real)
    local own = {real = real}
    function own.set(self, value)
        self.value = value
        return real:set(value)
    end
    function own.set_rand_str(self, format)
        return self:set(sysbench.rand.string(format))
    end
    return around(real, own)
end

-- A prepared statement. It stays open until its connection is closed: sysbench's driver for MySQL frees what the last
-- execution has left when it is asked the next thing, and crashes where the statement is gone.
local function prepared(real, note, close)
    local own, parameters = {}, {}
    function own.bind_create(_, ...)
        return parameter(real:bind_create(...))
    end
    function own.bind_param(_, ...)
        parameters = {...}
        local reals = {}
        for place, each in ipairs(parameters) do
            reals[place] = each.real
        end
        return real:bind_param(unpack(reals))
    end
    function own.execute(_, ...)
        local values = {}
        for place, each in ipairs(parameters) do
            values[place] = each.value
        end
        note(values)
        return real:execute(...)
    end
    function own.close()
        close(real)
    end
    return around(real, own)
end

local function connected(real, driver)
    local own, seen, noted, closed = {}, {}, {}, {}
    local function note(sql, values)
        local verb = sql:match("^[%s%(]*(%a+)")
        if not verb or not EXPLAINED[verb:lower()] or #noted == MOST or #sql > LONGEST then
            return
        end
        local key = shape(sql)
        if not seen[key] then
            seen[key] = true
            local text = values and filled(sql, values) or sql
            table.insert(noted, {shape = key, sql = text, prepared = values and sql, values = values})
        end
    end
    function own.query(_, sql, ...)
        note(sql)
        return real:query(sql, ...)
    end
    function own.query_row(_, sql, ...)
        note(sql)
        return real:query_row(sql, ...)
    end
    function own.prepare(_, sql, ...)
        return prepared(real:prepare(sql, ...), function(values)
            note(sql, values)
        end, function(statement)
            table.insert(closed, statement)
        end)
    end
    function own.disconnect(_, ...)
        for _, each in ipairs(noted) do
            explain(real, driver, each)
        end
        for _, statement in ipairs(closed) do
            statement:close()
        end
        return real:disconnect(...)
    end
    return around(real, own)
end

local driver = sysbench.sql.driver

function sysbench.sql.driver(...)
    local real = driver(...)
    return around(real, {
        connect = function(_, ...)
            return connected(real:connect(...), real:name())
        end,
    })
end

dofile(os.getenv("PERFBISECT_SCRIPT"))
