#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline unsigned mix(unsigned h)
{
	h ^= h >> 15;
	h *= 2246822519u;
	return h;
}

__attribute__((noinline)) unsigned hash(const unsigned char *row, int size)
{
	unsigned h = 1;
	for (int i = 0; i < size; i++)
		h = mix(h ^ row[i]);
	return h;
}

__attribute__((noinline)) unsigned insert(const unsigned char *row)
{
	return hash(row, 40) ^ 7;
}

int main(int count, char **words)
{
	unsigned char row[40] = {0};
	unsigned sum = 0;
	for (int i = 0; i < atoi(words[1]); i++) {
		row[i % 40] += i;
		sum += insert(row);
	}
	double ms = 1e3 * clock() / CLOCKS_PER_SEC;
	printf(ms < 200 ? "%u in %.3f ms\n" : "%u in %.3f s\n", sum, ms < 200 ? ms : ms / 1e3);
	return 0;
}
