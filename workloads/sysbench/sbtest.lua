-- sysbench's tables on a server, and what the workloads on them share: tables sbtest1, sbtest2, … with ids 1 to
-- table-size, k uniform in the same range, and an index k_N on it. Tables and keys are chosen uniformly, whatever
-- --rand-type says.

local pb = require("perfbisect")

sysbench.cmdline.options = {
    tables = {"Tables", 1},
    table_size = {"Rows of each table", 100000},
    churn = {"After loading, how many times as many rows as there are get written again", 0},
    random_points = {"Keys in one list", 10},
    range_size = {"Rows of one range", 100},
    on_id = {"Lists and ranges of the primary key; false: of k", true},
    covered = {"Select nothing but the key; false: c as well", true},
    point_selects = {"Single rows that a transaction reads", 10},
    ranges = {"Ranges that a transaction reads, each by its kind", "simple sum order distinct"},
    writes = {"Transactions that write", false},
    keys = {"Ids to update: uniform, zipfian, or one", "uniform"},
}

-- Text is latin1 in MySQL and its kin, in tables and connections alike: their defaults differ between versions, and
-- multi-byte text costs processor time. In PostgreSQL both follow the encoding that initdb was given.
local DIALECTS = {
    mysql = {
        id = "INTEGER NOT NULL AUTO_INCREMENT PRIMARY KEY",
        suffix = " DEFAULT CHARACTER SET latin1 COLLATE latin1_swedish_ci",
        greeting = "SET NAMES latin1",
    },
    pgsql = {
        id = "SERIAL PRIMARY KEY",
        suffix = "",
        loaded = "SELECT setval('sbtest%d_id_seq', %d)", -- the next id, which MySQL works out by itself
    },
}

local sbtest = {}

-- What c and pad are like: groups of eleven digits. The last bytes of CHAR(120) and CHAR(60) stay empty.
sbtest.C = ("###########-"):rep(9) .. "###########"
sbtest.PAD = ("###########-"):rep(4) .. "###########"

-- A connection, and what is particular to its server.
function sbtest.connect()
    local driver = sysbench.sql.driver()
    local dialect = DIALECTS[driver:name()] or error("these workloads cannot use the driver " .. driver:name(), 0)
    local connection = driver:connect()
    if dialect.greeting then
        connection:query(dialect.greeting)
    end
    return connection, dialect
end

local Session = {}
Session.__index = Session

-- Prepares a statement for each table: %d in it stands for the table's number, and `kinds` has a letter for each ? in
-- it, i for an integer and t for a text. Returns the function that runs it: run(number of the table, list of values).
function Session:prepare(sql, kinds)
    local prepared = {}
    for number = 1, sysbench.opt.tables do
        local statement, params = self.connection:prepare(sql:format(number)), {}
        for kind in kinds:gmatch(".") do
            local type = kind == "i" and sysbench.sql.type.INT or sysbench.sql.type.CHAR
            table.insert(params, statement:bind_create(type, #sbtest.C))
        end
        statement:bind_param(unpack(params))
        table.insert(self.statements, statement)
        prepared[number] = {statement = statement, params = params} -- to sysbench, params are but pointers
    end
    return function(number, values)
        local chosen = prepared[number]
        for place, param in ipairs(chosen.params) do
            param:set(values[place])
        end
        chosen.statement:execute()
    end
end

-- Defines a workload from start(session), which prepares what it needs and returns the function that is one operation.
-- A session has the connection, and the number of its thread, from 0.
function sbtest.define(start)
    pb.define{
        connect = function(thread)
            local session = setmetatable({connection = sbtest.connect(), statements = {}, thread = thread}, Session)
            session.operation = start(session)
            return session
        end,
        operation = function(session)
            session.operation()
        end,
        disconnect = function(session)
            for _, statement in ipairs(session.statements) do
                statement:close()
            end
            session.connection:disconnect()
        end,
    }
end

-- The number of any table.
function sbtest.table()
    return sysbench.rand.uniform(1, sysbench.opt.tables)
end

-- Any key: an id, or a value of k.
function sbtest.key()
    return sysbench.rand.uniform(1, sysbench.opt.table_size)
end

-- A list of any keys, of which some may be equal.
function sbtest.keys(count)
    local keys = {}
    for place = 1, count do
        keys[place] = sbtest.key()
    end
    return keys
end

-- The first and the last key of a range.
function sbtest.range()
    local size, width = sysbench.opt.table_size, sysbench.opt.range_size
    if width > size then
        error(("a range of %d rows needs a larger table than one of %d"):format(width, size), 0)
    end
    local first = sysbench.rand.uniform(1, size - width + 1)
    return {first, first + width - 1}
end

-- The key that on-id tells of, and what covered tells to select with it.
function sbtest.columns()
    local key = sysbench.opt.on_id and "id" or "k"
    return key, sysbench.opt.covered and key or key .. ", c"
end

-- The text (?,?,…) and the kinds of a list of keys.
function sbtest.list(count)
    return "(?" .. (",?"):rep(count - 1) .. ")", ("i"):rep(count)
end

return sbtest
