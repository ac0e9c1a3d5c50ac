/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shm, the owner: may a peer map the allocation that a region of ours lies in?
 *
 * A descriptor opens the whole file, so what counts is the whole allocation: each of its bytes has
 * to lie in a region that this peer may read, or write. An arena that is published in parts
 * without gaps can so be mapped as well as one that is published at once. What has been granted
 * holds until one of those regions goes: then the peer is asked to let go of it before
 * wh_region_unregister() returns. A region that comes takes nothing from anybody.
 *
 * Whoever holds a descriptor, even a read-only one, can open the file again through /proc, and for
 * writing if it is the same user's. What keeps memory that grants no writing from being written is
 * the seal, which also keeps everybody else from mapping it writable: the first peer that maps
 * decides for the allocation's life.
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

static int refuse(struct wh_mapped *answer, int error, const char *why)
{
	answer->error = -error;
	snprintf(answer->text, sizeof(answer->text), "%s", why);
	return -1;
}

static int refuse_call(struct wh_mapped *answer, const char *why)
{
	answer->error = -errno;
	snprintf(answer->text, sizeof(answer->text), "%s: %s", why, strerror(errno));
	return -1;
}

/* ---- what of an allocation is published -------------------------------------------------------
 */

/* A region in its allocation: what this peer may do, and what any may. */
struct part {
	uint64_t start, end;
	uint8_t own, any;
};

static int by_start(const void *a, const void *b)
{
	const struct part *x = a, *y = b;

	return (x->start > y->start) - (x->start < y->start);
}

/* How far the parts with this right reach from the start of the allocation on without a gap. They
 * are in order, unless the first of them all reaches to the end. */
static uint64_t covered(const struct part *parts, size_t count, uint8_t own, uint8_t any)
{
	uint64_t reached = 0;

	for (size_t i = 0; i < count && parts[i].start <= reached; i++) {
		if ((parts[i].own & own || parts[i].any & any) && parts[i].end > reached)
			reached = parts[i].end;
	}
	return reached;
}

static void look_at(const struct wh_allocation *memory, const struct part *parts, size_t count,
		    struct wh_shm_verdict *out)
{
	uint64_t all = memory->asked, read = covered(parts, count, WH_ACCESS_READ, 0);
	uint64_t write = covered(parts, count, WH_ACCESS_WRITE, 0);
	bool others = covered(parts, count, 0, WH_ACCESS_WRITE) >= all;

	/* Memory that grants only writing is mapped readable all the same, for the processor knows
	 * no other way: only if nobody may read any of it. */
	if (write >= all && (read >= all || !memory->readable)) {
		out->rights = BOTH;
		return;
	}
	out->gap = read >= all ? write : read;
	if (read < all)
		return;
	/* A seal against writing would take from others what is granted to them. */
	out->others = others;
	out->rights = others ? 0 : WH_ACCESS_READ;
}

/* False: there is no memory. */
static bool judge(const struct wh_session *session, const struct wh_allocation *memory,
		  struct wh_shm_verdict *out)
{
	const struct wh_list *members = &memory->members;
	size_t count = 0, room = 1; /* never none */
	struct part *parts;
	bool whole = false;

	*out = (struct wh_shm_verdict){ .version = memory->version, .gap = UINT64_MAX };
	/* As a rule an arena's regions do not overlap: until the last one is there, this says it
	 * all. */
	if (memory->readable < memory->asked && memory->writable < memory->asked)
		return true;
	for (const struct wh_list *l = members->next; l != members; l = l->next)
		room++;
	parts = malloc(room * sizeof(*parts));
	if (!parts)
		return false;
	for (const struct wh_list *l = members->next; l != members && !whole; l = l->next) {
		const struct wh_region *region = wh_container(l, struct wh_region, member);
		const struct wh_region_entry *entry = &region->entry;
		struct part *part = &parts[count++];

		part->start = entry->address - (uint64_t)(uintptr_t)memory->base;
		part->end = part->start + entry->length;
		part->any = entry->access & BOTH;
		part->own = wh_region_access(region, wh_session_hello(session)->name) & BOTH;
		/* One that is all of it and all that can be had of it: there is no need to look
		 * further. */
		whole = !part->start && part->end >= memory->asked && part->own == BOTH;
		if (whole)
			parts[0] = *part;
	}
	if (!whole)
		qsort(parts, count, sizeof(*parts), by_start);
	look_at(memory, parts, count, out);
	free(parts);
	return true;
}

/* ---- granting ---------------------------------------------------------------------------------
 */

/* The words for memory that this peer does not see all of. */
static int refuse_part(const struct wh_region *region, uint8_t access,
		       const struct wh_shm_verdict *verdict, struct wh_mapped *answer)
{
	if (verdict->others || access != region->entry.access)
		return refuse(answer, EAGAIN,
			      "other peers have more rights to it, so it cannot be mapped");
	if (verdict->gap == UINT64_MAX)
		return refuse(answer, EAGAIN,
			      "covers only a part of its allocation, and the rest is not all "
			      "published to "
			      "this peer");
	answer->error = -EAGAIN;
	snprintf(answer->text, sizeof(answer->text),
		 "covers only a part of its allocation, whose byte %llu is not published to this "
		 "peer",
		 (unsigned long long)verdict->gap);
	return -1;
}

/* Seal the memory, if nobody has mapped it yet, and find the rights that its seals leave; 0: none.
 */
static uint8_t seal(const struct wh_allocation *memory, uint8_t rights, struct wh_mapped *answer)
{
	int seals = fcntl(memory->fd, F_GET_SEALS);
	bool read_only;

	if (seals >= 0 && !(seals & F_SEAL_SEAL)) {
		if (fcntl(memory->fd, F_ADD_SEALS,
			  rights & WH_ACCESS_WRITE ? F_SEAL_SEAL :
						     F_SEAL_SEAL | F_SEAL_FUTURE_WRITE)) {
			refuse_call(answer, "its memory cannot be sealed");
			return 0;
		}
		seals = fcntl(memory->fd, F_GET_SEALS);
	}
	if (seals < 0 || !(seals & F_SEAL_SHRINK)) {
		refuse(answer, EOPNOTSUPP, "its memory is not sealed, so it cannot be mapped");
		return 0;
	}
	read_only = seals & F_SEAL_FUTURE_WRITE;
	if (rights & WH_ACCESS_WRITE && read_only) {
		refuse(answer, EOPNOTSUPP, "its memory has been mapped for reading only");
		/* What could be written only is of no use so. */
		return memory->readable ? WH_ACCESS_READ : 0;
	}
	if (!(rights & WH_ACCESS_WRITE) && !read_only) {
		refuse(answer, EAGAIN, "its memory has been mapped for writing before");
		return 0;
	}
	return rights;
}

static const struct wh_shm_verdict *verdict_of(const struct wh_session *session,
					       struct wh_shm_verdicts *kept,
					       const struct wh_allocation *memory)
{
	struct wh_shm_verdict *verdict;

	for (unsigned i = 0; i < WH_SHM_VERDICTS; i++)
		if (kept->kept[i].version == memory->version)
			return &kept->kept[i];
	verdict = &kept->kept[kept->next++ % WH_SHM_VERDICTS];
	if (judge(session, memory, verdict))
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
		return refuse(answer, EOPNOTSUPP,
			      "other peers have more rights to it, so it cannot be mapped");
	if (!memory || memory->fd < 0)
		return refuse(answer, EOPNOTSUPP,
			      "not shared memory from wh_memory_alloc(), so it cannot be mapped");
	answer->memory = memory->number;
	verdict = verdict_of(session, kept, memory);
	if (!verdict)
		return refuse(answer, ENOMEM, "no memory");
	if (!verdict->rights)
		return refuse_part(region, access, verdict, answer);
	rights = seal(memory, verdict->rights, answer);
	if (!rights)
		return -1;
	if (!(verdict->rights & WH_ACCESS_WRITE) && access & WH_ACCESS_WRITE)
		snprintf(answer->text, sizeof(answer->text),
			 "its allocation is mapped for reading only: this peer may not write byte "
			 "%llu of it",
			 (unsigned long long)verdict->gap);
	/* A descriptor of its own for each: nobody shares a file offset or flags with us. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", memory->fd);
	fd = open(path, (rights & WH_ACCESS_WRITE ? O_RDWR : O_RDONLY) | O_CLOEXEC);
	if (fd < 0)
		return refuse_call(answer, "its memfd cannot be opened through /proc");
	answer->error = 0;
	answer->rights = rights;
	answer->offset = region->entry.address - (uint64_t)(uintptr_t)memory->base;
	answer->length = region->entry.length;
	answer->whole = memory->asked;
	return fd;
}
