-- Calls the library's operation. The dataset is one file, which must be there and be ours to write.
local pb = require("perfbisect")
local ffi = require("ffi")
ffi.cdef[[ uint64_t operation(void); int usleep(unsigned int microseconds); ]]

sysbench.cmdline.options = {
    rows = {"What the data says", 1},
    broken = {"Fail at the first operation", false},
    rest = {"Microseconds of sleep after an operation: other tests need the processor, too", 5000},
}

local function file(mode)
    return assert(io.open(pb.data() .. "/rows", mode))
end

pb.prepare(function()
    pb.library().operation()
    local rows = file("w")
    rows:write(sysbench.opt.rows)
    rows:close()
end)

pb.define{
    connect = function()
        local rows = file("r+")
        local text = rows:read("*a")
        assert(tonumber(text) == sysbench.opt.rows, "not a fresh copy of the data: " .. text)
        rows:write("changed")
        rows:close()
        return pb.library()
    end,
    operation = function(library)
        if sysbench.opt.broken then
            error("broken on purpose")
        end
        library.operation()
        if sysbench.opt.rest > 0 then
            ffi.C.usleep(sysbench.opt.rest)
        end
    end,
}
