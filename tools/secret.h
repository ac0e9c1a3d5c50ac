/* SPDX-License-Identifier: Apache-2.0 */
/* Secrets come from files and from the environment: a command line is read by all who list
 * processes. */
#ifndef TOOLS_SECRET_H
#define TOOLS_SECRET_H

#include <stddef.h>

/* The line in the file at `path`, which must be a file of this user's own that nobody else may read
 * or write. `what` begins messages: "--auth". 0, or an exit code after a line on stderr; wipe `out`
 * after use. */
int secret_read(const char *what, const char *path, char *out, size_t size);

#endif
