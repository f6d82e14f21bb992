#include <stdio.h>
#include <time.h>
#include "engine.h"

int main(void)
{
	unsigned long sum = 0, op = 0;
	fill();
	while (op % 1000 || clock() < CLOCKS_PER_SEC / 2)
		sum += page_insert(op++);
	printf("{\"rate\": %lu, \"cost\": %.3f, \"sum\": %lu}\n", 2 * op, 5e8 / op, sum);
	return 0;
}
