-- l.x: the three secondary indexes.

local ibench = require("ibench")
local roles = require("roles")

roles.define{ibench.indexer{}}
