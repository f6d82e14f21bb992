-- qr… and qp…: queries without pause, while two more connections insert and delete rows at a rate.

local ibench = require("ibench")
local roles = require("roles")

roles.define{
    ibench.reader{},
    ibench.inserter{paced = true},
    ibench.deleter{paced = true, of = "insert", ahead = 10}, -- or it would empty the table where inserts fall behind
}
