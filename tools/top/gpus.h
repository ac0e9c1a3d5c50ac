/* SPDX-License-Identifier: Apache-2.0 */
/* What GPUs are asked for the samples of wherry top, and how often. */
#ifndef TOOLS_TOP_GPUS_H
#define TOOLS_TOP_GPUS_H

#include "platform/nvml.h"
#include "top/top.h"

/* Begins as zeros, with `needs`. */
struct top_asking {
	unsigned needs; /* bits of enum top_question: the others are never asked */
	double asked[TOP_QUESTIONS]; /* when, s; 0: not yet */
	/* so many times their period, for all questions that are not of each sample */
	unsigned stretch;
	unsigned samples; /* whose cost is in `spent` */
	double spent;
};

/* Names and ceilings do not change: they are taken from the topology, once. */
void top_name_gpus(const struct wh_topology *topology, struct top_sample *out);

/* Take a sample at `time` (s, more than 0): ask what is due, and leave the rest as it was. */
void top_ask_gpus(struct top_asking *asking, const struct wh_tree *tree, struct wh_nvml *nvml,
		  double time, double interval, struct top_sample *out);

/* So many seconds of the CPU the last sample took: where the mean is over the bound, what is not of
 * each sample is asked half as often; and again more often where it is far below. */
void top_asked_for(struct top_asking *asking, double seconds, double interval);

#endif
