/* SPDX-License-Identifier: Apache-2.0 */
/* The wherry command as a process beside the test, which dies with it. */
#ifndef TESTS_INTEGRATION_LIB_COMMAND_H
#define TESTS_INTEGRATION_LIB_COMMAND_H

#include "harness.h"

/* The command was built: $TEST_COMMAND. */
extern const struct route needs_command;

struct command {
	pid_t pid;
	FILE *out; /* its standard output, and its standard error */
	char text[4096];
};

/* Start it with these words, which a NULL ends, in a directory (NULL: this one). `before` runs in
 * its process before it does; NULL: nothing. */
void command_start(struct command *command, const char *directory, void (*before)(void),
		   const char *const *semaphores);

/* The next line that it prints, without the end of the line. */
void command_line(struct command *command, char *line, int size);

/* Wait for its end. What is left of what it printed is in `text`. Its status, or minus the signal
 * that ended it. */
int command_wait(struct command *command);

/* Both. */
int command_run(struct command *command, const char *directory, void (*before)(void),
		const char *const *semaphores);
#define SEMAPHORES(...) ((const char *const[]){ __VA_ARGS__, NULL })

/* For `before`: from there on the kernel refuses to make files without a name, or to give one a
 * name, with these errnos (0: it does not), as file systems do that cannot. */
struct command_refused {
	unsigned unnamed, linked;
};
extern struct command_refused command_refused;
void command_refuse(void);

/* Wait until it has a file open in this directory, with a name or without. */
void command_opens(const struct command *command, const char *directory);

/* A fresh directory; how many entries it has; and without all that is in it. */
void directory_make(char path[64]);
unsigned directory_count(const char *path);
void directory_remove(const char *path);

#endif
