/* SPDX-License-Identifier: Apache-2.0 */
/* transport/copier-move.c: the copy loop: bytes, extents, and the regions that they lie in */
#include <errno.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "memory/region-table.h"
#include "transport/copier-file.h"
#include "transport/copier.h"
#include "transport/fragment.h"

/* Fragments of this size or more bypass the caches. Their source and target together do not fit
 * into the caches, and an ordinary store would first fetch each line of the target. The bytes of a
 * smaller fragment stay in a cache for the thread that uses them next. */
#define NON_TEMPORAL_BYTES (48u << 20)
/* The same where one thread copies alone, in an engine without threads: its cached copies are
 * slower than the memory. */
#define NON_TEMPORAL_ALONE (4u << 20)
/* Bytes; shorter extents gain nothing from it. */
#define NON_TEMPORAL_EXTENT (32u << 10)

/* The first lines of short extents are prefetched, up to PREFETCH_MAX extents ahead: the hardware
 * prefetcher follows addresses inside a page, but cannot guess where the next extent begins. */
#define PREFETCH_MAX 16u
#define PREFETCH_BYTES 256u

/* ---- bytes -------------------------------------------------------------------------------- */

#ifdef __SSE2__
#define PAGE 4096u
#define PAGES_IN_STEP 4u

static inline void copy_line(char *to, const char *from)
{
	__m128i a, b, c, d;

	_mm_prefetch(from + 1024, _MM_HINT_T0);
	a = _mm_loadu_si128((const __m128i *)from);
	b = _mm_loadu_si128((const __m128i *)(from + 16));
	c = _mm_loadu_si128((const __m128i *)(from + 32));
	d = _mm_loadu_si128((const __m128i *)(from + 48));
	_mm_stream_si128((__m128i *)to, a);
	_mm_stream_si128((__m128i *)(to + 16), b);
	_mm_stream_si128((__m128i *)(to + 32), c);
	_mm_stream_si128((__m128i *)(to + 48), d);
}

/* Several pages in step keep more of the memory's banks busy than one after the other. */
static void copy_pages(char *to, const char *from, size_t length)
{
	size_t head = -(uintptr_t)to & 63;

	memcpy(to, from, head);
	to += head;
	from += head;
	length -= head;
	for (; length >= PAGES_IN_STEP * PAGE; length -= PAGES_IN_STEP * PAGE) {
		for (size_t at = 0; at < PAGE; at += 64)
			for (size_t page = 0; page < PAGES_IN_STEP; page++)
				copy_line(to + page * PAGE + at, from + page * PAGE + at);
		to += PAGES_IN_STEP * PAGE;
		from += PAGES_IN_STEP * PAGE;
	}
	memcpy(to, from, length);
	/* Non-temporal stores are not ordered with ordinary ones: without the fence, another thread
	 * could see a "done" flag before the bytes. */
	_mm_sfence();
}
#endif

/* Bytes that a program may poll while they change: other threads must not see a part of them, nor
 * see them before what this thread has copied earlier. memmove() promises neither. */
static bool copy_is_flag(const char *to, const char *from, size_t length)
{
	return length <= sizeof(uint64_t) && !(length & (length - 1)) &&
	       !(((uintptr_t)to | (uintptr_t)from) & (length - 1));
}

/* NOLINTBEGIN(bugprone-macro-parentheses): a type */
#define COPY_FLAG(type)                                                                            \
	do {                                                                                       \
		typedef type __attribute__((may_alias)) flag_type;                                 \
		__atomic_store_n(                                                                  \
			(flag_type *)(void *)to,                                                   \
			__atomic_load_n((const flag_type *)(const void *)from, __ATOMIC_ACQUIRE),  \
			__ATOMIC_RELEASE);                                                         \
	} while (0)
/* NOLINTEND(bugprone-macro-parentheses) */

static void copy_flag(char *to, const char *from, size_t length)
{
	switch (length) {
	case 8:
		COPY_FLAG(uint64_t);
		break;
	case 4:
		COPY_FLAG(uint32_t);
		break;
	case 2:
		COPY_FLAG(uint16_t);
		break;
	case 1:
		COPY_FLAG(uint8_t);
		break;
	default: /* 0 */
		break;
	}
}

void wh_copy_bytes(char *to, const char *from, size_t length, bool non_temporal)
{
	if (copy_is_flag(to, from, length)) {
		copy_flag(to, from, length);
		return;
	}
#ifdef __SSE2__
	uintptr_t distance = (uintptr_t)to - (uintptr_t)from;

	if (non_temporal && length >= NON_TEMPORAL_EXTENT && distance >= length &&
	    -distance >= length) {
		copy_pages(to, from, length);
		return;
	}
#endif
	(void)non_temporal;
	memmove(to, from, length);
}

/* ---- the current region -------------------------------------------------------------------- */

/* The remote region of the last extent. It is kept entered, because the next extent mostly lies in
 * it, too. */
struct current_region {
	uint64_t id; /* 0: none */
	struct wh_region_entry *entry; /* entered; NULL: unusable, and reported */
	char *map; /* its first byte in this process; NULL: not mapped */
	bool pinned; /* entered by wh_region_entry_pin() */
};

static void current_leave(struct current_region *current)
{
	if (current->pinned)
		wh_region_entry_unpin(current->entry);
	else if (current->entry)
		wh_region_entry_leave(current->entry);
	*current = (struct current_region){ 0 };
}

static uint64_t pair_index(const struct wh_fragment *fragment, const struct wh_extent_pair *pair)
{
	/* Blocks fail only as a whole. */
	return fragment->blocks ? UINT64_MAX : pair->index;
}

static void current_fail(struct wh_fragment *fragment, const struct wh_extent_pair *pair,
			 const struct wh_region_entry *entry)
{
	if (!entry)
		wh_fragment_fail(fragment, pair_index(fragment, pair), -ESTALE,
				 "region %#llx of the peer is gone",
				 (unsigned long long)pair->remote);
	else
		wh_fragment_fail(fragment, pair_index(fragment, pair), -EACCES,
				 "region %#llx of the peer does not grant %s",
				 (unsigned long long)pair->remote,
				 fragment->op == WH_READ ? "reading" : "writing");
}

/* Make the extent's region the current one. False: it is gone or does not grant the op. The core
 * has checked the same, but a region may be unregistered since, and its memory must not be touched
 * then. */
static bool current_enter(struct wh_copier_peer *peer, struct wh_fragment *fragment,
			  const struct wh_extent_pair *pair, struct current_region *current)
{
	bool pins = peer->ops->pins;
	struct wh_region_entry *entry;

	if (current->id == pair->remote) {
		if (!current->entry && !fragment->blocks)
			current_fail(fragment, pair, NULL);
		return current->entry != NULL;
	}
	current_leave(current);
	entry = pins ? wh_region_entry_pin(peer->entries, pair->remote) :
		       wh_region_entry_enter(peer->entries, pair->remote);
	current->id = pair->remote;
	current->entry = entry;
	current->pinned = pins && entry;
	if (entry &&
	    (peer->ops->own ||
	     entry->access & (fragment->op == WH_READ ? WH_ACCESS_READ : WH_ACCESS_WRITE))) {
		current->map = peer->ops->map(entry, fragment->op);
		if (current->pinned && !current->map) {
			wh_region_entry_unpin_enter(entry);
			current->pinned = false;
		}
		return true;
	}
	current_fail(fragment, pair, entry);
	current_leave(current);
	current->id = pair->remote;
	return false;
}

static bool pair_fits(struct wh_fragment *fragment, const struct wh_extent_pair *pair,
		      const struct wh_region_entry *entry)
{
	if (wh_region_entry_holds(entry, pair->offset, pair->length))
		return true;
	wh_fragment_fail(fragment, pair_index(fragment, pair), -ERANGE,
			 "%llu bytes at offset %llu lie outside region %#llx (%llu bytes)",
			 (unsigned long long)pair->length, (unsigned long long)pair->offset,
			 (unsigned long long)pair->remote, (unsigned long long)entry->length);
	return false;
}

/* ---- extents in unmapped memory ------------------------------------------------------------ */

static int unmapped_flush(struct wh_copier_peer *peer, struct wh_unmapped *unmapped)
{
	int error = unmapped->count ? peer->ops->move_unmapped(peer, unmapped) : 0;

	for (unsigned i = 0; i < unmapped->count; i++)
		wh_region_entry_leave(unmapped->entry[i]);
	unmapped->count = 0;
	return error;
}

/* Move `pair` and the extents after it, up to the first that is mapped. Afterwards *more says
 * whether *pair is still to be moved. A function of its own because of its large stack frame. */
static __attribute__((noinline)) int
move_unmapped(struct wh_copier_peer *peer, struct wh_fragment *fragment, struct wh_cursor *at,
	      struct wh_extent_pair *pair, struct current_region *current, bool *more)
{
	struct wh_unmapped unmapped;
	int error = 0;

	unmapped.fragment = fragment;
	unmapped.count = 0;
	for (; *more && !error; *more = wh_fragment_next(fragment, at, at->left, pair)) {
		if (!current_enter(peer, fragment, pair, current))
			continue;
		if (current->map)
			break;
		if (!pair_fits(fragment, pair, current->entry))
			continue;
		/* `current` has entered the region, so one more user cannot fail. */
		atomic_fetch_add_explicit(&current->entry->users, 1, memory_order_relaxed);
		unmapped.entry[unmapped.count] = current->entry;
		unmapped.local[unmapped.count] = (struct iovec){ pair->local, pair->length };
		unmapped.remote[unmapped.count] =
			(struct iovec){ (void *)(uintptr_t)(current->entry->address + pair->offset),
					pair->length };
		unmapped.index[unmapped.count] = pair_index(fragment, pair);
		if (++unmapped.count == WH_UNMAPPED_EXTENTS)
			error = unmapped_flush(peer, &unmapped);
	}
	return error ? error : unmapped_flush(peer, &unmapped);
}

/* ---- extents in mapped memory -------------------------------------------------------------- */

struct pending_copy {
	char *to;
	const char *from;
	uint64_t length;
};

static void pending_prefetch(const struct pending_copy *copy)
{
	uint64_t length = copy->length < PREFETCH_BYTES ? copy->length : PREFETCH_BYTES;

	for (uint64_t at = 0; at < length; at += 64) {
		__builtin_prefetch(copy->from + at, 0);
		__builtin_prefetch(copy->to + at, 1);
	}
}

/* How many extents of that length to prefetch. */
static unsigned prefetch_depth(uint64_t length)
{
	return length >= 16384 ? 1 : length >= 2048 ? 4 : length >= 256 ? 8 : PREFETCH_MAX;
}

/* As wh_copier_move(), of memory alone. */
static int move_memory(struct wh_copier_peer *peer, struct wh_fragment *fragment,
		       struct wh_cursor *at)
{
	const bool non_temporal =
		fragment->bytes >= (peer->copier->turns ? NON_TEMPORAL_ALONE : NON_TEMPORAL_BYTES);
	struct pending_copy ring[PREFETCH_MAX];
	struct current_region current = { 0 };
	unsigned in = 0, out = 0;
	struct wh_extent_pair pair;
	bool more = wh_fragment_next(fragment, at, at->left, &pair);
	int error = 0;

	while (more || in != out) {
		while (more && in - out < prefetch_depth(pair.length)) {
			struct pending_copy *next_copy = &ring[in % PREFETCH_MAX];

			/* Copy all that is pending in a region before leaving it. */
			if (pair.remote != current.id && in != out)
				break;
			if (current_enter(peer, fragment, &pair, &current) && !current.map) {
				error = move_unmapped(peer, fragment, at, &pair, &current, &more);
				if (error)
					goto out;
				continue;
			}
			if (current.entry && pair_fits(fragment, &pair, current.entry)) {
				char *remote = current.map + pair.offset;

				next_copy->length = pair.length;
				next_copy->to = fragment->op == WH_READ ? pair.local : remote;
				next_copy->from = fragment->op == WH_READ ? remote : pair.local;
				if (at->left || in != out)
					pending_prefetch(next_copy);
				in++;
			}
			more = wh_fragment_next(fragment, at, at->left, &pair);
		}
		if (in != out) {
			const struct pending_copy *next_copy = &ring[out++ % PREFETCH_MAX];

			wh_copy_bytes(next_copy->to, next_copy->from, next_copy->length,
				      non_temporal);
		}
	}
out:
	current_leave(&current);
	return error;
}

/* ---- extents of files ---------------------------------------------------------------------- */

/* Move the `left` bytes from the cursor on, of which one side is a file. As wh_copier_move(). A
 * function of its own because of its large stack frame. */
static __attribute__((noinline)) int move_files(struct wh_copier_peer *peer,
						struct wh_fragment *fragment, struct wh_cursor *at)
{
	struct current_region current = { 0 };
	struct wh_file_mover mover;
	struct wh_extent_pair pair;

	wh_file_mover_init(&mover, peer, fragment);
	while (wh_fragment_next(fragment, at, at->left, &pair)) {
		if (pair.remote != current.id) /* move all that is pending before leaving it */
			wh_file_mover_flush(&mover);
		if (!current_enter(peer, fragment, &pair, &current))
			continue;
		if (!current.map) { /* nothing but files and mapped memory */
			current_leave(&current);
			return -EOPNOTSUPP;
		}
		if (pair_fits(fragment, &pair, current.entry))
			wh_file_mover_add(&mover, &pair, current.entry, current.map + pair.offset);
	}
	wh_file_mover_flush(&mover);
	current_leave(&current);
	return 0;
}

int wh_copier_move(struct wh_copier_peer *peer, struct wh_fragment *fragment, struct wh_cursor *at)
{
	return peer->ops->files ? move_files(peer, fragment, at) : move_memory(peer, fragment, at);
}
