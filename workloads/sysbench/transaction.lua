-- A transaction that reads single rows, then ranges of the primary key, and then writes: each of these if asked for.

local sbtest = require("sysbench.sbtest")

local RANGES = {
    simple = "SELECT c FROM sbtest%d WHERE id BETWEEN ? AND ?",
    sum = "SELECT SUM(k) FROM sbtest%d WHERE id BETWEEN ? AND ?",
    order = "SELECT c FROM sbtest%d WHERE id BETWEEN ? AND ? ORDER BY c",
    distinct = "SELECT DISTINCT c FROM sbtest%d WHERE id BETWEEN ? AND ? ORDER BY c",
}

local function points(session)
    local select = session:prepare("SELECT c FROM sbtest%d WHERE id = ?", "i")
    return function()
        for _ = 1, sysbench.opt.point_selects do
            select(sbtest.table(), {sbtest.key()})
        end
    end
end

local function range(session, kind)
    local sql = RANGES[kind] or error(("there is no kind of range '%s'"):format(kind), 0)
    local select = session:prepare(sql, "ii")
    return function()
        select(sbtest.table(), sbtest.range())
    end
end

-- A row updated in k, another in c, and one deleted and inserted again.
local function writes(session)
    local update_index = session:prepare("UPDATE sbtest%d SET k = k + 1 WHERE id = ?", "i")
    local update_nonindex = session:prepare("UPDATE sbtest%d SET c = ? WHERE id = ?", "ti")
    local delete = session:prepare("DELETE FROM sbtest%d WHERE id = ?", "i")
    local insert = session:prepare("INSERT INTO sbtest%d (id, k, c, pad) VALUES (?, ?, ?, ?)", "iitt")
    return function()
        update_index(sbtest.table(), {sbtest.key()})
        update_nonindex(sbtest.table(), {sysbench.rand.string(sbtest.C), sbtest.key()})
        local number, id = sbtest.table(), sbtest.key()
        delete(number, {id})
        insert(number, {id, sbtest.key(), sysbench.rand.string(sbtest.C), sysbench.rand.string(sbtest.PAD)})
    end
end

sbtest.define(function(session)
    local parts = {points(session)}
    for kind in sysbench.opt.ranges:gmatch("%a+") do
        table.insert(parts, range(session, kind))
    end
    if sysbench.opt.writes then
        table.insert(parts, writes(session))
    end
    return function()
        session.connection:query("BEGIN")
        for _, part in ipairs(parts) do
            part()
        end
        session.connection:query("COMMIT")
    end
end)
