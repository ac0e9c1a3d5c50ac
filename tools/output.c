/* SPDX-License-Identifier: Apache-2.0 */
#include "output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"

#define SCHEMA 1

json_t *output_new(void)
{
	json_t *object = json_object();

	if (!object || json_object_set_new(object, "schema", json_integer(SCHEMA)))
		exit(fail(ENOMEM, "out of memory"));
	return object;
}

int output_print(json_t *object)
{
	int error = json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));

	json_decref(object);
	putchar('\n');
	if (error || fflush(stdout))
		return fail(EIO, "cannot write to standard output: %s", strerror(errno));
	return EXIT_PASS;
}

json_t *output_text(const char *text)
{
	json_t *value = text && *text ? json_string(text) : json_null();
	char *copy;

	if (value)
		return value;
	/* Names of others need not be UTF-8. */
	copy = strdup(text);
	for (char *c = copy; c && *c; c++)
		if ((unsigned char)*c >= 0x80)
			*c = '?';
	value = copy ? json_string(copy) : NULL;
	free(copy);
	return value ? value : json_null();
}
