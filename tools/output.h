/* SPDX-License-Identifier: Apache-2.0 */
/* Output for programs: JSON on stdout, and documents in files. */
#ifndef TOOLS_OUTPUT_H
#define TOOLS_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* A new object that starts with "schema": 1. Ends the process if there is no memory. */
json_t *output_new(void);

/* Write the object to stdout, indented, and release it. 0, or EXIT_FAIL after a line on stderr. */
int output_print(json_t *object);

/* A file for a document that takes long to make. Opened first, so that an unwritable path fails
 * before the work. */
struct output_file {
	const char *path; /* "-": stdout; NULL: no file */
	FILE *table; /* where text for people goes meanwhile: stdout, or stderr if stdout is `path`
		      */
	int fd;
	bool fresh; /* created by output_open(): removing it loses nothing */
};

/* `path` may be NULL. 0, or an exit code after a line on stderr. output_close() it in either
 * case. */
int output_open(struct output_file *file, const char *path);

/* Replace the file's content with the object, and release it. 0, or an exit code after a line on
 * stderr. */
int output_write(struct output_file *file, json_t *object);

/* As output_write(), for a text. */
int output_write_text(struct output_file *file, const char *text, size_t length);

/* Close the file. Without a write its content is unchanged, and a new file is removed. */
void output_close(struct output_file *file);

/* A string, or null if `text` is NULL or empty. If it is not UTF-8, '?' stands for each byte beyond
 * ASCII. */
json_t *output_text(const char *text);

#endif
