/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that wherry serve receives from wherry spread (spread/message.h), and offers to others as
 * a region once they are complete. */
#ifndef TOOLS_SERVE_WEIGHTS_H
#define TOOLS_SERVE_WEIGHTS_H

#include <wherry/wherry.h>

#include "command.h"
#include "memory.h"

/* One --weights MEM:SIZE[:NAME]. */
struct weights_offer {
	struct memory memory;
	uint64_t limit; /* bytes of a file, at most */
	const char *name; /* of the region */
};

struct weights_server;

/* Start the thread that answers. `offers` are copied; with none every file is refused. The engines
 * that --weights-from names may send; without that, all. 0, or an exit code. */
int weights_server_start(struct wh_engine *engine, const struct arguments *arguments,
			 const struct weights_offer *offers, size_t count,
			 struct weights_server **out);

/* Take a notification whose tag is SPREAD_TAG. Does not block; one too many is dropped, and its
 * sender hears nothing. */
void weights_server_take(struct weights_server *server, const struct wh_notification *note);

/* End the thread, and begin to leave every spread and to withdraw everything, without waiting for
 * peers. NULL is no server. */
void weights_server_end(struct weights_server *server);
/* After weights_server_end(): wait for peers until then. Takes the exit code so far and returns it,
 * or its own if that is 0. NULL is no server. */
int weights_server_stop(struct weights_server *server, int64_t until, int code);

#endif
