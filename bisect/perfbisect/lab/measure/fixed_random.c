/* The kernel's random numbers, but the same in every run, loaded by LD_PRELOAD. A program that draws seeds from them, as
 * LuaJIT does for its compiler and its tables, would execute other instructions in each run. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>

static unsigned char next_byte(void) /* of splitmix64 */
{
    static uint64_t state;
    uint64_t mixed = __atomic_add_fetch(&state, 0x9e3779b97f4a7c15u, __ATOMIC_RELAXED);

    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    return (unsigned char)(mixed >> 56);
}

ssize_t getrandom(void *buffer, size_t size, unsigned flags)
{
    (void)flags;
    for (size_t i = 0; i < size; i++)
        ((unsigned char *)buffer)[i] = next_byte();
    return (ssize_t)size;
}

int getentropy(void *buffer, size_t size)
{
    getrandom(buffer, size, 0);
    return 0;
}

long syscall(long number, ...)
{
    static long (*real)(long, ...);
    long given[6];
    va_list list;

    va_start(list, number);
    for (int i = 0; i < 6; i++)
        given[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_getrandom)
        return getrandom((void *)given[0], (size_t)given[1], 0);
    if (!real)
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return real(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}
