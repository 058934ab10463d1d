/* A wall clock that is set twice a second, for tests: loaded by LD_PRELOAD. */
#define _GNU_SOURCE
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Seconds; forward and back, by little and by much. */
static const long steps[] = {0, 3600, -3600, 2, -2, 2592000, -86400, 40};

static long offset(void) {
  struct timespec now;
  syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
  long halves = now.tv_sec * 2 + now.tv_nsec / 500000000;
  return steps[(unsigned long)(halves + getpid()) % (sizeof steps / sizeof *steps)];
}

int clock_gettime(clockid_t id, struct timespec *time) {
  int failed = (int)syscall(SYS_clock_gettime, id, time);
  if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) time->tv_sec += offset();
  return failed;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
  (void)zone;
  struct timespec now;
  int failed = clock_gettime(CLOCK_REALTIME, &now);
  if (!failed && time) *time = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
  return failed;
}

time_t time(time_t *into) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (into) *into = now.tv_sec;
  return now.tv_sec;
}
