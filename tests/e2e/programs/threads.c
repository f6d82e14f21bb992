// Two threads that work beside each other, or one after the other. Beside other tests they get cores of their own where the
// kernel lets them ask for that.
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>
#include "work.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *work(void *unused) {
    for (int i = 0; i < 400; i++) {
        if (SERIAL) pthread_mutex_lock(&lock);
        for (volatile long j = 0; j < 4000000; j++);
        if (SERIAL) pthread_mutex_unlock(&lock);
    }
    return unused;
}

int main(void) {
    int group = open("/proc/self/autogroup", O_WRONLY);
    if (group >= 0 && write(group, "-15", 3) < 0) close(group);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(threads + i, 0, work, 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    return 0;
}
