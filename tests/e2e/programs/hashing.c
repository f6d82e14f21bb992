#include <stdio.h>
#include <string.h>

enum { ROWS = 30000, WIDTH = 48, SLOTS = 1 << 13 };
static unsigned char table[SLOTS][WIDTH];
static unsigned used[SLOTS];
unsigned cold[64];

__attribute__((noinline)) unsigned hash(const unsigned char *row)
{
	unsigned h = 2166136261u;
	for (int i = 0; i < WIDTH; i++)
		h = (h ^ row[i]) * 16777619u;
	return h;
}

__attribute__((noinline)) int insert(const unsigned char *row)
{
	unsigned slot = hash(row) % SLOTS;
	while (used[slot] && memcmp(table[slot], row, WIDTH))
		slot = (slot + 1) % SLOTS;
	memcpy(table[slot], row, WIDTH);
	return used[slot]++;
}

__attribute__((noinline)) void make_row(unsigned key, unsigned char *row)
{
	for (int i = 0; i < WIDTH; i++) {
		key = key * 1664525u + 1013904223u;
		row[i] = key >> 24;
	}
}

int housekeeping(void);

int main(void)
{
	unsigned char row[WIDTH];
	long again = 0;
	for (unsigned key = 0; key < ROWS; key++) {
		make_row(key % 3000, row);
		again += insert(row);
	}
	printf("%ld %d\n", again, housekeeping());
	return 0;
}
