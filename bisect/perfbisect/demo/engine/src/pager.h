#ifndef PAGER_H
#define PAGER_H

#include <stdbool.h>
#include <stdint.h>

#define PAGE_SIZE 4096
#define CHUNK_PAGES 64

/* Page 0 is the header, so that 0 can stand for "no page" elsewhere. */
struct header {
    uint64_t checksum;
    uint64_t magic;
    uint32_t format;
    uint32_t page_count;
    uint32_t free_head;
    uint32_t rows_root;
    uint32_t index_root;
    uint32_t row_count;
};

struct pager {
    unsigned char **chunks;
    uint32_t chunk_count;
    uint32_t page_count;
    uint32_t free_head;
};

int pager_create(struct pager *pager);
int pager_load(struct pager *pager, const char *path);
int pager_save(struct pager *pager, const char *path);
void pager_close(struct pager *pager);

/* Makes sure that the next `pages` allocations succeed. */
bool pager_reserve(struct pager *pager, uint32_t pages);

/* The number of a zeroed page; only after a reservation. */
uint32_t pager_allocate(struct pager *pager);
void pager_release(struct pager *pager, uint32_t page);

static inline void *pager_page(const struct pager *pager, uint32_t page)
{
    return pager->chunks[page / CHUNK_PAGES] + (uint64_t)(page % CHUNK_PAGES) * PAGE_SIZE;
}

static inline struct header *pager_header(const struct pager *pager)
{
    return pager_page(pager, 0);
}

#endif
