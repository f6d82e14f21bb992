-- l.i0: rows in the order of the primary key, into a table without secondary indexes.

local ibench = require("ibench")
local roles = require("roles")

roles.define{ibench.inserter{}}
