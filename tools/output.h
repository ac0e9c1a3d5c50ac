/* SPDX-License-Identifier: Apache-2.0 */
/* What commands write for programs to read, and into files. */
#ifndef TOOLS_OUTPUT_H
#define TOOLS_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* A new object that starts with "schema": 1. Does not return when memory is exhausted. */
json_t *output_new(void);

/* Write it to stdout, indented, and let go of it. 0, or EXIT_FAIL after a line on stderr. */
int output_print(json_t *object);

/* A file for a document that takes long to be made: opened before, or all might be in vain. */
struct output_file {
	const char *path; /* "-": stdout; NULL: none is wanted */
	FILE *table; /* for what people read meanwhile: stdout, or stderr if that is taken */
	int fd;
	bool fresh; /* made just now, so nothing is lost by removing it */
};

/* `path` may be NULL. 0, or an exit code after a line on stderr; closed with output_close() in any
 * case. */
int output_open(struct output_file *file, const char *path);

/* Write the object in place of what the file had, and let go of it. 0, or an exit code after a
 * line on stderr. */
int output_write(struct output_file *file, json_t *object);

/* The same of a text. */
int output_write_text(struct output_file *file, const char *text, size_t length);

/* What was not written is as it was before. */
void output_close(struct output_file *file);

/* Values that are null where the text is NULL or empty; what is not UTF-8 has '?' for its bytes. */
json_t *output_text(const char *text);

#endif
