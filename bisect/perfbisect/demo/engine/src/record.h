#ifndef RECORD_H
#define RECORD_H

#include <stdint.h>

#include "demo.h"

/* A row as it is stored; the id is the key of the tree and not repeated. */
struct record {
    uint32_t k;
    char c[DEMO_C_SIZE];
    char pad[DEMO_PAD_SIZE];
};

void record_pack(struct record *record, const demo_row *row);
void record_unpack(const struct record *record, uint32_t id, demo_row *row);

#endif
