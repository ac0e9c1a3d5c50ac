/* SPDX-License-Identifier: Apache-2.0 */
/* small.h: what the tests of small transfers to and from GPU memory share
 *
 * Two processes, each with GPU or host memory, and images of the bytes that both memories must hold
 * after the transfers so far. Functions fail the running test on an error. */
#ifndef TESTS_INTEGRATION_LIB_SMALL_H
#define TESTS_INTEGRATION_LIB_SMALL_H

#include "gpu.h"

#define LENGTH (2 * MIB)
#define AREA 24576 /* the part that is moved and checked */

/* Condition of tests: slow builds skip what a fast build covers without windows. */
extern const struct route needs_time;

struct small {
	struct gpu_pair p;
	bool windows; /* this machine opens windows */
	unsigned char *ours, *theirs; /* images of the local memory, of the child's */
	unsigned char *seen; /* a copy for comparisons */
};

/* Local memory of kind `here`, and memory of kind `there` in `child`, at the location `elsewhere`
 * (NULL: any). */
void small_open_with(struct small *s, uint32_t here, uint32_t there, const char *elsewhere,
		     struct child *child);
void small_open(struct small *s, uint32_t here, uint32_t there);
void small_close(struct small *s);

/* A transfer, and a batch that is not submitted yet. */
struct wh_transfer small_transfer(const struct small *s, uint32_t op, uint64_t local,
				  uint64_t remote, uint64_t length);
struct wh_batch *small_batch(struct small *s, const struct wh_transfer *transfers, size_t count);

/* Do the transfer in the images. */
void small_expect(struct small *s, const struct wh_transfer *t);

/* Run one transfer, also in the images. True: by a window; such a batch is complete when
 * wh_batch_submit() returns. */
bool small_move(struct small *s, uint32_t op, uint64_t local, uint64_t remote, uint64_t length);

/* Both memories must equal the images; `what` is printed if they do not. */
void small_same(struct small *s, const char *what);

/* True if the batch's explanation says that a window is used. */
bool batch_uses_window(struct wh_batch *batch);

/* Print the explanation of a write of 8 bytes: it says why there is no window. */
void small_explain(struct small *s);
/* That explanation must contain `text`. */
void small_want_explained(struct small *s, const char *text);

#endif
