/* SPDX-License-Identifier: Apache-2.0 */
/* A failing run made smaller: one option after the other becomes calm, as long as the run still
 * fails by the same oracle. Every change gives another history, so several seeds are tried. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

#define SEEDS 8 /* that are tried for each change */

static struct run_result *result;

static bool fails_alike(struct run *run, const char *oracle)
{
	uint64_t first = run->seed;

	for (int i = 0; i < SEEDS; i++) {
		/* The options stay those of the first seed: all of them are set. */
		run->seed = first + (uint64_t)i * 1000003;
		if (!run_once(run, result) && strcmp(result->oracle, oracle) == 0)
			return true;
	}
	run->seed = first;
	return false;
}

/* Try one more option. True: it stays. */
static bool try_set(struct run *run, const char *oracle, const char *set)
{
	uint64_t seed = run->seed;

	if (run->set_count == RUN_SETS)
		return false;
	run->sets[run->set_count++] = strdup(set);
	if (fails_alike(run, oracle)) {
		printf("shrink: %s stays (seed %llu)\n", set, (unsigned long long)run->seed);
		fflush(stdout);
		return true;
	}
	run->set_count--;
	run->seed = seed;
	return false;
}

/* Every option of the seed as a set of its own, so that another seed has the same ones. */
static void freeze(struct run *run)
{
	char set[64];
	int given = run->set_count;
	const char *sets[RUN_SETS];

	memcpy(sets, run->sets, sizeof(sets));
	swarm_choose(run->seed, run->is_long);
	for (int i = 0; i < given; i++)
		swarm_set(sets[i]);
	run->set_count = 0;
	for (int i = 0; swarm_get(i, set, sizeof(set)); i++)
		run->sets[run->set_count++] = strdup(set);
}

static void replace(struct run *run, int at, const char *set)
{
	run->sets[at] = strdup(set);
}

int run_shrink(const struct run *given)
{
	struct run run = *given;
	char oracle[sizeof(result->oracle)], calm[64];

	result = run_results();
	run.quiet = true;
	if (run_once(&run, result)) {
		printf("shrink: this run does not fail\n");
		return 0;
	}
	snprintf(oracle, sizeof(oracle), "%s", result->oracle);
	printf("shrink: fails by the oracle '%s'\n", oracle);
	freeze(&run);
	run.is_long = false;
	for (int i = 0; i < run.set_count; i++) {
		const char *was = run.sets[i];

		if (!swarm_calm_of(was, calm, sizeof(calm)))
			continue;
		replace(&run, i, calm);
		if (fails_alike(&run, oracle)) {
			printf("shrink: %s -> %s\n", was, calm);
			fflush(stdout);
		} else {
			run.sets[i] = was;
		}
	}
	for (int span = 1000; span >= 125 && run.set_count < RUN_SETS; span /= 2) {
		snprintf(calm, sizeof(calm), "span_ms=%d", span);
		if (!try_set(&run, oracle, calm))
			break;
	}
	printf("the smallest run that fails alike:\n");
	run.quiet = false;
	run_once(&run, result);
	run_print_command(&run);
	return 1;
}
