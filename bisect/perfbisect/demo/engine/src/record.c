#include "record.h"

#include <string.h>

void record_pack(struct record *record, const demo_row *row)
{
    record->k = row->k;
    memcpy(record->c, row->c, sizeof record->c);
    memcpy(record->pad, row->pad, sizeof record->pad);
}

void record_unpack(const struct record *record, uint32_t id, demo_row *row)
{
    row->id = id;
    row->k = record->k;
    memcpy(row->c, record->c, sizeof row->c);
    memcpy(row->pad, record->pad, sizeof row->pad);
}
