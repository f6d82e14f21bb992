-- l.i1 and l.i2: a client's inserts, and as many deletes by another connection.

local ibench = require("ibench")
local roles = require("roles")

roles.define{
    ibench.inserter{of = "delete", ahead = 10},
    ibench.deleter{of = "insert", ahead = 0},
}
