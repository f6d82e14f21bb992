#include <stdio.h>
#include <time.h>
#include "engine.h"

enum { OPERATIONS = 500000 };

int main(void)
{
	struct timespec from, to;
	unsigned long sum = 0;
	fill();
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
	for (unsigned op = 0; op < OPERATIONS; op++)
		sum += page_insert(op);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
	double seconds = (to.tv_sec - from.tv_sec) + (to.tv_nsec - from.tv_nsec) / 1e9;
	printf("{\"rate\": %.1f, \"operations\": %d, \"sum\": %lu}\n", OPERATIONS / seconds, OPERATIONS, sum);
	return 0;
}
