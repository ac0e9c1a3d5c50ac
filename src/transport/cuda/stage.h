/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage.h: how a part of a fragment is staged (stage.c): its works, and which of them takes what
 * next; or that no work has to (stage-queue.c). Of these two files only.
 */
#ifndef WH_TRANSPORT_CUDA_STAGE_H
#define WH_TRANSPORT_CUDA_STAGE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpu/stream.h"
#include "memory/file.h"
#include "transport/cuda/cuda.h"
#include "transport/cuda/pages.h"
#include "transport/fragment.h"
#include "util/list.h"

#define WH_STAGE_EXTENTS 256u /* of one slot */
/* What is read out of the page cache by one turn of a stream. An extent may lie in two chunks. */
#define WH_PAGES_EXTENTS 1024u
#define WH_PAGES_PAIRS (2 * WH_PAGES_EXTENTS)

struct wh_stage_side {
	const struct wh_device_mapping *mapping;
	struct wh_gpu_stream *stream; /* NULL: the CPU, or a file's threads */
	uint64_t base; /* see wh_stage_extent_at() */
};

struct wh_stage {
	struct wh_cuda_part *part;
	struct wh_stage_side source, target;
	bool write;
	pthread_mutex_t lock; /* part->at, and what follows, but for `works` and `gds` */
	_Atomic uint32_t works;
	struct wh_file_gds *gds; /* for whole pages; NULL: not asked for, or not for this memory */
	/* A file's pages, if the GPU may read them; changed by threads for files only. */
	enum { WH_PAGES_NEVER, WH_PAGES_UNTRIED, WH_PAGES_USED, WH_PAGES_REFUSED } pages;
	struct wh_file_use use;
	struct wh_cursor shared; /* taken from the part to go through slots */
	unsigned locking; /* works that page-lock, or find that it is done */
	/* what the last one of these has found: done, so that more of them may, which takes no lock
	 * of the driver's */
	bool kept;
	bool missed; /* the last that were tried could not be locked: `shared` has them */
	struct wh_list idle; /* works that wait until one of these changes */
	struct wh_cursor start; /* of the part */
	struct wh_file_job file_job;
};

enum wh_stage_step {
	WH_STAGE_IDLE,
	WH_STAGE_INTO,
	WH_STAGE_OUT_OF,
	WH_STAGE_LOCK_PAGES,
	WH_STAGE_READ_PAGES,
	WH_STAGE_DIRECT
};

/* A slot, and the extent pairs that go through it. */
struct wh_stage_work {
	struct wh_list link; /* stage.idle */
	struct wh_gpu_stream_job job;
	struct wh_file_job file_job;
	struct wh_slot_wait wait;
	struct wh_stage *stage;
	struct wh_slot *slot;
	uint64_t skew; /* bytes of the slot in front of the first pair */
	enum wh_stage_step step;
	struct wh_cursor rest; /* taken from the part, and not started yet */
	/* the extent pairs in the slot; those of them that this step has not submitted yet */
	struct wh_cursor start, at;
	uint64_t filled; /* bytes that this step has submitted */
	struct wh_pair few[WH_GPU_SHARED_PAIRS]; /* for wh_gpu_stream_put() */
	/* From the page cache: `put` of `count` pairs have been submitted. */
	struct wh_pair *pairs;
	uint32_t count, put;
};

/* The address of an extent on one side, as the GPU or CPU that copies it uses it. */
static inline uint64_t wh_stage_extent_at(const struct wh_stage *stage,
					  const struct wh_stage_side *side,
					  const struct wh_extent_pair *extent)
{
	bool local = (side == &stage->source) == stage->write;

	return side->base + (local ? (uint64_t)(uintptr_t)extent->local : extent->offset);
}

/* Take the next extent pairs of `from`, at most so many and so many bytes. */
void wh_stage_range_take(const struct wh_fragment *fragment, struct wh_cursor *from, uint64_t most,
			 uint32_t extents, struct wh_cursor *out);
/* What is read from a file past the page cache, or written to it, has to be aligned alike in
 * memory. So the first pair begins as far from a page's start in the slot as in the file. Returns
 * how far. */
uint64_t wh_stage_skew(const struct wh_stage *stage, const struct wh_cursor *from);

/* Blocks that the target's GPU can read out of the page cache all at once, without a CPU that looks
 * at each: those of a file whose pages have been locked before, where the kernel is faster. Sets
 * *pages to the address of the file's region. On a thread for files, within the use of the pages.
 */
bool wh_stage_takes_blocks(struct wh_stage *stage, uint64_t *pages);

enum wh_stage_taken {
	WH_TAKEN_NOTHING, /* there are no more bytes */
	WH_TAKEN_CHUNK, /* work.rest is to be page-locked */
	WH_TAKEN_SLOT, /* work.rest goes through slots */
	WH_TAKEN_LATER, /* the work waits in stage.idle, and is not the caller's any more */
};
/* Take what the work does next, under the stage's lock. */
enum wh_stage_taken wh_stage_take(struct wh_stage_work *work);
/* A work of stage.idle that has something to do now; NULL: none waits, or has. */
struct wh_stage_work *wh_stage_take_idle(struct wh_stage *stage);

#endif
