/* SPDX-License-Identifier: Apache-2.0 */
/* files.h: files that tests register */
#ifndef TESTS_INTEGRATION_LIB_FILES_H
#define TESTS_INTEGRATION_LIB_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <wherry/wherry.h>

/* A file that vanishes when it is closed, of `length` zeroes, in $TEST_FILES (a directory) or /tmp.
 * It is open for reading and writing. The descriptor, or a negative errno. */
int file_new(uint64_t length);
/* Map it shared: what others write to the file is seen there. NULL: errno says why not. */
void *file_map(int fd, uint64_t length);
/* Register [offset, offset + length) of an open file, for writing as well. */
int file_region(struct wh_engine *engine, int fd, uint64_t offset, uint64_t length,
		const struct wh_region_options *options, struct wh_region **out);
/* May this process have an io_uring? */
bool file_ring_is_allowed(void);

#endif
