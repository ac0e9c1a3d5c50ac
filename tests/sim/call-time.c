/* SPDX-License-Identifier: Apache-2.0 */
/* The clock, random numbers, and what a process asks about itself and its machine. */
#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "calls.h"
#include "world.h"

#define EPOCH 1700000000 /* s: CLOCK_REALTIME when the world's clock is 0 */
#define CPUS 4

int sim_clock_gettime(clockid_t clock, struct timespec *out)
{
	int64_t now = sim_time + (clock == CLOCK_REALTIME ? EPOCH * SIM_SEC : 0);

	if (sim_current)
		sim_time += 30;
	*out = (struct timespec){ now / SIM_SEC, now % SIM_SEC };
	return 0;
}

time_t sim_time_call(time_t *out)
{
	time_t now = (time_t)(EPOCH + sim_time / SIM_SEC);

	if (out)
		*out = now;
	return now;
}

int sim_nanosleep(const struct timespec *time, struct timespec *left)
{
	(void)left;
	call_point("nanosleep", 0);
	sim_sleep(time->tv_sec * SIM_SEC + time->tv_nsec);
	return 0;
}

int sim_sched_yield(void)
{
	call_point("sched_yield", 0);
	call_fruitless();
	if (sim_current)
		fiber_yield();
	return 0;
}

int sim_sched_getcpu(void)
{
	return 0;
}

int sim_get_nprocs(void)
{
	return CPUS;
}

/* What the world's program has in its environment; others have nothing there. */
static const char *(*environment)(const char *name);

void sim_environment(const char *(*variable)(const char *name))
{
	environment = variable;
}

char *sim_secure_getenv(const char *name)
{
	return environment ? (char *)environment(name) : NULL;
}

/* The same number of CPUs wherever the simulation runs. */
int sim_sched_getaffinity(pid_t pid, size_t size, cpu_set_t *out)
{
	(void)pid;
	CPU_ZERO_S(size, out);
	for (int i = 0; i < CPUS; i++)
		CPU_SET_S(i, size, out);
	return 0;
}

int sim_sched_setaffinity(pid_t pid, size_t size, const cpu_set_t *set)
{
	(void)pid;
	(void)size;
	(void)set;
	return 0;
}

ssize_t sim_getrandom(void *out, size_t length, unsigned flags)
{
	(void)flags;
	sim_draw_secret(out, length);
	return (ssize_t)length;
}

pid_t sim_getpid(void)
{
	return node_pid(node_self());
}

int sim_gethostname(char *out, size_t length)
{
	int node = node_self();

	snprintf(out, length, "host%d", node >= 0 ? sim_node_host(node) : -1);
	return 0;
}

/* In place of libwherry's own, which calls.txt makes weak: each host is a machine of its own. */
int wh_machine_identify(uint8_t *out);
int wh_machine_identify(uint8_t *out)
{
	int node = node_self();

	for (int i = 0; i < 16; i++)
		out[i] = (uint8_t)((node >= 0 ? sim_node_host(node) : 0) * 16 + i + 1);
	return 0;
}

static int secrets_bytes(unsigned char *out, int length)
{
	sim_draw_secret(out, (size_t)length);
	return 1;
}

static int secrets_ready(void)
{
	return 1;
}

void sim_secrets_setup(void)
{
	/* struct rand_meth_st of OpenSSL 3 */
	static const struct {
		int (*seed)(const void *, int);
		int (*bytes)(unsigned char *, int);
		void (*cleanup)(void);
		int (*add)(const void *, int, double);
		int (*pseudorand)(unsigned char *, int);
		int (*status)(void);
	} method = { .bytes = secrets_bytes, .pseudorand = secrets_bytes, .status = secrets_ready };
	void *library = dlopen("libcrypto.so.3", RTLD_NOW | RTLD_GLOBAL);
	void *set = library ? dlsym(library, "RAND_set_rand_method") : NULL;

	if (set)
		((int (*)(const void *))set)(&method);
}
