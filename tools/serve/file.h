/* SPDX-License-Identifier: Apache-2.0 */
/* Files that wherry serve offers. */
#ifndef TOOLS_SERVE_FILE_H
#define TOOLS_SERVE_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include <wherry/wherry.h>

/* One --file PATH[:rw][:grow=MAX][:durable=WHAT][:name=NAME]. */
struct served_file {
	char path[4096];
	bool writable;
	uint64_t grow; /* bytes that it may grow to; 0: it may not */
	uint32_t durable; /* enum wh_file_durable */
	char name[64]; /* of its region */
	struct wh_region *region;
};

/* Read the argument of `option`. 0, or an exit code. */
int served_file_parse(const char *option, const char *text, bool read_only,
		      struct served_file *out);
/* Open the file and publish it. 0, or an exit code. */
int served_file_publish(struct wh_engine *engine, struct served_file *file);

#endif
