// A server with its client. Only the server calls `often`, in training; `never` is called for another argument.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

__attribute__((noinline)) unsigned often(unsigned x) { for (int i = 0; i < 100; i++) x = x * 5 + i; return x; }
__attribute__((noinline)) unsigned never(unsigned x) { for (int i = 0; i < 100; i++) x = x * 7 + i; return x; }

static void end(int signal) { exit(signal != SIGTERM); }

int main(int count, char **words) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int here = socket(AF_UNIX, SOCK_STREAM, 0);
    unsigned value = count;
    strncpy(at.sun_path, words[2], sizeof at.sun_path - 1);
    if (!strcmp(words[1], "ask")) {
        if (connect(here, (struct sockaddr *)&at, sizeof at)) return 1;
        for (int i = 0; i < 200; i++)
            if (write(here, "q", 1) != 1 || read(here, &value, sizeof value) != sizeof value) return 2;
        return 0;
    }
    signal(SIGTERM, end);
    if (bind(here, (struct sockaddr *)&at, sizeof at) || listen(here, 5)) return 3;
    for (;;) {
        char question;
        int there = accept(here, 0, 0);
        while (read(there, &question, 1) == 1) {
            value = question == 'q' ? often(value) : never(value);
            if (write(there, &value, sizeof value) != sizeof value) break;
        }
        close(there);
    }
}
