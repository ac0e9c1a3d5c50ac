/* SPDX-License-Identifier: Apache-2.0 */
/* Values in rows of structs, described by tables: topo, top and the exporter print by these. */
#ifndef TOOLS_FIELD_H
#define TOOLS_FIELD_H

#include <jansson.h>

enum field_type {
	FIELD_TEXT, /* char[]; unknown: "" */
	FIELD_INT, /* int; unknown: negative */
	FIELD_FLAG, /* int as a boolean; unknown: negative */
	FIELD_COUNT, /* uint64_t; unknown: WH_UNKNOWN */
	FIELD_REAL, /* double; unknown: NAN */
};

/* The value at `at` as JSON; unknown: null. */
json_t *field_to_json(enum field_type type, const void *at);

/* The value at `at` as a number; unknown, or a text: NAN. */
double field_to_number(enum field_type type, const void *at);

#endif
