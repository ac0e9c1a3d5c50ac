/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_EXPLAIN_H
#define TOOLS_EXPLAIN_H

#include <stdbool.h>

struct arguments;

/* Print what an errno, as a number or a name, means in Wherry and what to try. An exit code. */
int explain_errno(const char *text, bool json);

/* Is it a memory, such as cuda:0? */
bool explain_is_memory(const char *text);

/* How bytes would get from one memory to another: the two operands. An exit code. */
int explain_memory(const struct arguments *arguments);

#endif
