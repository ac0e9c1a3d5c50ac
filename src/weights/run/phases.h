/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the time of a version goes, at a target: from the first that it heard of it until it is
 * whole. Times are monotonic ns. Only the loop calls these, under its lock.
 */
#ifndef WH_WEIGHTS_RUN_PHASES_H
#define WH_WEIGHTS_RUN_PHASES_H

#include <stddef.h>
#include <stdint.h>

struct wh_phases {
	uint64_t version; /* 0: none */
	int64_t heard; /* that somebody has it */
	int64_t begun; /* all that it needs was published, and a buffer free */
	int64_t first; /* the first read began; 0: none yet */
	int64_t landed; /* the last read ended; 0: none yet */
	int64_t whole; /* 0: not yet */
	int64_t idle; /* ns between the first read and the last in which none was under way */
	uint64_t reads, bytes; /* that were begun; `bytes` about */
	uint64_t looks; /* at others' control blocks; most say whether a read was good */
	int64_t looking; /* ns that all looks took together */
	uint32_t running, most; /* reads under way: now, and at most */
	/* For the mean of those: */
	int64_t changed;
	double under_way; /* reads times ns */
};

void wh_phases_begin(struct wh_phases *phases, uint64_t version, int64_t heard, int64_t now);
void wh_phases_read(struct wh_phases *phases, uint64_t bytes, int64_t now);
void wh_phases_landed(struct wh_phases *phases, int64_t now);
void wh_phases_looked(struct wh_phases *phases, int64_t took);
void wh_phases_whole(struct wh_phases *phases, int64_t now);

/* One line for people, which ends with \n; as snprintf(). "" if nothing was read. */
int wh_phases_text(const struct wh_phases *phases, char *out, size_t size);

#endif
