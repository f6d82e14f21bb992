-- Threads of several roles in one run. The first role is what is measured; the others work beside it, at a rate that the
-- clock paces or as fast as the first. What the run prints at its end are the figures of the first role, in the form of
-- sysbench's own, which would mix all roles; and a line for each role, and one for the CPU time of this client.
--
-- Thread n has role n % (number of roles) of client n / (number of roles). Each thread has a Lua state of its own, so
-- counts are in memory that all threads share: each writes to its own slot.

local ffi = require("ffi")
local pb = require("perfbisect")

ffi.cdef[[
struct roles_slot {
    double operations;     /* since the thread began, those of the warm-up included */
    double units, done, due; /* in the window: rows or queries, and operations carried out and due (0: not paced) */
    double cpu, seconds;   /* of the thread in the window */
    double sum, min, max;  /* milliseconds of operations */
    double first, last;    /* keys: for the threads of the same client */
    double ended;
    double buckets[512];
};
struct roles_timespec { long seconds; long nanoseconds; };
struct roles_usage { long user[2]; long system[2]; long others[14]; };
int roles_getrusage(int who, struct roles_usage *usage) __asm__("getrusage");
int roles_nanosleep(const struct roles_timespec *length, struct roles_timespec *left) __asm__("nanosleep");
int roles_getpid(void) __asm__("getpid");
int roles_setenv(const char *name, const char *value, int overwrite) __asm__("setenv");
void *roles_mmap(void *address, unsigned long length, int protection, int flags, int fd, long offset) __asm__("mmap");
]]

local RUSAGE_SELF, RUSAGE_THREAD = 0, 1
local READ_WRITE, SHARED_ANONYMOUS = 3, 0x21
local SLOTS = 4096 -- threads: pages that no thread writes to cost nothing
local BUCKETS, SHORTEST, STEP = 512, 0.001, 1.04 -- of a histogram: 1 µs to 500 s, each bucket 4 % wider than the last
local POLL = 50e-6 -- seconds between two looks at another thread
local SHARED = "PERFBISECT_SHARED"

local roles = {}

-- sysbench loads a script once before it starts threads: that state makes the memory, and tells the others where it is.
local function memory()
    local known = (os.getenv(SHARED) or ""):match("^" .. ffi.C.roles_getpid() .. ":(%d+)$")
    local address
    if known then
        address = ffi.cast("void *", tonumber(known))
    else
        local size = SLOTS * ffi.sizeof("struct roles_slot")
        address = ffi.C.roles_mmap(nil, size, READ_WRITE, SHARED_ANONYMOUS, -1, 0)
        local number = tonumber(ffi.cast("uintptr_t", address))
        ffi.C.roles_setenv(SHARED, ("%d:%.0f"):format(ffi.C.roles_getpid(), number), 1)
    end
    return ffi.cast("struct roles_slot *", address)
end

local slots = memory()

-- Milliseconds of CPU time.
local function cpu_time(who)
    local usage = ffi.new("struct roles_usage")
    ffi.C.roles_getrusage(who, usage)
    local seconds = tonumber(usage.user[0]) + tonumber(usage.system[0])
    return 1e3 * seconds + 1e-3 * (tonumber(usage.user[1]) + tonumber(usage.system[1]))
end

local function sleep(seconds)
    if seconds > 0 then
        local length = ffi.new("struct roles_timespec", math.floor(seconds), seconds % 1 * 1e9)
        ffi.C.roles_nanosleep(length, nil)
    end
end

local function bucket(milliseconds)
    local place = math.floor(math.log(math.max(milliseconds, SHORTEST) / SHORTEST) / math.log(STEP))
    return math.min(place, BUCKETS - 1)
end

-- The upper end of a bucket, in milliseconds.
local function width(place)
    return SHORTEST * STEP ^ (place + 1)
end

-- What threads of one role have counted, together.
local function total(list, role)
    local sum = {units = 0, done = 0, due = 0, cpu = 0, seconds = 0, sum = 0, min = math.huge, max = 0, buckets = {}}
    for thread = role - 1, sysbench.opt.threads - 1, #list do
        local slot = slots[thread]
        for _, name in ipairs{"units", "done", "due", "cpu", "seconds", "sum"} do
            sum[name] = sum[name] + slot[name]
        end
        if slot.done > 0 then
            sum.min, sum.max = math.min(sum.min, slot.min), math.max(sum.max, slot.max)
        end
        for place = 0, BUCKETS - 1 do
            sum.buckets[place] = (sum.buckets[place] or 0) + slot.buckets[place]
        end
    end
    return sum
end

local function percentile(sum, share)
    local seen = 0
    for place = 0, BUCKETS - 1 do
        seen = seen + sum.buckets[place]
        if seen > 0 and seen >= share * sum.done then
            return math.min(width(place), sum.max)
        end
    end
    return 0
end

local function report(list)
    local before = 0

    function sysbench.hooks.report_intermediate(stat)
        local units = total(list, 1).units
        print(("[ %.0fs ] thds: %d eps: %.2f"):format(stat.time_total, stat.threads_running, (units - before) / stat.time_interval))
        io.flush()
        before = units
    end

    function sysbench.hooks.report_cumulative()
        local measured = total(list, 1)
        print(("    total time: %.4fs"):format(slots[0].seconds))
        print(("    total number of events: %.0f"):format(measured.units))
        if measured.done > 0 then
            print(("    min: %.3f"):format(measured.min))
            print(("    avg: %.4f"):format(measured.sum / measured.done))
            print(("    max: %.3f"):format(measured.max))
            for place = 0, BUCKETS - 1 do
                if measured.buckets[place] > 0 then
                    print(("%.6f | %.0f"):format(width(place), measured.buckets[place]))
                end
            end
        end
        for role, each in ipairs(list) do
            local sum = total(list, role)
            local due = sum.due * sysbench.opt.rows_per_commit
            local clients = each.paced and sysbench.opt.threads / #list or 0
            print(("perfbisect role: %s %.0f %.0f %.3f %.0f %.4f %.4f"):format(
                each.name, sum.units, due, sysbench.opt.background * clients, sysbench.opt.rows_per_commit * clients,
                percentile(sum, 0.99), sum.max))
        end
        print(("perfbisect client: %.3f %.4f"):format(slots[SLOTS - 1].cpu, measured.cpu / (1000 * measured.seconds)))
    end
end

-- Where the plans of statements are asked for, a single thread carries out all roles in turn.
local function define_all(list)
    pb.define{
        connect = function()
            local run = {}
            for place, role in ipairs(list) do
                run[place] = role.start(0)
            end
            return run
        end,
        operation = function(run)
            for _, operation in ipairs(run) do
                operation()
            end
        end,
        disconnect = function()
            for _, role in ipairs(list) do
                role.stop()
            end
        end,
    }
end

-- How many operations a thread has time for, at the rate of a paced role; 0 where it has none. Refuses one that never begins.
local function due_in_window(role)
    local rows, each, seconds = sysbench.opt.background, sysbench.opt.rows_per_commit, sysbench.opt.time
    if not role.paced or rows == 0 then
        return 0
    end
    local count = math.ceil(seconds * rows / each - 0.5) -- as `wait` has it: the first after half an interval
    if count < 1 then
        error(("background=%d rows per second are not half a transaction of rows-per-commit=%d in %d s: give a longer time, or "
            .. "fewer rows per commit"):format(rows, each, seconds), 0)
    end
    return count
end

-- Defines what sysbench calls, from a list of roles. A role has
--     name      what its line is called
--     start     start(client) makes what it needs, and returns the function that is one operation: that returns how many
--               rows or queries it was, nil once there is nothing left to do
--     stop      at the end
--     once      true for work that is done but once: it is not warmed up
--     paced     true for one operation of rows-per-commit rows after another, so many that they are `background` per second
--     ahead     optional: of the same client, at most how many operations this role may be ahead of the role `of`
function roles.define(list)
    if os.getenv("PERFBISECT_SCRIPT") then
        return define_all(list)
    end
    report(list)
    local number, role, slot, other, operation -- of this thread
    local began, finish, cpu -- cpu is nil before the measured window
    local due, started, over -- the number of operations that were due so far, and when the one began that is carried out

    -- Waits until the role may go on; false if that is not before `finish`.
    local function wait()
        if role.paced then
            -- The first is due half an interval after the beginning, so that a window has rate × time.
            local at = began + (due + 0.5) * sysbench.opt.rows_per_commit / sysbench.opt.background
            sleep(math.min(at, finish) - pb.clock())
            if at >= finish then
                return false
            end
        end
        while other and slot.operations - other.operations >= role.ahead do
            if pb.clock() >= finish then
                return false
            end
            sleep(POLL)
        end
        return true
    end

    local function begin(length)
        began, due, started = pb.clock(), 0, nil
        finish = length > 0 and began + length or math.huge
    end

    -- One operation, when it is due. If the server gives it up, it is repeated as the same one.
    local function step()
        if role.once and not cpu then
            sleep(finish - pb.clock())
            return
        end
        if not started then
            if not wait() then
                return
            end
            started = pb.clock()
        end
        local units = operation()
        if not units then
            over = true
            return
        end
        local took = 1000 * (pb.clock() - started)
        due, started = due + 1, nil
        slot.operations = slot.operations + 1
        if cpu then
            slot.units, slot.done, slot.sum = slot.units + units, slot.done + 1, slot.sum + took
            slot.min, slot.max = slot.done > 1 and math.min(slot.min, took) or took, math.max(slot.max, took)
            local place = bucket(took)
            slot.buckets[place] = slot.buckets[place] + 1
        end
    end

    pb.define{
        connect = function(thread)
            local threads, tables = sysbench.opt.threads, sysbench.opt.tables
            if threads ~= #list * tables or threads >= SLOTS / 2 then
                error(("this step has %d threads for each table: give --threads %d for --set tables=%d, not %d"):format(
                    #list, #list * tables, tables, threads), 0)
            end
            local client = math.floor(thread / #list)
            number, slot, role = thread, slots[thread], list[thread % #list + 1]
            due_in_window(role)
            for place, each in ipairs(list) do
                other = each.name == role.of and slots[client * #list + place - 1] or other
            end
            operation = role.start(client)
            begin(tonumber(os.getenv("PERFBISECT_WARMUP")) or 0)
        end,
        operation = step,
        disconnect = function()
            role.stop()
        end,
    }

    -- What pb.define has made, in the measured window: it opens the window at the first event of thread 0.
    local measure, done = event, thread_done

    function event()
        if not cpu then
            if number == 0 then
                slots[SLOTS - 1].cpu = -cpu_time(RUSAGE_SELF)
            end
            cpu = cpu_time(RUSAGE_THREAD)
            begin(sysbench.opt.time)
        end
        local well, failure = pcall(measure)
        if not well then
            local given_up = type(failure) == "table" and failure.errcode == sysbench.error.RESTART_EVENT
            slot.ended = given_up and 0 or 1
            error(failure, 0)
        end
        if over then
            return true -- which ends this thread
        end
    end

    function thread_done()
        if cpu then
            slot.seconds = pb.clock() - began
            slot.cpu = cpu_time(RUSAGE_THREAD) - cpu
            slot.due = due_in_window(role)
        end
        slot.ended = 1
        if cpu and number == 0 then -- thread 0 closes the window once all that is measured has ended
            for thread = 0, sysbench.opt.threads - 1, #list do
                while slots[thread].ended == 0 do
                    sleep(POLL)
                end
            end
            slots[SLOTS - 1].cpu = slots[SLOTS - 1].cpu + cpu_time(RUSAGE_SELF)
        end
        done()
    end
end

-- The keys that a client's threads share: of the oldest row that is left, and of the newest.
function roles.keys(client)
    return slots[SLOTS - 2 - client]
end

return roles
