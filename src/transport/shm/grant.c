/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport/shm/grant.c: the owner decides whether a peer may map an allocation
 *
 * A descriptor opens the whole file, so the peer must have rights to the whole allocation: each of
 * its bytes must lie in a region that the peer may read, or write. Several regions without gaps
 * count like one. A grant holds until one of those regions is unregistered; wh_region_unregister()
 * then waits until the peer has unmapped the allocation. A new region revokes no grant.
 *
 * A process with a descriptor, even a read-only one, can open the file again through /proc, for
 * writing if it belongs to the same user. So memory that may not be written is sealed against
 * writing. The seal binds all peers: the first grant decides for the allocation's life whether any
 * peer may map it writable.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/memory.h"
#include "memory/region-table.h"
#include "memory/region.h"
#include "transport/core.h"
#include "transport/fragment.h"
#include "transport/shm/shm.h"
#include "util/list.h"

#define BOTH (WH_ACCESS_READ | WH_ACCESS_WRITE)

static int answer_refuse(struct wh_mapped *answer, int error, const char *why)
{
	answer->error = -error;
	snprintf(answer->text, sizeof(answer->text), "%s", why);
	return -1;
}

static int answer_refuse_errno(struct wh_mapped *answer, const char *why)
{
	answer->error = -errno;
	snprintf(answer->text, sizeof(answer->text), "%s: %s", why, strerror(errno));
	return -1;
}

/* ---- the published part of an allocation --------------------------------------------------- */

/* A published region, as offsets in its allocation. */
struct range {
	uint64_t start, end;
	uint8_t own, any; /* enum wh_access: rights of this peer; rights that some peer has */
};

static int range_by_start(const void *a, const void *b)
{
	const struct range *x = a, *y = b;

	return (x->start > y->start) - (x->start < y->start);
}

/* Offset of the first byte that no range with the right `own` or `any` covers. The ranges are
 * sorted, or the first one covers all. */
static uint64_t ranges_covered(const struct range *ranges, size_t count, uint8_t own, uint8_t any)
{
	uint64_t reached = 0;

	for (size_t i = 0; i < count && ranges[i].start <= reached; i++) {
		if ((ranges[i].own & own || ranges[i].any & any) && ranges[i].end > reached)
			reached = ranges[i].end;
	}
	return reached;
}

static void verdict_decide(const struct wh_allocation *memory, const struct range *ranges,
			   size_t count, struct wh_shm_verdict *out)
{
	uint64_t all = memory->asked, read = ranges_covered(ranges, count, WH_ACCESS_READ, 0);
	uint64_t write = ranges_covered(ranges, count, WH_ACCESS_WRITE, 0);
	bool others = ranges_covered(ranges, count, 0, WH_ACCESS_WRITE) >= all;

	/* The CPU has no write-only mapping. So write-only memory may be mapped only if no peer's
	 * regions in it are readable. */
	if (write >= all && (read >= all || !memory->readable)) {
		out->rights = BOTH;
		return;
	}
	out->gap = read >= all ? write : read;
	if (read < all)
		return;
	/* If others may write all of it, do not seal it against writing. */
	out->others = others;
	out->rights = others ? 0 : WH_ACCESS_READ;
}

/* False: no memory. */
static bool verdict_make(const struct wh_session *session, const struct wh_allocation *memory,
			 struct wh_shm_verdict *out)
{
	const struct wh_list *members = &memory->members;
	size_t count = 0, room = 1; /* at least 1: malloc(0) may return NULL */
	struct range *ranges;
	bool whole = false;

	*out = (struct wh_shm_verdict){ .version = memory->version, .gap = UINT64_MAX };
	/* Shortcut: regions whose lengths add up to less than the allocation leave a gap. */
	if (memory->readable < memory->asked && memory->writable < memory->asked)
		return true;
	for (const struct wh_list *l = members->next; l != members; l = l->next)
		room++;
	ranges = malloc(room * sizeof(*ranges));
	if (!ranges)
		return false;
	for (const struct wh_list *l = members->next; l != members && !whole; l = l->next) {
		const struct wh_region *region = wh_container(l, struct wh_region, member);
		const struct wh_region_entry *entry = &region->entry;
		struct range *range = &ranges[count++];

		range->start = entry->address - (uint64_t)(uintptr_t)memory->base;
		range->end = range->start + entry->length;
		range->any = entry->access & BOTH;
		range->own = wh_region_access(region, wh_session_hello(session)->name) & BOTH;
		/* One region that grants everything decides alone. */
		whole = !range->start && range->end >= memory->asked && range->own == BOTH;
		if (whole)
			ranges[0] = *range;
	}
	if (!whole)
		qsort(ranges, count, sizeof(*ranges), range_by_start);
	verdict_decide(memory, ranges, count, out);
	free(ranges);
	return true;
}

/* ---- granting ------------------------------------------------------------------------------ */

/* The verdict grants no rights: say why. */
static int answer_refuse_rights(const struct wh_region *region, uint8_t access,
				const struct wh_shm_verdict *verdict, struct wh_mapped *answer)
{
	if (verdict->others || access != region->entry.access)
		return answer_refuse(answer, EAGAIN,
				     "other peers have more rights to it, so it cannot be mapped");
	if (verdict->gap == UINT64_MAX)
		return answer_refuse(answer, EAGAIN,
				     "covers only a part of its allocation, and the rest is "
				     "not all published to this peer");
	answer->error = -EAGAIN;
	snprintf(answer->text, sizeof(answer->text),
		 "covers only a part of its allocation, whose byte %llu is not published to this "
		 "peer",
		 (unsigned long long)verdict->gap);
	return -1;
}

/* Seal the memory for `rights`, unless an earlier grant has sealed it. Returns the rights that its
 * seals allow; 0: none, and the reason is in `answer`. */
static uint8_t allocation_seal(const struct wh_allocation *memory, uint8_t rights,
			       struct wh_mapped *answer)
{
	int seals = fcntl(memory->fd, F_GET_SEALS);
	bool read_only;

	if (seals >= 0 && !(seals & F_SEAL_SEAL)) {
		if (fcntl(memory->fd, F_ADD_SEALS,
			  rights & WH_ACCESS_WRITE ? F_SEAL_SEAL :
						     F_SEAL_SEAL | F_SEAL_FUTURE_WRITE)) {
			answer_refuse_errno(answer, "its memory cannot be sealed");
			return 0;
		}
		seals = fcntl(memory->fd, F_GET_SEALS);
	}
	if (seals < 0 || !(seals & F_SEAL_SHRINK)) {
		answer_refuse(answer, EOPNOTSUPP,
			      "its memory is not sealed, so it cannot be mapped");
		return 0;
	}
	read_only = seals & F_SEAL_FUTURE_WRITE;
	if (rights & WH_ACCESS_WRITE && read_only) {
		answer_refuse(answer, EOPNOTSUPP, "its memory has been mapped for reading only");
		/* A read-only mapping is useless for memory that may only be written. */
		return memory->readable ? WH_ACCESS_READ : 0;
	}
	if (!(rights & WH_ACCESS_WRITE) && !read_only) {
		answer_refuse(answer, EAGAIN, "its memory has been mapped for writing before");
		return 0;
	}
	return rights;
}

static const struct wh_shm_verdict *verdict_find(const struct wh_session *session,
						 struct wh_shm_verdicts *kept,
						 const struct wh_allocation *memory)
{
	struct wh_shm_verdict *verdict;

	for (unsigned i = 0; i < WH_SHM_VERDICTS; i++)
		if (kept->kept[i].version == memory->version)
			return &kept->kept[i];
	verdict = &kept->kept[kept->next++ % WH_SHM_VERDICTS];
	if (verdict_make(session, memory, verdict))
		return verdict;
	verdict->version = 0;
	return NULL;
}

int wh_shm_grant(const struct wh_session *session, struct wh_shm_verdicts *kept,
		 const struct wh_region *region, uint8_t access, struct wh_mapped *answer)
{
	const struct wh_allocation *memory = region->memory;
	const struct wh_shm_verdict *verdict;
	uint8_t rights;
	char path[32];
	int fd;

	if (!wh_kind_on_host(region->entry.kind))
		return answer_refuse(answer, EOPNOTSUPP,
				     "other peers have more rights to it, so it cannot be mapped");
	if (!memory || memory->fd < 0)
		return answer_refuse(
			answer, EOPNOTSUPP,
			"not shared memory from wh_memory_alloc(), so it cannot be mapped");
	answer->memory = memory->number;
	verdict = verdict_find(session, kept, memory);
	if (!verdict)
		return answer_refuse(answer, ENOMEM, "no memory");
	if (!verdict->rights)
		return answer_refuse_rights(region, access, verdict, answer);
	rights = allocation_seal(memory, verdict->rights, answer);
	if (!rights)
		return -1;
	if (!(verdict->rights & WH_ACCESS_WRITE) && access & WH_ACCESS_WRITE)
		snprintf(answer->text, sizeof(answer->text),
			 "its allocation is mapped for reading only: this peer may not write byte "
			 "%llu of it",
			 (unsigned long long)verdict->gap);
	/* Open the file anew: a duplicate would share the file offset and flags with the peer. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", memory->fd);
	fd = open(path, (rights & WH_ACCESS_WRITE ? O_RDWR : O_RDONLY) | O_CLOEXEC);
	if (fd < 0)
		return answer_refuse_errno(answer, "its memfd cannot be opened through /proc");
	answer->error = 0;
	answer->rights = rights;
	answer->offset = region->entry.address - (uint64_t)(uintptr_t)memory->base;
	answer->length = region->entry.length;
	answer->whole = memory->asked;
	return fd;
}
