/* SPDX-License-Identifier: Apache-2.0 */
/* Open engines and peers as the command line says, in the same way for all subcommands. */
#ifndef TOOLS_ENGINE_H
#define TOOLS_ENGINE_H

#include <wherry/wherry.h>

#include "command.h"

/* The option rows of every command that opens an engine. */
#define ENGINE_OPTIONS                                                                             \
	{ .name = "config",                                                                        \
	  .letter = 'c',                                                                           \
	  .argument = "NAME=VALUE",                                                                \
	  .complete = "setting",                                                                   \
	  .help = "change a setting; wherry config lists them",                                    \
	  .many = true },                                                                          \
		{ .name = "require",                                                               \
		  .argument = "TRANSPORT",                                                         \
		  .complete = "self cuda shm rdma tcp local",                                      \
		  .help = "allow no other route; local: no network" },                             \
		{ .name = "spin", .help = "spin instead of sleeping: lower latency, busy CPUs" },  \
	{                                                                                          \
		.name = "verbose", .letter = 'v', .help = "log what the engine does, on stderr"    \
	}

/* The option row of commands that wait for peers to move bytes. */
#define STALL_OPTION                                                                               \
	{                                                                                          \
		.name = "stall-timeout", .argument = "SECONDS", .rare = true,                      \
		.help = "give up when nothing has moved for so long, although the engine "         \
			"answers; "                                                                \
			"by default 30; 0: never"                                                  \
	}

/* Take --stall-timeout. 0, or EXIT_USAGE after a line on stderr. */
int engine_parse_stall(const struct arguments *arguments);
/* The value of --stall-timeout in ns; INT64_MAX: wait without a limit. */
int64_t engine_stall(void);

/* Wait until the batch ends. Its status; or -ETIMEDOUT: nothing of it has moved for the stall
 * timeout, and it is cancelled. */
int engine_wait(struct wh_batch *batch);
/* Why the batch failed for which engine_wait() just returned an error. Valid until the next
 * call. */
const char *engine_wait_text(const struct wh_batch *batch);

/* For commands that detect a stall themselves: the sentence, without the end's name. */
#define STALL_TEXT                                                                                 \
	"nothing has moved for %g s, although the engine answers; --stall-timeout says how long "  \
	"to wait"

/* What a command itself chooses for its engine. */
struct engine_setup {
	const char *listen; /* as in wh_engine_options */
	const char *name; /* likewise */
	/* the only transport allowed unless --require names one; NULL: any */
	const char *require;
	const char *const *config; /* more "name=value" strings, ended by NULL; --config overrides
				      them; NULL: none */
};

/* Open an engine as the ENGINE_OPTIONS on the command line and `setup` (may be NULL) say. 0, or an
 * exit code after a line on stderr. */
int engine_open(const struct arguments *arguments, const struct engine_setup *setup,
		struct wh_engine **out);

/* A setting as the engine reads it: the value of --config, or of the variable; "": neither. */
const char *engine_setting(const struct arguments *arguments, const char *variable,
			   const char *name);

/* Connect to the engine at `url`; show progress on a terminal if that takes long. Returns as
 * wh_peer_open(), errors through reach_error(). */
int engine_connect(struct wh_engine *engine, const char *url, bool quiet, struct wh_peer **out);

/* Report an error of clean-up, unless a failure has been reported before. Returns `code` if it is
 * not 0; otherwise as engine_fail(), and 0 if there is no error. */
int engine_undo(int code, int error, const char *what);

/* Close the engine. Takes the exit code so far and returns it, or its own if that is 0. */
int engine_close(struct wh_engine *engine, int code);

/* Report the error of the library call that just failed: fail() with wh_error_text() after `what`,
 * which names the attempt. Returns the exit code. */
int engine_fail(int error, const char *what);

#endif
