#ifndef DEMO_H
#define DEMO_H

#include <stdint.h>

#define DEMO_API __attribute__((visibility("default")))

#define DEMO_C_SIZE 120
#define DEMO_PAD_SIZE 60

/* What the functions return, unless they say otherwise. */
enum {
    DEMO_OK = 0,
    DEMO_MISSING = 1,
    DEMO_EXISTS = 2,
    DEMO_NO_MEMORY = 3,
    DEMO_IO = 4,
    DEMO_CORRUPT = 5,
};

typedef struct demo demo;

typedef struct {
    uint32_t id;
    uint32_t k;
    char c[DEMO_C_SIZE];
    char pad[DEMO_PAD_SIZE];
} demo_row;

/* A new empty table; NULL without memory. */
DEMO_API demo *demo_create(void);

/* A table saved before; NULL, and the reason in *status, where that fails. */
DEMO_API demo *demo_open(const char *path, int *status);

DEMO_API int demo_save(demo *db, const char *path);
DEMO_API void demo_close(demo *db);

DEMO_API int demo_insert(demo *db, const demo_row *row);
DEMO_API int demo_delete(demo *db, uint32_t id);
DEMO_API int demo_get(const demo *db, uint32_t id, demo_row *row);

/* k = k + by, which moves the row within the index. */
DEMO_API int demo_add_to_k(demo *db, uint32_t id, uint32_t by);

/* c = text of DEMO_C_SIZE bytes; the index is not concerned. */
DEMO_API int demo_set_c(demo *db, uint32_t id, const char *text);

/* Copies at most `limit` rows in ascending order; returns how many. */
DEMO_API uint32_t demo_range(const demo *db, uint32_t first_id, uint32_t last_id, demo_row *rows, uint32_t limit);
DEMO_API uint32_t demo_range_by_k(const demo *db, uint32_t first_k, uint32_t last_k, demo_row *rows, uint32_t limit);

/* Reads every row; returns how many have a c that begins with `first`. */
DEMO_API uint32_t demo_scan(const demo *db, char first);

#endif
