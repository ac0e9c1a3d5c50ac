/* SPDX-License-Identifier: Apache-2.0 */
/* command.h: run the wherry command as a child process, which dies with the test */
#ifndef TESTS_INTEGRATION_LIB_COMMAND_H
#define TESTS_INTEGRATION_LIB_COMMAND_H

#include "harness.h"

/* Condition: $TEST_COMMAND is the wherry command. */
extern const struct route needs_command;

struct command {
	pid_t pid;
	FILE *out; /* standard output and standard error */
	char text[4096];
};

/* Start the command with these arguments (NULL-terminated) in `directory` (NULL: the current one).
 * The new process first calls `before`, unless that is NULL. */
void command_start(struct command *command, const char *directory, void (*before)(void),
		   const char *const *arguments);

/* Read the next line of output, without its newline. */
void command_line(struct command *command, char *line, int size);

/* Wait for the end of the command; `text` receives the rest of the output. Returns the exit status,
 * or minus the signal that ended the command. */
int command_wait(struct command *command);

/* command_start() and command_wait(). */
int command_run(struct command *command, const char *directory, void (*before)(void),
		const char *const *arguments);
#define ARGUMENTS(...) ((const char *const[]){ __VA_ARGS__, NULL })

/* Condition: $TEST_COMMAND, and command_refuse() works: the kernel has seccomp filters. */
extern const struct route needs_refusals;

/* command_refuse() is for `before`: the kernel then refuses to create unnamed files (`unnamed`) and
 * to link them (`linked`) with these errnos (0: allows it), like file systems that cannot do so. */
struct command_refused {
	unsigned unnamed, linked;
};
extern struct command_refused command_refused;
void command_refuse(void);

/* Wait until the command has a file, named or unnamed, open in `directory`. */
void command_opens(const struct command *command, const char *directory);

/* Create a fresh directory; count its entries; remove it with all its files. */
void directory_make(char path[64]);
unsigned directory_count(const char *path);
void directory_remove(const char *path);

#endif
