#include <stdio.h>
#include <time.h>
#include <unit.h>
int main(void) {
    volatile unsigned long sum = 1;
    clock_t from = clock();
    for (long i = 0; i < 20000; i++)
        for (long j = 0; j < UNIT; j++) sum = sum * 31 + j;
    printf("rate %%.1f\n", 20000.0 * CLOCKS_PER_SEC / (clock() - from));
    return 0; /* %d */
}
