-- What every workload script shares: where the library and the data are, the warm-up, and the window that perf counts.
--
--     local pb = require("perfbisect")
--     pb.define{
--         connect = function(thread_id) return context end,
--         operation = function(context) end,   -- what is measured; its return value is ignored
--         disconnect = function(context) end,  -- optional
--     }
--     pb.prepare(function() end)               -- what `sysbench SCRIPT prepare` does
--
-- The environment variables that it reads are described in perfbisect/recipes/workload.py. Without them a script
-- still runs under plain sysbench, with no warm-up and no perf.

local ffi = require("ffi")

-- Redirected names, because a script may declare the same functions with its own types.
ffi.cdef[[
struct perfbisect_timespec { long seconds; long nanoseconds; };
struct perfbisect_pollfd { int fd; short events; short revents; };
int perfbisect_clock_gettime(int clock, struct perfbisect_timespec *now) __asm__("clock_gettime");
int perfbisect_open(const char *path, int flags) __asm__("open");
int perfbisect_close(int fd) __asm__("close");
int perfbisect_poll(struct perfbisect_pollfd *fds, unsigned long count, int milliseconds) __asm__("poll");
long perfbisect_read(int fd, void *buffer, unsigned long size) __asm__("read");
long perfbisect_write(int fd, const void *buffer, unsigned long size) __asm__("write");
void sb_counters_agg_intermediate(uint64_t *counters);
void sb_counters_agg_cumulative(uint64_t *counters);
]]

local CLOCK_REALTIME, CLOCK_MONOTONIC = 0, 1
local O_RDWR = 2 -- opening a FIFO for both directions never blocks
local POLLIN = 1
local ACK_MILLISECONDS = 10000
local COUNTERS = 64 -- room for more than sysbench has

local pb = {}

local function required(variable, meaning)
    local value = os.getenv(variable)
    if value == nil or value == "" then
        error(variable .. " is not set: it should hold " .. meaning, 3)
    end
    return value
end

-- The embedded library under test.
function pb.library()
    return ffi.load(required("PERFBISECT_LIBRARY", "the path of the library to measure"))
end

-- The path of this visit's copy of the dataset (of the dataset being made, under `prepare`).
function pb.data()
    return required("PERFBISECT_DATA", "the path of the dataset")
end

local timespec = ffi.new("struct perfbisect_timespec")

local function seconds(clock)
    ffi.C.perfbisect_clock_gettime(clock, timespec)
    return tonumber(timespec.seconds) + tonumber(timespec.nanoseconds) * 1e-9
end

-- Seconds on a clock that never jumps.
function pb.clock()
    return seconds(CLOCK_MONOTONIC)
end

local function open(variable)
    local path = os.getenv(variable)
    local fd = ffi.C.perfbisect_open(path, O_RDWR)
    if fd < 0 then
        error("cannot open " .. path .. " (" .. variable .. ")", 0)
    end
    return fd
end

-- Tells perf to begin or to stop counting, and waits until it has; does nothing when perf is not there.
local function tell_perf(command)
    if (os.getenv("PERFBISECT_CONTROL") or "") == "" then
        return
    end
    local control, ack = open("PERFBISECT_CONTROL"), open("PERFBISECT_ACK")
    ffi.C.perfbisect_write(control, command .. "\n", #command + 1)
    local answer = ffi.new("struct perfbisect_pollfd[1]")
    answer[0].fd, answer[0].events = ack, POLLIN
    if ffi.C.perfbisect_poll(answer, 1, ACK_MILLISECONDS) ~= 1 then
        error("perf did not answer '" .. command .. "'", 0)
    end
    local buffer = ffi.new("char[16]")
    ffi.C.perfbisect_read(ack, buffer, 16)
    ffi.C.perfbisect_close(control)
    ffi.C.perfbisect_close(ack)
end

-- Lets sysbench report what it counts from now on, without the queries of the warm-up.
local function count_from_now()
    local counters = ffi.new("uint64_t[?]", COUNTERS)
    ffi.C.sb_counters_agg_intermediate(counters)
    ffi.C.sb_counters_agg_cumulative(counters)
end

-- Carries out an operation as sysbench does an event: again, where a server gave it up, for a deadlock say.
local function persist(operation, context)
    local done, failure
    repeat
        done, failure = pcall(operation, context)
        if not done and not (type(failure) == "table" and failure.errcode == sysbench.error.RESTART_EVENT) then
            error(failure, 0)
        end
    until done
end

-- Defines what sysbench calls: thread_init, event and thread_done.
--
-- The warm-up happens in thread_init, which sysbench finishes in all threads before its clock starts.
-- Thread 0 keeps the measured window, from its first event to its end: it lets perf count for exactly that long, and
-- prints when the window opened (seconds since the epoch) and its length (seconds), since sysbench's own "total time"
-- includes up to a hundredth of a second in which nothing runs.
function pb.define(workload)
    local operation = workload.operation
    local context
    local keeper, opened, began = false, nil, nil

    function thread_init(thread_id)
        keeper = thread_id == 0
        context = workload.connect(thread_id)
        local finish = pb.clock() + (tonumber(os.getenv("PERFBISECT_WARMUP")) or 0)
        while pb.clock() < finish do
            persist(operation, context)
        end
    end

    function event()
        if keeper and not began then
            tell_perf("enable")
            count_from_now()
            opened, began = seconds(CLOCK_REALTIME), pb.clock()
        end
        operation(context) -- no tail call: sysbench would stop at a value returned from here
    end

    function thread_done()
        if began then
            local length = pb.clock() - began
            tell_perf("disable")
            io.write(("perfbisect window: %.6f %.6f\n"):format(opened, length))
        end
        if workload.disconnect then
            workload.disconnect(context)
        end
    end
end

-- Defines the command "prepare".
function pb.prepare(make)
    function prepare()
        make()
    end
end

-- Park and Miller's generator, always from the same start, so that a dataset is the same whenever it is made.
-- Its products stay below 2^53, so that Lua's numbers hold them exactly.
local state = 1

-- A number from 0 to limit - 1.
function pb.random(limit)
    state = state * 48271 % 2147483647
    return state % limit
end

-- Fills a char array with groups of eleven digits, separated by hyphens.
function pb.digits(text, size)
    for i = 0, size - 1 do
        text[i] = i % 12 == 11 and 45 or 48 + pb.random(10)
    end
end

-- The statements of plain SQL; each ends with a semicolon at the end of a line, so that one may hold others.
function pb.statements(sql)
    local found, lines = {}, {}
    for line in ((sql or "") .. "\n"):gmatch("(.-)\n") do
        table.insert(lines, line)
        if line:find(";%s*$") then
            table.insert(found, table.concat(lines, "\n"))
            lines = {}
        end
    end
    local rest = table.concat(lines, "\n")
    if rest:find("%S") then
        table.insert(found, rest)
    end
    return found
end

return pb
