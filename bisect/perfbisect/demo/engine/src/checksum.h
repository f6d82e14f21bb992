#ifndef CHECKSUM_H
#define CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* Of `size` bytes, a multiple of 8. */
uint64_t checksum(const void *bytes, size_t size);

#endif
