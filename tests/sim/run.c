/* SPDX-License-Identifier: Apache-2.0 */
/* One run: from the seed, or a world by name, to its line at the end. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "calls.h"
#include "run.h"

#define END (3000 * SIM_SEC) /* of a world at the latest */
#define CPU_MOST 120 /* s: a run that takes more is taken for a livelock (sim_out_of_time) */

static struct run_result *own;
static const struct run *own_run;

/* ---- in the process of a run ----------------------------------------------------------------- */

static double cpu_seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void finish(void)
{
	own->hash = sim_hash;
	own->batches = program_counts.batches;
	own->cpu = cpu_seconds();
	own->simulated = sim_time - 1000 * SIM_SEC;
	own->done = true;
}

/* Of a build that counts what ran (-Db_coverage=true): write the counts, which _exit() does not. */
extern void __gcov_dump(void) __attribute__((weak));

static _Noreturn void leave(int status)
{
	if (__gcov_dump)
		__gcov_dump();
	_exit(status);
}

void sim_fail(const char *oracle, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(own->text, sizeof(own->text), format, arguments);
	va_end(arguments);
	snprintf(own->oracle, sizeof(own->oracle), "%s", oracle);
	own->failed = true;
	finish();
	sim_trace("FAIL %s: %s", oracle, own->text);
	fflush(stdout);
	if (!own_run->quiet) {
		fprintf(stderr, "FAIL %s at %.6f in %s: %s\n", oracle, (double)sim_time / 1e9,
			sim_thread_name(), own->text);
		if (strcmp(oracle, "hang") == 0)
			sim_dump();
	}
	fflush(stderr);
	leave(1);
}

/* The next call fails then. A run that makes none is ended by the next signal. */
static void took_too_long(int number)
{
	(void)number;
	sim_out_of_time = 1;
}

static void seed_start(void)
{
	for (int i = 0; i < place_count(); i++)
		program_new(i);
	sim_spawn(-1, "chaos", chaos_main, NULL);
}

static void print_line(void)
{
	const struct program_counts *p = &program_counts;
	const struct sim_counts *c = &sim_counts;

	printf("ok hash %016llx, %.1f s in %.2f s, %llu calls, %llu batches (%llu failed, %llu "
	       "cancelled), %llu notifications, %llu crashes, %llu restarts, %llu versions, %llu "
	       "copies, %llu "
	       "connections, %llu broken, %llu spins, %llu failed allocations, %llu bits, %llu "
	       "requests of NICs (%llu queue pairs failed), %llu works of GPUs (%llu lost), bytes: "
	       "%llu self, %llu cuda, %llu shm, %llu rdma, "
	       "%llu tcp\n",
	       (unsigned long long)own->hash, (double)own->simulated / 1e9, own->cpu,
	       (unsigned long long)c->calls, (unsigned long long)p->batches,
	       (unsigned long long)p->failed, (unsigned long long)p->cancelled,
	       (unsigned long long)p->notes, (unsigned long long)p->crashes,
	       (unsigned long long)p->restarts, (unsigned long long)p->versions,
	       (unsigned long long)p->copies, (unsigned long long)c->accepts,
	       (unsigned long long)c->resets, (unsigned long long)c->spins,
	       (unsigned long long)c->failed_allocations, (unsigned long long)c->flipped,
	       (unsigned long long)c->nic_requests, (unsigned long long)c->nic_errors,
	       (unsigned long long)c->gpu_operations, (unsigned long long)c->gpu_errors,
	       (unsigned long long)p->by_self, (unsigned long long)p->by_cuda,
	       (unsigned long long)p->by_shm, (unsigned long long)p->by_rdma,
	       (unsigned long long)p->by_tcp);
	fflush(stdout);
}

static void run_begin(const struct run *run)
{
	const struct sim_settings settings = { .seed = run->seed,
					       .trace = run->trace,
					       .stop_at = run->stop_at,
					       .stop_spinning = run->stop_spinning };
	const struct itimerval limit = { .it_value.tv_sec = CPU_MOST, .it_interval.tv_sec = 5 };
	const struct sigaction once = { .sa_handler = took_too_long, .sa_flags = SA_RESETHAND };

	sigaction(SIGPROF, &once, NULL);
	setitimer(ITIMER_PROF, &limit, NULL);
	sim_begin(&settings);
	sim_secrets_setup();
	sim_json_setup();
	if (run->world)
		swarm_calm_all();
	else
		swarm_choose(run->seed, run->is_long);
	for (int i = 0; i < run->set_count; i++)
		swarm_set(run->sets[i]);
	if (!run->world)
		swarm_agree();
	if (run->trace)
		swarm_print(true);
}

static void run_here(const struct run *run)
{
	int64_t until = run->until ? run->until : sim_time + END;

	run_begin(run);
	if (run->world)
		run->world->run();
	else
		seed_start();
	if (!sim_run(until)) {
		if (run->until)
			leave(0);
		sim_fail("hang", "the world does not end");
	}
	program_check_ended();
	if (sim_live_blocks) {
		sim_memory_report();
		sim_fail("leak", "%lld allocations are left", (long long)sim_live_blocks);
	}
	/* With threads, who waits for another one to be done yields the CPU to it. */
	if (!program_has_threads() && sim_counts.spins)
		sim_fail("spin", "a call that waits polled again and again (--stop-spinning)");
	finish();
	if (!run->quiet)
		print_line();
	leave(0);
}

/* ---- in the process that starts runs --------------------------------------------------------- */

struct run_result *run_results(void)
{
	static struct run_result *results;

	if (results)
		return results;
	results = mmap(NULL, RUN_RESULTS * sizeof(*results), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (results == MAP_FAILED) {
		perror("sim: mmap");
		exit(70);
	}
	return results;
}

int run_start(const struct run *run, struct run_result *result)
{
	pid_t child;

	memset(result, 0, sizeof(*result));
	fflush(NULL);
	child = fork();
	if (child < 0) {
		perror("sim: fork");
		exit(71);
	}
	if (!child) {
		own = result;
		own_run = run;
		run_here(run);
	}
	return child;
}

bool run_ended(const struct run *run, struct run_result *result, int status)
{
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return true;
	if (!result->failed) {
		/* A sanitizer's report, an assertion, a signal. */
		snprintf(result->oracle, sizeof(result->oracle), "crash");
		if (WIFSIGNALED(status))
			snprintf(result->text, sizeof(result->text), "killed by signal %d",
				 WTERMSIG(status));
		else
			snprintf(result->text, sizeof(result->text), "ended with status %d",
				 WEXITSTATUS(status));
		result->failed = true;
		if (!run->quiet)
			fprintf(stderr, "FAIL crash: %s\n", result->text);
	}
	return false;
}

bool run_once(const struct run *run, struct run_result *result)
{
	int child = run_start(run, result), status;

	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	return run_ended(run, result, status);
}

void run_print_command(const struct run *run)
{
	if (run->world)
		printf("build/tests/sim/sim --world %s", run->world->name);
	else
		printf("build/tests/sim/sim %llu", (unsigned long long)run->seed);
	if (run->is_long)
		printf(" --long");
	for (int i = 0; i < run->set_count; i++)
		printf(" --set %s", run->sets[i]);
	printf("\n");
	fflush(stdout);
}
