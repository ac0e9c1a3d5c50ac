/* SPDX-License-Identifier: Apache-2.0 */
/* Opening engines and peers from what the command line says: the same for all subcommands. */
#ifndef TOOLS_ENGINE_H
#define TOOLS_ENGINE_H

#include <wherry/wherry.h>

#include "command.h"

/* The rows that every command which opens an engine has in its table. */
#define ENGINE_OPTIONS                                                                             \
	{ .name = "config",                                                                        \
	  .letter = 'c',                                                                           \
	  .argument = "NAME=VALUE",                                                                \
	  .complete = "knob",                                                                      \
	  .help = "set a knob; wherry config lists them",                                          \
	  .many = true },                                                                          \
		{ .name = "require",                                                               \
		  .argument = "TRANSPORT",                                                         \
		  .complete = "self cuda shm rdma tcp",                                            \
		  .help = "fail rather than take another route" },                                 \
		{ .name = "spin", .help = "spin instead of sleeping: lower latency, busy CPUs" },  \
	{                                                                                          \
		.name = "verbose", .letter = 'v',                                                  \
		.help = "on stderr, what the engine does meanwhile"                                \
	}

/* The row of those that wait for peers to move bytes. */
#define STALL_OPTION                                                                               \
	{                                                                                          \
		.name = "stall-timeout", .argument = "SECONDS", .rare = true,                      \
		.help = "give up when nothing has moved for so long, although the other side "     \
			"lives; by "                                                               \
			"default 30; 0: never"                                                     \
	}

/* Take --stall-timeout. 0, or EXIT_USAGE after a line on stderr. */
int engine_parse_stall(const struct arguments *arguments);
/* It, in ns; INT64_MAX: never. */
int64_t engine_stall(void);

/* Wait until the batch has ended. If nothing of it moves for so long it is cancelled: -ETIMEDOUT.
 * Else as wh_batch_wait(). */
int engine_wait(struct wh_batch *batch);
/* Why a batch of which engine_wait() has just returned an error failed; good until the next call.
 */
const char *engine_wait_text(const struct wh_batch *batch);

/* Where a command itself decides that nothing moves: the sentence, without the end's name. */
#define STALL_TEXT                                                                                 \
	"nothing has moved for %g s, although the engine answers; --stall-timeout says how long "  \
	"to wait"

/* What a command itself decides about its engine. */
struct engine_setup {
	const char *listen; /* as in wh_engine_options */
	const char *name; /* likewise */
	/* the only transport allowed, if --require does not say; NULL: any */
	const char *require;
	const char *const *config; /* further "name=value", ended by NULL; --config goes before
				      them; NULL: none */
};

/* Open an engine as the ENGINE_OPTIONS on the command line and `setup` (may be NULL) say.
 * 0, or an exit code after a line on stderr. */
int engine_open(const struct arguments *arguments, const struct engine_setup *setup,
		struct wh_engine **out);

/* Connect to the engine of `url`, and show on a terminal if that takes long. As wh_peer_open(),
 * with reach_error(). */
int engine_connect(struct wh_engine *engine, const char *url, bool quiet, struct wh_peer **out);

/* For what is undone at the end, with the exit code so far: that code if it is not 0, because one
 * line about a failure is enough; else as engine_fail(), and 0 if there is no error. */
int engine_undo(int code, int error, const char *what);

/* Close it, with the exit code so far. */
int engine_close(struct wh_engine *engine, int code);

/* Print the refusal of the library call that just returned `error`: fail() with wh_error_text()
 * behind `what`, which says what was being done. Returns the exit code. */
int engine_fail(int error, const char *what);

#endif
