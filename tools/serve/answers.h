/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of wherry serve --dir: each is a region until its client has read it. One address has at
 * most half of the room, so that its answers push out no others' before they are read. On one
 * thread. */
#ifndef TOOLS_SERVE_ANSWERS_H
#define TOOLS_SERVE_ANSWERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/wherry.h>

#include "dir/message.h"

struct answer;

struct answer_list {
	struct answer *first; /* the newest */
	size_t count;
	uint64_t bytes;
};

struct answers {
	struct answer_list waiting; /* to be read */
	struct answer_list leaving; /* nobody finds them; a peer has not let go of them */
};

/* Publish an answer to `source`, an address, and take its data. 0, -ENOBUFS (peers hold too many),
 * or a negative errno. */
int answers_publish(struct answers *answers, struct wh_engine *engine, uint64_t source,
		    const uint8_t token[DIR_TOKEN], struct dir_writer *written);
/* Its client has read it. */
void answers_forget(struct answers *answers, const uint8_t token[DIR_TOKEN]);
/* Drop those that nobody has read for too long. */
void answers_drop_old(struct answers *answers);
/* Look again at those that leave, waiting until then; `all`: whether they are due or not. Returns
 * `next`, or when the first is due if that is before. */
int64_t answers_retry(struct answers *answers, bool all, int64_t until, int64_t next);
/* Withdraw all, without waiting. */
void answers_end(struct answers *answers);

#endif
