-- The demo engine seen from Lua, and what its workloads share: one table, ids 1 to table-size, k uniform in the same range.
-- One operation is a batch of calls, because a single call takes less time than sysbench spends on an event.

local ffi = require("ffi")
local pb = require("perfbisect")

ffi.cdef[[
typedef struct demo demo;
typedef struct { uint32_t id; uint32_t k; char c[120]; char pad[60]; } demo_row;

demo *demo_create(void);
demo *demo_open(const char *path, int *status);
int demo_save(demo *db, const char *path);
void demo_close(demo *db);
int demo_insert(demo *db, const demo_row *row);
int demo_delete(demo *db, uint32_t id);
int demo_get(const demo *db, uint32_t id, demo_row *row);
int demo_add_to_k(demo *db, uint32_t id, uint32_t by);
int demo_set_c(demo *db, uint32_t id, const char *text);
uint32_t demo_range(const demo *db, uint32_t first_id, uint32_t last_id, demo_row *rows, uint32_t limit);
uint32_t demo_range_by_k(const demo *db, uint32_t first_k, uint32_t last_k, demo_row *rows, uint32_t limit);
uint32_t demo_scan(const demo *db, char first);
]]

sysbench.cmdline.options = {
    table_size = {"Rows of the table", 20000},
    batch = {"Calls of the engine in one operation", 20},
    range_size = {"Rows of one range", 100},
}

local demo = {}

-- The file in which the dataset's folder keeps the table.
function demo.file()
    return pb.data() .. "/table.demo"
end

-- Stops the run where a call of the engine did not return 0.
function demo.check(status, what)
    if status ~= 0 then
        error(("%s failed with status %d"):format(what, status), 0)
    end
end

-- Defines a workload from one call: call(session), where a session has
-- engine (the library), db, size (rows), width (rows of a range), row and rows (room for what is read).
function demo.define(call)
    pb.define{
        connect = function()
            local engine, status = pb.library(), ffi.new("int[1]")
            local db = engine.demo_open(demo.file(), status)
            demo.check(status[0], "demo_open")
            return {
                engine = engine,
                db = db,
                batch = sysbench.opt.batch,
                size = sysbench.opt.table_size,
                width = sysbench.opt.range_size,
                row = ffi.new("demo_row"),
                rows = ffi.new("demo_row[?]", sysbench.opt.range_size),
            }
        end,
        operation = function(session)
            for _ = 1, session.batch do
                call(session)
            end
        end,
        disconnect = function(session)
            session.engine.demo_close(session.db)
        end,
    }
end

return demo
