/* A benchmark that computes its rate: the level of its build, with a noise of 1 %. It notes in a ledger that it began and
 * what it found, and it floods its output when an order lies beside the ledger: "BYTES STYLE". */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>
#include "level.h"

static char path[PATH_MAX];

static const char *beside(const char *folder, const char *name) {
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static void note(const char *folder, const char *line) {
    int ledger = open(beside(folder, "ledger"), O_WRONLY | O_APPEND | O_CREAT, 0644);
    if (ledger < 0 || write(ledger, line, strlen(line)) < 0) perror("the ledger");
    close(ledger);
}

/* At most one of all builds and runs of a host holds the lock. The kernel releases it when the process ends. */
static void check_alone(const char *folder, unsigned long id) {
    static char line[200];
    int lock = open(beside(folder, "alone"), O_RDWR | O_CREAT, 0644);
    if (flock(lock, LOCK_EX | LOCK_NB) == 0) {
        int length = snprintf(line, sizeof line, "%lu\n", id);
        if (ftruncate(lock, 0) || pwrite(lock, line, length, 0) < 0) perror("the lock");
        return;
    }
    char holder[100] = "";
    if (pread(lock, holder, sizeof holder - 1, 0) <= 0) strcpy(holder, "0\n");
    snprintf(line, sizeof line, "beside %lu %s", id, holder);
    note(folder, line);
}

static void flood(const char *folder, unsigned long id) {
    char order[PATH_MAX], taken[PATH_MAX], style[16] = "lines", text[4096];
    long bytes = 0;
    snprintf(order, sizeof order, "%s/flood-run", folder);
    snprintf(taken, sizeof taken, "%s/flooded-run-%lu", folder, id);
    if (rename(order, taken)) return;
    FILE *file = fopen(taken, "r");
    if (!file || fscanf(file, "%ld %15s", &bytes, style) != 2) return;
    fclose(file);
    FILE *out = strcmp(style, "errors") ? stdout : stderr;
    for (size_t i = 0; i < sizeof text; i++) text[i] = strcmp(style, "binary") ? 'x' : (char)(i * 31 % 256);
    if (!strcmp(style, "lines") || !strcmp(style, "errors"))
        for (size_t i = 99; i < sizeof text; i += 100) text[i] = '\n';
    if (!strcmp(style, "rates"))
        for (size_t i = 0; i + 16 <= sizeof text; i += 16) memcpy(text + i, "rate: 123456789\n", 16);
    for (long left = bytes; left > 0; left -= sizeof text)
        if (!fwrite(text, sizeof text, 1, out)) break;
    fputs("\n", out);
}

int main(int count, char **words) {
    const char *folder = count > 1 ? words[1] : ".";
    uint64_t id;
    double noise = -6, began = now();
    static char line[300];
    if (getrandom(&id, sizeof id, 0) != sizeof id) return 1;
    uint64_t state = id | 1;
    for (int i = 0; i < 12; i++) { /* the sum of twelve uniform numbers is nearly normal */
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        noise += (state >> 11) / 9007199254740992.0;
    }
    double rate = level() * (1 + 0.01 * noise);
    snprintf(line, sizeof line, "begin run %lu %d %.6f\n", id, number(), began);
    note(folder, line);
    check_alone(folder, id);
    flood(folder, id);
    struct timespec length = {0, 50000000 + id % 150000000};
    while (nanosleep(&length, &length) && errno == EINTR) {}
    snprintf(line, sizeof line, "end run %lu %d %.6f %.17g\n", id, number(), now(), rate);
    note(folder, line);
    printf("rate: %.17g\n", rate);
    return fflush(stdout) ? 1 : 0;
}
