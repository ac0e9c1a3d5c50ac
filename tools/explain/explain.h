/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_EXPLAIN_EXPLAIN_H
#define TOOLS_EXPLAIN_EXPLAIN_H

#include <stdbool.h>
#include <stddef.h>

struct arguments;
struct wh_batch;
struct wh_estimate;

/* Print what an errno, as a number or a name, means in Wherry and what to try. An exit code. */
int explain_errno(const char *text, bool json);

/* Is it a memory, such as cuda:0? */
bool explain_is_memory(const char *text);

/* What is told of the CPU window onto the batch's memory; "": nothing. */
void explain_window(struct wh_batch *batch, char *line, size_t size);

/* Was so little memory walked through to measure it that the CPU's last cache has all of it, on
 * both sides? Then larger memory is slower. */
bool explain_from_cache(const struct wh_estimate *estimate);

/* How bytes would get from one memory to another: the two operands. An exit code. */
int explain_memory(const struct arguments *arguments);

#endif
