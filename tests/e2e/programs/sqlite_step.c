#define _GNU_SOURCE
#include <dlfcn.h>
#include "work.h"

int sqlite3_step(void *statement) {
    static int (*step)(void *);
    if (!step) step = dlsym(RTLD_NEXT, "sqlite3_step");
    for (volatile long i = 0; i < WORK; i++);
    return step(statement);
}
