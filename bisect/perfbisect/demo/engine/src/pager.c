#include "pager.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checksum.h"
#include "demo.h"

#define MAGIC 0x31656c6261746f6du
#define FORMAT 1

/* A free page: the checksum's place, then the next free page. */
struct free_page {
    uint64_t checksum;
    uint32_t next;
};

static bool add_chunk(struct pager *pager)
{
    unsigned char **chunks = realloc(pager->chunks, (pager->chunk_count + 1) * sizeof *chunks);
    if (!chunks)
        return false;
    pager->chunks = chunks;
    unsigned char *chunk = aligned_alloc(PAGE_SIZE, CHUNK_PAGES * PAGE_SIZE);
    if (!chunk)
        return false;
    memset(chunk, 0, CHUNK_PAGES * PAGE_SIZE);
    chunks[pager->chunk_count++] = chunk;
    return true;
}

int pager_create(struct pager *pager)
{
    memset(pager, 0, sizeof *pager);
    if (!add_chunk(pager))
        return DEMO_NO_MEMORY;
    pager->page_count = 1;
    return DEMO_OK;
}

void pager_close(struct pager *pager)
{
    for (uint32_t i = 0; i < pager->chunk_count; i++)
        free(pager->chunks[i]);
    free(pager->chunks);
    memset(pager, 0, sizeof *pager);
}

bool pager_reserve(struct pager *pager, uint32_t pages)
{
    while (pager->chunk_count * CHUNK_PAGES - pager->page_count < pages)
        if (!add_chunk(pager))
            return false;
    return true;
}

uint32_t pager_allocate(struct pager *pager)
{
    uint32_t page = pager->free_head;
    if (!page)
        return pager->page_count++;
    struct free_page *free_page = pager_page(pager, page);
    pager->free_head = free_page->next;
    memset(free_page, 0, PAGE_SIZE);
    return page;
}

void pager_release(struct pager *pager, uint32_t page)
{
    struct free_page *free_page = pager_page(pager, page);
    memset(free_page, 0, PAGE_SIZE);
    free_page->next = pager->free_head;
    pager->free_head = page;
}

static uint64_t page_checksum(const unsigned char *page)
{
    return checksum(page + sizeof(uint64_t), PAGE_SIZE - sizeof(uint64_t));
}

static int write_pages(struct pager *pager, FILE *file)
{
    for (uint32_t page = 0; page < pager->page_count; page++) {
        unsigned char *bytes = pager_page(pager, page);
        uint64_t sum = page_checksum(bytes);
        memcpy(bytes, &sum, sizeof sum);
        if (fwrite(bytes, PAGE_SIZE, 1, file) != 1)
            return DEMO_IO;
    }
    return DEMO_OK;
}

int pager_save(struct pager *pager, const char *path)
{
    struct header *header = pager_header(pager);
    header->magic = MAGIC;
    header->format = FORMAT;
    header->page_count = pager->page_count;
    header->free_head = pager->free_head;
    FILE *file = fopen(path, "wb");
    if (!file)
        return DEMO_IO;
    int status = write_pages(pager, file);
    if (fclose(file) != 0)
        status = DEMO_IO;
    return status;
}

static int read_page(struct pager *pager, uint32_t page, FILE *file)
{
    unsigned char *bytes = pager_page(pager, page);
    uint64_t sum;
    if (fread(bytes, PAGE_SIZE, 1, file) != 1)
        return DEMO_CORRUPT;
    memcpy(&sum, bytes, sizeof sum);
    return sum == page_checksum(bytes) ? DEMO_OK : DEMO_CORRUPT;
}

static int read_pages(struct pager *pager, FILE *file)
{
    int status = read_page(pager, 0, file);
    const struct header *header = pager_header(pager);
    if (status == DEMO_OK && (header->magic != MAGIC || header->format != FORMAT))
        status = DEMO_CORRUPT;
    for (uint32_t page = 1; status == DEMO_OK && page < header->page_count; page++) {
        if (!pager_reserve(pager, 1))
            return DEMO_NO_MEMORY;
        pager->page_count++;
        status = read_page(pager, page, file);
    }
    pager->free_head = header->free_head;
    return status;
}

int pager_load(struct pager *pager, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return DEMO_IO;
    int status = pager_create(pager);
    if (status == DEMO_OK)
        status = read_pages(pager, file);
    fclose(file);
    if (status != DEMO_OK)
        pager_close(pager);
    return status;
}
