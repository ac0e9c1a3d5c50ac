/* SPDX-License-Identifier: Apache-2.0 */
/* Runs: a process for each, so that all begin alike. */
#ifndef SIM_RUN_H
#define SIM_RUN_H

#include "program.h"

#define RUN_SETS (SWARM_MOST + 16) /* each option, and some once more */
#define RUN_RESULTS 64

/* What to run. */
struct run {
	uint64_t seed;
	const struct world *world; /* NULL: the one of the seed */
	bool is_long, trace, stop_spinning, quiet;
	int64_t until, stop_at; /* ns of the world's clock; 0: to the end, never */
	const char *sets[RUN_SETS]; /* "NAME=VALUE" */
	int set_count;
};

/* How it ended; written by its process. */
struct run_result {
	bool done, failed;
	char oracle[24];
	char text[400];
	uint64_t hash, batches;
	double cpu; /* s */
	int64_t simulated; /* ns */
};

/* Start a run in a process of its own, which writes to *result, memory that both share. Returns its
 * number. */
int run_start(const struct run *run, struct run_result *result);
/* Take in what waitpid() said of its process. True: the run went well. */
bool run_ended(const struct run *run, struct run_result *result, int status);
/* Run it, and wait for it. True: it went well. */
bool run_once(const struct run *run, struct run_result *result);
/* Print a run as the command that repeats it. */
void run_print_command(const struct run *run);
/* Memory for RUN_RESULTS results, always the same. Whoever starts runs allocates nothing else, as
 * addresses of what a run allocates are in frames. */
struct run_result *run_results(void);

/* Find a run with fewer options, faults and hosts that fails by the same oracle. shrink.c */
int run_shrink(const struct run *run);

#endif
