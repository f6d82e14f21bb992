#include "checksum.h"

#include <string.h>

uint64_t checksum(const void *bytes, size_t size)
{
    const unsigned char *at = bytes;
    uint64_t sum = 0xcbf29ce484222325u;
    for (size_t done = 0; done < size; done += 8) {
        uint64_t word;
        memcpy(&word, at + done, 8);
        sum = (sum ^ word) * 0x100000001b3u;
        sum ^= sum >> 32;
    }
    return sum;
}
