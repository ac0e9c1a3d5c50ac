/* SPDX-License-Identifier: Apache-2.0 */
/* How many files wherry serve --dir keeps open, for all and for whom. */
#ifndef TOOLS_SERVE_ROOM_H
#define TOOLS_SERVE_ROOM_H

#include <stddef.h>
#include <stdint.h>

#define ROOM_FILES 1024 /* at most */
#define ROOM_DESCRIPTORS 4096 /* of the process, which that many files need */

/* Files that may be open, or that are. */
struct room {
	size_t all;
	/* Of one address, which its connection proves: half of all, so that others have room. */
	size_t of_source;
	/* Of one engine by the epoch that it claims: that keeps apart only clients that do no harm,
	 * of one address. wherry copy has 32 open at once. */
	size_t of_client;
};

/* What fits a process that may have so many descriptors: a file takes two, and a quarter of all is
 * left to connections and the rest. */
void room_fit(uint64_t descriptors, struct room *out);

/* May one more be opened, beside those that are? 0 or -EMFILE. */
int room_check(const struct room *most, const struct room *open);

#endif
