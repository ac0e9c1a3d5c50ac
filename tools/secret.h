/* SPDX-License-Identifier: Apache-2.0 */
/* Read secrets from files: everybody who lists processes can read a command line. */
#ifndef TOOLS_SECRET_H
#define TOOLS_SECRET_H

#include <stddef.h>

/* Read the line in the file at `path`, which this user must own and nobody else may read or write.
 * `what` starts messages: "--auth". 0, or an exit code after a line on stderr. Wipe `out` after
 * use. */
int secret_read(const char *what, const char *path, char *out, size_t size);

#endif
