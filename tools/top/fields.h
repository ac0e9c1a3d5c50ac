/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of a sample and their fields, each described once: wherry top prints them as CSV and
 * JSON, the exporter as metrics. */
#ifndef TOOLS_TOP_FIELDS_H
#define TOOLS_TOP_FIELDS_H

#include "field.h"
#include "top/top.h"

/* The field as a metric of Prometheus. */
struct top_metric {
	const char *name; /* after the table's prefix; NULL: the field is no metric */
	const char *type; /* "gauge", "counter" */
	const char *labels; /* besides the row's: "" or ",NAME=\"VALUE\"" */
	double unit; /* one of the field's in the metric's base unit */
	const char *help; /* NULL: the same family as the field before */
};

struct top_field {
	const char *name; /* in CSV, and in texts about unknown values; "": in neither */
	const char *unit; /* in the header of CSV; "" */
	const char *key; /* in JSON; NULL: not in JSON */
	enum field_type type;
	const char *help;
	unsigned needs; /* bits of enum top_question */
	size_t offset; /* in the row */
	size_t why; /* of the errno, a uint8_t in the row, that explains an unknown value; 0: none
		     */
	void (*text)(const void *at, char *out,
		     size_t size); /* how to print it; NULL: by its type */
	struct top_metric metric;
};

struct top_table {
	const char *name;
	const char *prefix; /* of metrics */
	const struct top_field *fields;
	size_t field_count;
	size_t rows, step,
		count; /* in struct top_sample: the first row, the size of a row, how many */
	const char *(*meaning)(int error); /* of the positive errno at `why` */
};

/* In the order of this enum, and by name for --of. */
enum top_table_index {
	TOP_GPU_TABLE,
	TOP_NIC_TABLE,
	TOP_ENGINE_TABLE,
	TOP_PEER_TABLE,
	TOP_ROUTE_TABLE
};
extern const struct top_table top_tables[];

#endif
