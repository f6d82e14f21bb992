-- The tables of the Insert Benchmark, pi1, pi2 …, and what is done with them: purchases, to which new ones are added at one
-- end of the primary key while the oldest are deleted at the other.

local pb = require("perfbisect")
local roles = require("roles")

sysbench.cmdline.options = {
    tables = {"Tables, each with a client of its own", 1},
    rows = {"Rows that each table is loaded with", 100000},
    after = {"The last step that loading has carried out: none, l.i0, l.x, l.i1 or l.i2", "none"},
    written = {"Rows that l.i1 and l.i2 together insert and delete in each table while it is loaded; 0: as many as it has", 0},
    rows_per_commit = {"Rows of one transaction", 100},
    background = {"Rows that each client inserts per second in the background, and deletes", 100},
    queries = {"range: of a secondary index; point: by a list of ids", "range"},
}

-- Text is latin1 in MySQL and its kin: see sysbench/sbtest.lua.
local DIALECTS = {
    mysql = {
        id = "BIGINT NOT NULL AUTO_INCREMENT",
        time = "DATETIME",
        suffix = " DEFAULT CHARACTER SET latin1 COLLATE latin1_swedish_ci",
        greeting = "SET NAMES latin1",
        force = " FORCE INDEX (%s)",
        indexes = "SELECT count(*) FROM information_schema.statistics WHERE table_schema = database() AND index_name = '%s'",
        drop = "DROP INDEX %s ON %s",
        delete = "DELETE FROM TABLE WHERE transactionid >= %d ORDER BY transactionid LIMIT %d",
        together = true, -- all indexes by one statement, which reads the table once
    },
    pgsql = {
        id = "BIGSERIAL",
        time = "TIMESTAMP WITHOUT TIME ZONE",
        suffix = "",
        force = "",
        indexes = "SELECT count(*) FROM pg_indexes WHERE indexname = '%s'",
        drop = "DROP INDEX %s",
        delete = "DELETE FROM TABLE WHERE transactionid IN "
            .. "(SELECT transactionid FROM TABLE WHERE transactionid >= %d ORDER BY transactionid LIMIT %d)",
    },
}

local REGISTERS, PRODUCTS, CUSTOMERS, PRICES = 1000, 10000, 100000, 500
local LIMIT = 10 -- rows of a query

-- The secondary indexes: columns, and how many values the first has.
local INDEXES = {
    {name = "marketsegment", columns = "productid, customerid, price", first = "productid", values = PRODUCTS},
    {name = "registersegment", columns = "cashregisterid, customerid, price", first = "cashregisterid", values = REGISTERS},
    {name = "pdc", columns = "price, dateandtime, customerid", first = "price", values = PRICES},
}

local ibench = {}

-- A number from 0 to limit - 1 that differs from run to run.
local function any(limit)
    return sysbench.rand.uniform(0, limit - 1)
end

local function rows(count, random, time)
    local found = {}
    for place = 1, count do
        found[place] = ("('%s',%d,%d,%d,%d,'aaaaaa%04d')"):format(
            time, random(REGISTERS), random(CUSTOMERS), random(PRODUCTS), random(PRICES), random(10000))
    end
    return table.concat(found, ",")
end

local Table = {}
Table.__index = Table

-- A client's connection to its table.
function ibench.connect(client)
    local driver = sysbench.sql.driver()
    local dialect = DIALECTS[driver:name()] or error("these workloads cannot use the driver " .. driver:name(), 0)
    local connection = driver:connect()
    if dialect.greeting then
        connection:query(dialect.greeting)
    end
    return setmetatable({name = "pi" .. client + 1, dialect = dialect, connection = connection}, Table)
end

function Table:query(text)
    return self.connection:query(text)
end

-- The first value of the answer, as a number; nil for NULL.
function Table:ask(text)
    return tonumber((self.connection:query_row(text)))
end

function Table:create()
    self:query(([[
CREATE TABLE %s (
    transactionid %s, dateandtime %s, cashregisterid INT NOT NULL, customerid INT NOT NULL, productid INT NOT NULL,
    price INT NOT NULL, data VARCHAR(4000), PRIMARY KEY (transactionid)
)%s]]):format(self.name, self.dialect.id, self.dialect.time, self.dialect.suffix))
end

function Table:oldest()
    return self:ask("SELECT min(transactionid) FROM " .. self.name) or 1
end

function Table:newest()
    return self:ask("SELECT max(transactionid) FROM " .. self.name) or 1
end

-- Adds rows at the end, in one transaction.
function Table:insert(count, random, time)
    self:query(("INSERT INTO %s (dateandtime, cashregisterid, customerid, productid, price, data) VALUES %s"):format(
        self.name, rows(count, random or any, time or os.date("%Y-%m-%d %H:%M:%S"))))
end

-- Removes the oldest rows, in one transaction; none is older than `from`.
function Table:delete(count, from)
    self:query(self.dialect.delete:gsub("TABLE", self.name):format(from, count))
end

function Table:index_name(index)
    return self.name .. "_" .. index.name
end

function Table:create_indexes()
    local added = {}
    for place, index in ipairs(INDEXES) do
        if self.dialect.together then
            added[place] = ("ADD INDEX %s (%s)"):format(self:index_name(index), index.columns)
        else
            self:query(("CREATE INDEX %s ON %s (%s)"):format(self:index_name(index), self.name, index.columns))
        end
    end
    if self.dialect.together then
        self:query(("ALTER TABLE %s %s"):format(self.name, table.concat(added, ", ")))
    end
end

-- Drops the secondary indexes if an earlier run has made them.
function Table:drop_indexes()
    for _, index in ipairs(INDEXES) do
        local name = self:index_name(index)
        if self:ask(self.dialect.indexes:format(name)) > 0 then
            self:query(self.dialect.drop:format(name, self.name))
        end
    end
end

-- Ten rows by any of the secondary indexes, from a value on.
function Table:range()
    local index = INDEXES[1 + any(#INDEXES)]
    self:query(("SELECT %s FROM %s%s WHERE %s >= %d ORDER BY %s LIMIT %d"):format(
        index.columns, self.name, self.dialect.force:format(self:index_name(index)), index.first, any(index.values),
        index.columns, LIMIT))
end

-- The rows of ten ids from `first` on, among so many.
function Table:points(first, count)
    local ids = {}
    for place = 1, LIMIT do
        ids[place] = ("%d"):format(first + any(count))
    end
    self:query(("SELECT transactionid, productid, data FROM %s WHERE transactionid IN (%s)"):format(
        self.name, table.concat(ids, ",")))
end

-- The roles of a client's threads. `more` are keys of a role beside those that are its work.
local function role(name, more, prepare)
    local own
    more.name = name
    function more.start(client)
        own = ibench.connect(client)
        return prepare(own, roles.keys(client))
    end
    function more.stop()
        own.connection:disconnect()
    end
    return more
end

-- Inserts rows, one transaction after another.
function ibench.inserter(more)
    return role("insert", more, function(own, keys)
        local count = sysbench.opt.rows_per_commit
        keys.last = own:newest()
        return function()
            own:insert(count)
            keys.last = keys.last + count
            return count
        end
    end)
end

-- Deletes the oldest rows: as each client has a table, they are where the last deletion ended.
function ibench.deleter(more)
    return role("delete", more, function(own, keys)
        local count = sysbench.opt.rows_per_commit
        keys.first = own:oldest()
        return function()
            own:delete(count, keys.first)
            keys.first = keys.first + count
            return count
        end
    end)
end

-- One query after another.
function ibench.reader(more)
    return role("query", more, function(own, keys)
        local range = sysbench.opt.queries == "range"
        if not range and sysbench.opt.queries ~= "point" then
            error("queries is neither range nor point: " .. sysbench.opt.queries, 0)
        end
        if keys.last == 0 then -- the client's other threads have not begun yet
            keys.first, keys.last = own:oldest(), own:newest()
        end
        return function()
            if range then
                own:range()
            else
                own:points(keys.first, math.max(1, keys.last - keys.first + 1))
            end
            return 1
        end
    end)
end

-- Creates the secondary indexes, once.
function ibench.indexer(more)
    more.once = true
    return role("index", more, function(own)
        own:drop_indexes()
        local left = own:ask("SELECT count(*) FROM " .. own.name)
        return function()
            local count = left
            if count then
                own:create_indexes()
                left = nil
            end
            return count
        end
    end)
end

return ibench
