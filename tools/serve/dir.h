/* SPDX-License-Identifier: Apache-2.0 */
/* Directories that wherry serve offers (dir/message.h). */
#ifndef TOOLS_SERVE_DIR_H
#define TOOLS_SERVE_DIR_H

#include <wherry/wherry.h>

#include "serve/file.h"

struct dir_server;

/* Read --dir PATH[:rw][:name=NAME]. 0, or an exit code. */
int served_dir_parse(const char *text, bool read_only, struct served_file *out);

/* Publish the directories and start the thread that answers. `descriptors`: how many this process
 * may have, which limits the files that are open at once. Call dir_server_stop() even on
 * failure, if *out is set. 0, or an exit code. */
int dir_server_start(struct wh_engine *engine, struct served_file *dirs, size_t count,
		     uint64_t descriptors, struct dir_server **out);

/* Take a notification whose tag is DIR_TAG. Does not block; one too many is dropped, and its sender
 * sees no answer. */
void dir_server_take(struct dir_server *server, const struct wh_notification *note);

/* End the thread, and withdraw everything without waiting for peers. NULL is no server. */
void dir_server_end(struct dir_server *server);
/* After dir_server_end(): wait for peers until then. Takes the exit code so far and returns it, or
 * its own if that is 0. NULL is no server. */
int dir_server_stop(struct dir_server *server, int64_t until, int code);

#endif
