#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include "work.h"

int main(void) {
    struct timespec from, to;
    volatile unsigned long sum = 1;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    for (long i = 0; i < 20000; i++)
        for (long j = 0; j < WORK; j++) sum = sum * 31 + j;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
    double seconds = (to.tv_sec - from.tv_sec) + (to.tv_nsec - from.tv_nsec) / 1e9;
    usleep(PAUSE);
    printf("{\"host\": \"here\", \"results\": [{\"ops/s\": %.1f, \"operations\": 20000}]}\n", 20000 / seconds);
    return STATUS;
}
