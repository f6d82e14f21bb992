-- Makes the dataset.

local pb = require("perfbisect")
local sbtest = require("sqlite.table")

pb.prepare(sbtest.make)
