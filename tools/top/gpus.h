/* SPDX-License-Identifier: Apache-2.0 */
/* Asking GPUs for the samples of wherry top, each question as often as its answer changes. */
#ifndef TOOLS_TOP_GPUS_H
#define TOOLS_TOP_GPUS_H

#include "platform/nvml.h"
#include "top/top.h"

/* Begins as zeros, with `needs`. */
struct top_asking {
	unsigned needs; /* bits of enum top_question; others are never asked */
	double asked[TOP_QUESTIONS]; /* when, s; 0: not yet */
	/* by which the periods are longer of all questions that are not asked for each sample */
	unsigned period_factor;
	unsigned samples; /* taken for `spent` */
	double spent; /* CPU time, s */
};

/* Fill in names and link capacities from the topology, once: they do not change. */
void top_name_gpus(const struct wh_topology *topology, struct top_sample *out);

/* Take a sample at `time` (s, more than 0): ask the questions that are due and keep older answers.
 */
void top_ask_gpus(struct top_asking *asking, const struct wh_tree *tree, struct wh_nvml *nvml,
		  double time, double interval, struct top_sample *out);

/* Report the CPU time of the last sample. If the mean exceeds the budget, questions that are not
 * asked for each sample are asked half as often; if it is far below, twice as often again. */
void top_asked_for(struct top_asking *asking, double seconds, double interval);

#endif
