#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>
#include "work.h"

int main(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    srand(now.tv_nsec);
    int disk = open(getenv("DISK"), O_CREAT | O_RDWR, 0600), service = SERVICE * (75 + rand() % 50) / 100;
    for (int i = 0; i < 60; i++) {
        flock(disk, LOCK_EX);
        if (pwrite(disk, &i, sizeof i, 0) < 0 || fsync(disk)) return 1;
        usleep(service);
        flock(disk, LOCK_UN);
        usleep(500);
    }
    return 0;
}
