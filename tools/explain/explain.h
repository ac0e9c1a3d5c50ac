/* SPDX-License-Identifier: Apache-2.0 */
/* wherry explain: what explain.c, errno.c and memory.c share. */
#ifndef TOOLS_EXPLAIN_EXPLAIN_H
#define TOOLS_EXPLAIN_EXPLAIN_H

#include <stdbool.h>

struct arguments;

/* Print what an errno, as a number or a name, means in Wherry and what to try. Returns an exit
 * code. */
int explain_errno(const char *text, bool json);

/* The text names a memory, such as cuda:0. */
bool explain_is_memory(const char *text);

/* Explain how bytes would get from one memory to another: the two operands. Returns an exit
 * code. */
int explain_memory(const struct arguments *arguments);

#endif
