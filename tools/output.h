/* SPDX-License-Identifier: Apache-2.0 */
/* What commands write to stdout for programs to read. */
#ifndef TOOLS_OUTPUT_H
#define TOOLS_OUTPUT_H

#include <jansson.h>

/* A new object that starts with "schema": 1. Does not return when memory is exhausted. */
json_t *output_new(void);

/* Write it to stdout, indented, and let go of it. 0, or EXIT_FAIL after a line on stderr. */
int output_print(json_t *object);

/* Values that are null where the text is NULL or empty; what is not UTF-8 has '?' for its bytes. */
json_t *output_text(const char *text);

#endif
