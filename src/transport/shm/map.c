/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shm, the initiator: asking the owner for memory, mapping it, and letting go of it.
 *
 * An allocation of the owner's is mapped once, for all of its regions; who copies pins the region
 * (see memory/region-table.h). The owner gives a descriptor only while all of the allocation is
 * published to us. When one of its regions goes the mapping ends, for all of them, before the owner
 * is told that we have let go: none of them finds it any more, those who are in it are waited for,
 * and it is unmapped. The others are copied another way from then on, until the owner, asked once
 * more, gives a descriptor again.
 *
 * The descriptor comes by another socket than the news of a region that goes, and may have been
 * sent before it and be received after it. So regions that go are counted: one that went between
 * the question and the answer makes the answer worthless, and the owner is asked again.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory/memory.h"
#include "memory/region-table.h"
#include "memory/region.h"
#include "transport/core.h"
#include "transport/cuda/cuda.h"
#include "transport/cuda/wire.h"
#include "transport/shm/shm.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/list.h"
#include "wire/bytes.h"
#include "wire/wire.h"

/* All segments of a region. */
#define EXPORTS_TIMEOUT (10 * WH_SECOND)
/* The shortest that a segment of a GPU's memory can be, save the first and the last of a region. */
#define SEGMENT_LEAST 65536
/* How often the owner is asked in a row, while regions of it go. */
#define ASK_AGAIN 8u

/* Of a reason why process_vm does not go, beside that why there is no mapping. */
#define VM_ROOM 124

#define ASKING "asking the peer for a region's memory"

/* wh_remote_region.map_state: what the owner has said, and in the bits above, in which generation
 * of the control connection. It has to be asked again in each, for it waits only for those that it
 * has shaken hands with in this one. A mapping stays all the same. */
enum {
	UNKNOWN = 0,
	MAPPED,
	UNMAPPABLE, /* it is left to process_vm; map_refused says why */
	PARTLY, /* the same, until another region comes */
};
#define STATE(generation, known) ((uint32_t)(generation) << 2 | (known))

static uint32_t known_of(const struct wh_shm_peer *shm, const struct wh_remote_region *region)
{
	uint32_t state = atomic_load_explicit(&region->map_state, memory_order_acquire);
	uint32_t now = STATE(atomic_load(&shm->current), UNKNOWN);

	if ((state ^ now) > 3)
		return UNKNOWN;
	if ((state & 3) == PARTLY &&
	    atomic_load(&region->map_arrivals) != atomic_load(&shm->arrivals))
		return UNKNOWN;
	return state & 3;
}

static void set_known(const struct wh_shm_peer *shm, struct wh_remote_region *region,
		      uint32_t known)
{
	atomic_store_explicit(&region->map_state, STATE(shm->generation, known),
			      memory_order_release);
}

char *wh_shm_mapped_at(const struct wh_region_entry *entry, uint32_t op)
{
	const struct wh_remote_region *region = (const struct wh_remote_region *)entry;
	char *map = atomic_load(&region->map); /* as wh_region_entry_pin() wants it */

	return map && (op == WH_READ ||
		       atomic_load_explicit(&region->map_writable, memory_order_relaxed)) ?
		       map :
		       NULL;
}

/* ---- asking; under shm.lock --------------------------------------------------------------------
 */

static int send_map(struct wh_shm_peer *shm, uint64_t id, uint32_t segment)
{
	uint8_t bytes[WH_FRAME_HEADER + WH_MAP_SIZE];

	wh_frame_encode(bytes, &(struct wh_frame){ WH_MAP_SIZE, WH_FRAME_MAP, 0 });
	wh_put32(wh_put64(bytes + WH_FRAME_HEADER, id), segment);
	return wh_shm_send(shm->fd, bytes, sizeof(bytes), -1, 0);
}

/* An answer that comes late would be taken for the next one's: so the connection is dropped. */
static int ask(struct wh_shm_peer *shm, uint64_t id, struct wh_mapped *mapped, int *fd)
{
	uint8_t bytes[WH_MAPPED_MAX];
	struct wh_frame frame;
	int error = send_map(shm, id, 0);

	if (!error)
		error = wh_shm_receive_frame(shm->fd, &frame, bytes, WH_MAPPED_MAX, fd);
	if (!error && (frame.type != WH_FRAME_MAPPED ||
		       wh_mapped_decode(bytes, frame.length, mapped) || mapped->id != id))
		error = -EPROTO;
	return error ? wh_shm_fail_disconnect(shm, error, ASKING) : 0;
}

/* One segment of a GPU's memory. A region that has gone is answered as host memory is. */
static int hear_export(struct wh_shm_peer *shm, uint64_t id, struct wh_exported *exported, int *fd)
{
	uint8_t bytes[WH_EXPORTED_MAX > WH_MAPPED_MAX ? WH_EXPORTED_MAX : WH_MAPPED_MAX];
	struct wh_mapped mapped;
	struct wh_frame frame;
	int error = wh_shm_receive_frame(shm->fd, &frame, bytes, sizeof(bytes), fd);

	if (error)
		return error;
	if (frame.type == WH_FRAME_MAPPED && !wh_mapped_decode(bytes, frame.length, &mapped) &&
	    mapped.id == id && mapped.error) {
		memset(exported, 0, sizeof(*exported));
		exported->error = mapped.error == -ENOENT ? -ESTALE : mapped.error;
		memcpy(exported->text, mapped.text, sizeof(exported->text));
		return 0;
	}
	if (frame.type != WH_FRAME_EXPORTED || wh_exported_decode(bytes, frame.length, exported) ||
	    exported->id != id)
		return -EPROTO;
	return 0;
}

/* ---- mappings; under shm.maps_lock --------------------------------------------------------------
 */

static size_t page_size(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

static struct wh_shm_memory *find_memory(struct wh_shm_peer *shm, uint64_t number)
{
	for (struct wh_list *l = shm->memories.next; l != &shm->memories; l = l->next) {
		struct wh_shm_memory *memory = wh_container(l, struct wh_shm_memory, link);

		if (memory->number == number)
			return memory;
	}
	return NULL;
}

/* Is the answer what an honest owner says of this region? */
static bool is_sound(const struct wh_remote_region *region, const struct wh_mapped *mapped, int fd)
{
	uint64_t page = page_size(), whole = mapped->whole;

	return whole && whole <= INT64_MAX - page && mapped->length == region->entry.length &&
	       mapped->offset <= INT64_MAX - mapped->length &&
	       mapped->offset + mapped->length <= (whole + page - 1) / page * page &&
	       mapped->offset <= region->entry.address && !wh_shm_check_file(fd, whole);
}

static int map_memory(struct wh_shm_memory *memory, const struct wh_mapped *mapped, int fd,
		      char why[WH_REFUSAL])
{
	bool writable = mapped->rights & WH_ACCESS_WRITE;
	size_t page = page_size(), length = (mapped->whole + page - 1) / page * page;
	void *base = mmap(NULL, length, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
			  fd, 0);

	if (base == MAP_FAILED) {
		snprintf(why, WH_REFUSAL, "mmap of %zu bytes: %s%s", length, strerror(errno),
			 errno == ENOMEM ? " (vm.max_map_count?)" : "");
		return -ENOMEM;
	}
	madvise(base, length, MADV_DONTFORK);
	memory->base = base;
	memory->mapped = length;
	memory->writable = writable;
	return 0;
}

/* The allocation that the answer is about, mapped. NULL: not, for the reason in `why`. */
static struct wh_shm_memory *take_memory(struct wh_shm_peer *shm,
					 const struct wh_remote_region *region,
					 const struct wh_mapped *mapped, int fd,
					 char why[WH_REFUSAL])
{
	uint64_t start = region->entry.address - mapped->offset;
	struct wh_shm_memory *memory = find_memory(shm, mapped->memory);
	bool made = !memory;

	if (memory &&
	    (memory->ending || memory->start != start || memory->length != mapped->whole)) {
		snprintf(why, WH_REFUSAL, "%s",
			 memory->ending ? "a region of its allocation is going" :
					  "the peer's answer is not as it should be");
		return NULL;
	}
	if (made)
		memory = calloc(1, sizeof(*memory));
	if (!memory) {
		snprintf(why, WH_REFUSAL, "no memory");
		return NULL;
	}
	if (!memory->base && map_memory(memory, mapped, fd, why)) {
		if (made)
			free(memory);
		return NULL;
	}
	if (made) {
		memory->number = mapped->memory;
		memory->start = start;
		memory->length = mapped->whole;
		wh_list_init(&memory->regions);
		wh_list_push(&shm->memories, &memory->link);
	}
	return memory;
}

static void refuse(struct wh_remote_region *region, const char *why)
{
	free(region->map_refused);
	region->map_refused = *why ? strdup(why) : NULL;
}

/* The owner has given a descriptor. MAPPED, or another state with the reason in `why`; UNKNOWN: a
 * region has gone meanwhile. */
static uint32_t take_map(struct wh_shm_peer *shm, struct wh_remote_region *region,
			 const struct wh_mapped *mapped, int fd, uint64_t removals,
			 char why[WH_REFUSAL])
{
	struct wh_shm_memory *memory;

	if (shm->removals != removals) {
		snprintf(why, WH_REFUSAL,
			 "its peer takes regions back faster than they can be mapped");
		return UNKNOWN;
	}
	memory = take_memory(shm, region, mapped, fd, why);
	if (!memory)
		return UNMAPPABLE;
	if (region->map_memory != memory) {
		wh_list_remove(&region->map_link);
		wh_list_append(&memory->regions, &region->map_link);
		region->map_memory = memory;
	}
	refuse(region, memory->writable ? "" : mapped->text);
	atomic_store_explicit(&region->map_writable, memory->writable, memory_order_relaxed);
	atomic_store(&region->map, memory->base + (region->entry.address - memory->start));
	return MAPPED;
}

/* What the owner has said of it. True: it has to be asked again. */
static bool take_answer(struct wh_shm_peer *shm, struct wh_remote_region *region,
			const struct wh_mapped *mapped, int fd, uint64_t removals,
			uint32_t arrivals, char why[WH_REFUSAL])
{
	uint32_t known;

	pthread_mutex_lock(&shm->maps_lock);
	if (mapped->error) {
		known = mapped->error == -EAGAIN ? PARTLY : UNMAPPABLE;
		snprintf(why, WH_REFUSAL, "%s", mapped->text);
	} else if (fd < 0) {
		known = UNMAPPABLE;
		snprintf(why, WH_REFUSAL, "the peer's descriptor has not arrived (ulimit -n?)");
	} else if (!is_sound(region, mapped, fd)) {
		known = UNMAPPABLE;
		snprintf(why, WH_REFUSAL, "the peer's descriptor is not as it should be");
	} else {
		known = take_map(shm, region, mapped, fd, removals, why);
	}
	if (known != MAPPED)
		refuse(region, why);
	atomic_store(&region->map_arrivals, arrivals);
	region->map_number = mapped->memory;
	if (known == PARTLY) {
		shm->refused.number = mapped->memory;
		shm->refused.arrivals = arrivals;
		atomic_store(&shm->partly, true);
	}
	set_known(shm, region, known);
	pthread_mutex_unlock(&shm->maps_lock);
	return known == UNKNOWN;
}

/* It was refused before another region came, and another one of its allocation has been refused
 * since: then there is nothing new to hear. */
static bool is_refused_still(struct wh_shm_peer *shm, struct wh_remote_region *region)
{
	uint32_t arrivals = atomic_load(&shm->arrivals);
	bool still;

	if (atomic_load(&region->map_state) != STATE(shm->generation, PARTLY))
		return false;
	pthread_mutex_lock(&shm->maps_lock);
	still = shm->refused.number && shm->refused.number == region->map_number &&
		shm->refused.arrivals == arrivals;
	if (still)
		atomic_store(&region->map_arrivals, arrivals);
	pthread_mutex_unlock(&shm->maps_lock);
	return still;
}

/*
 * Ask the owner for the region. It is asked even if there is nothing to map, for one reason: its
 * answer proves that it knew of the region and of this connection at the same time, and so it will
 * not let go of the memory before we have. 0: the region's map_state is known now, unless the
 * peer's regions go all the time; *fd is the caller's, and -1 if none has come. Under shm.lock,
 * connected, inside the region.
 */
static int ask_region(struct wh_shm_peer *shm, struct wh_remote_region *region,
		      struct wh_mapped *mapped, int *fd, char why[WH_REFUSAL])
{
	uint64_t id = wh_region_entry_id(&region->entry), removals;
	uint32_t arrivals;
	bool again = true;
	int error;

	for (unsigned turn = 0; again && turn < ASK_AGAIN; turn++) {
		if (*fd >= 0)
			close(*fd);
		*fd = -1;
		pthread_mutex_lock(&shm->maps_lock);
		removals = shm->removals;
		pthread_mutex_unlock(&shm->maps_lock);
		arrivals = atomic_load(&shm->arrivals);
		error = ask(shm, id, mapped, fd);
		if (error) {
			snprintf(why, WH_REFUSAL, "%s", shm->why);
			return error;
		}
		if (mapped->error == -ENOENT) {
			snprintf(why, WH_REFUSAL, "region %#llx: %.120s", (unsigned long long)id,
				 mapped->text);
			return -ESTALE;
		}
		again = take_answer(shm, region, mapped, *fd, removals, arrivals, why);
	}
	return 0;
}

/* ---- reaching a region -------------------------------------------------------------------------
 */

void wh_shm_refused(struct wh_shm_peer *shm, const struct wh_remote_region *region, uint32_t op,
		    char why[WH_REFUSAL])
{
	pthread_mutex_lock(&shm->maps_lock);
	snprintf(why, WH_REFUSAL, "%s",
		 wh_shm_mapped_at(&region->entry, op) ? "" :
		 region->map_refused                  ? region->map_refused :
							"a region of its allocation has gone");
	pthread_mutex_unlock(&shm->maps_lock);
}

static int reach_slowly(struct wh_shm_peer *shm, struct wh_remote_region *region, uint32_t op,
			char why[WH_REFUSAL])
{
	char vm[WH_REFUSAL], map[WH_REFUSAL];
	struct wh_mapped mapped;
	int error = wh_shm_connect(shm), fd = -1;
	size_t room;

	if (error) {
		snprintf(why, WH_REFUSAL, "%s", shm->why);
		return error;
	}
	if (!wh_shm_owner_lives(shm)) {
		snprintf(why, WH_REFUSAL, "the peer has ended");
		return -ECONNRESET;
	}
	if (known_of(shm, region) == UNKNOWN && !is_refused_still(shm, region)) {
		error = ask_region(shm, region, &mapped, &fd, why);
		if (fd >= 0)
			close(fd);
		if (error)
			return error;
	}
	if (wh_shm_mapped_at(&region->entry, op))
		return 0;
	error = wh_shm_vm_probe(shm, vm);
	if (error) {
		wh_shm_refused(shm, region, op, map);
		room = strnlen(vm, VM_ROOM); /* of the two it says what to do */
		snprintf(why, WH_REFUSAL, "%.*s; %.*s", (int)(WH_REFUSAL - 3 - room), map,
			 (int)room, vm);
	}
	return error;
}

/* Called inside the region's place, so that it does not go meanwhile. */
int wh_shm_is_reachable(struct wh_peer *peer, void *state, const struct wh_region *local,
			struct wh_region_entry *remote, uint32_t op, char why[WH_REFUSAL])
{
	struct wh_remote_region *region = wh_container(remote, struct wh_remote_region, entry);
	struct wh_shm_peer *shm = state;
	uint32_t known = known_of(shm, region);
	int error;

	(void)peer;
	if (!wh_kind_on_host(local->entry.kind) || !wh_kind_on_host(remote->kind)) {
		snprintf(why, WH_REFUSAL, "a GPU's memory is not for the CPU to copy");
		return -ENXIO;
	}
	if ((known == MAPPED && wh_shm_mapped_at(remote, op)) ||
	    (known != UNKNOWN && atomic_load(&shm->vm) == WH_VM_WORKS))
		return 0;
	pthread_mutex_lock(&shm->lock);
	error = reach_slowly(shm, region, op, why);
	pthread_mutex_unlock(&shm->lock);
	return error;
}

/* ---- for others ---------------------------------------------------------------------------------
 */

/* Pages that show nothing of other regions can outlive what those become. */
static int map_own(const struct wh_remote_region *region, const struct wh_mapped *mapped, int fd,
		   struct wh_shm_own *own, char why[WH_REFUSAL])
{
	size_t page = page_size();
	uint64_t end = mapped->offset + mapped->length;
	bool write = region->entry.access & WH_ACCESS_WRITE;

	if (mapped->offset % page || (end % page && end < mapped->whole)) {
		snprintf(why, WH_REFUSAL,
			 "it shares pages of %zu bytes with other regions of its allocation", page);
		return -EOPNOTSUPP;
	}
	if (write && !(mapped->rights & WH_ACCESS_WRITE)) {
		snprintf(why, WH_REFUSAL, "%s", mapped->text);
		return -EOPNOTSUPP;
	}
	own->length = mapped->length;
	own->base = mmap(NULL, own->length, write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
			 fd, (off_t)mapped->offset);
	if (own->base == MAP_FAILED) {
		snprintf(why, WH_REFUSAL, "mmap of %zu bytes: %s", own->length, strerror(errno));
		return -ENOMEM;
	}
	madvise(own->base, own->length, MADV_DONTFORK);
	return 0;
}

int wh_shm_map(struct wh_shm_peer *shm, struct wh_remote_region *region, struct wh_shm_own *own,
	       char why[WH_REFUSAL])
{
	struct wh_mapped mapped;
	int error, fd = -1;

	pthread_mutex_lock(&shm->lock);
	error = wh_shm_connect(shm);
	if (error)
		snprintf(why, WH_REFUSAL, "%s", shm->why);
	else
		error = ask_region(shm, region, &mapped, &fd, why);
	if (!error && own) {
		/* What is wrong with the answer has been said. */
		error = mapped.error || fd < 0 || !is_sound(region, &mapped, fd) ?
				-EOPNOTSUPP :
				map_own(region, &mapped, fd, own, why);
	}
	pthread_mutex_unlock(&shm->lock);
	if (fd >= 0)
		close(fd);
	return error;
}

bool wh_shm_asked(const struct wh_shm_peer *shm, const struct wh_remote_region *region)
{
	return known_of(shm, region) != UNKNOWN;
}

/* Under the lock, connected. */
static int ask_exports(struct wh_shm_peer *shm, const struct wh_remote_region *region, bool objects,
		       int (*each)(void *arg, const struct wh_exported *exported, int *fd,
				   char why[WH_REFUSAL]),
		       void *arg, char why[WH_REFUSAL])
{
	uint64_t id = wh_region_entry_id(&region->entry),
		 most = region->entry.length / SEGMENT_LEAST + 2;
	int64_t deadline = wh_deadline(EXPORTS_TIMEOUT);
	struct wh_exported exported = { .segments = 1 };
	uint32_t count = 1;
	int error, fd = -1;

	for (uint32_t index = 0; index < count; index++) {
		error = index % WH_EXPORTS ?
				0 :
				send_map(shm, id, index | (objects ? WH_MAP_OBJECTS : 0));
		if (!error)
			error = hear_export(shm, id, &exported, &fd);
		if (!error && !exported.error &&
		    (exported.index != index || exported.segments > most ||
		     (index && exported.segments != count)))
			error = -EPROTO;
		if (!error && wh_now() > deadline)
			error = -ETIMEDOUT;
		if (error) {
			wh_shm_fail_disconnect(shm, error, ASKING);
			snprintf(why, WH_REFUSAL, "%s", shm->why);
		} else if (exported.error) {
			snprintf(why, WH_REFUSAL, "%s", exported.text);
			error = exported.error;
		} else {
			count = exported.segments;
			error = each(arg, &exported, &fd, why);
			/* The rest of them is on its way already. */
			if (error)
				wh_shm_disconnect(shm);
		}
		if (fd >= 0)
			close(fd);
		fd = -1;
		if (error)
			return error;
	}
	return 0;
}

int wh_shm_exports(struct wh_shm_peer *shm, struct wh_remote_region *region, bool objects,
		   int (*each)(void *arg, const struct wh_exported *exported, int *fd,
			       char why[WH_REFUSAL]),
		   void *arg, char why[WH_REFUSAL])
{
	int error;

	pthread_mutex_lock(&shm->lock);
	error = wh_shm_connect(shm);
	if (error)
		snprintf(why, WH_REFUSAL, "%s", shm->why);
	if (!error)
		error = ask_exports(shm, region, objects, each, arg, why);
	if (!error)
		set_known(shm, region, UNMAPPABLE);
	pthread_mutex_unlock(&shm->lock);
	return error;
}

/* ---- regions that come and go; on the first loop ------------------------------------------------
 */

static bool is_mappable(const struct wh_remote_region *region)
{
	return region->entry.flags & WH_REGION_MAPPABLE;
}

void wh_shm_region_came(struct wh_peer *peer, void *state, struct wh_remote_region *region)
{
	struct wh_shm_peer *shm = state;

	if (!is_mappable(region))
		return;
	atomic_fetch_add(&shm->arrivals, 1);
	/* It may have been the one that was missing. */
	if (atomic_exchange(&shm->partly, false))
		wh_peer_replan(peer);
}

/* From now on no region finds the mapping. Under maps_lock. */
static void hide(struct wh_shm_memory *memory)
{
	memory->ending = true;
	for (struct wh_list *l = memory->regions.next; l != &memory->regions; l = l->next) {
		struct wh_remote_region *region =
			wh_container(l, struct wh_remote_region, map_link);

		/* Sequentially consistent: see wh_region_entry_pin(). */
		atomic_store(&region->map, NULL);
		atomic_store(&region->map_state, UNKNOWN);
	}
}

/* The mappings that show any of the region's bytes; also one that was being ended before, in vain.
 */
static void hide_all(struct wh_shm_peer *shm, const struct wh_remote_region *region)
{
	uint64_t start = region->entry.address, end = start + region->entry.length;

	for (struct wh_list *l = shm->memories.next; l != &shm->memories; l = l->next) {
		struct wh_shm_memory *memory = wh_container(l, struct wh_shm_memory, link);

		if (memory->base && start < memory->start + memory->mapped && memory->start < end)
			hide(memory);
	}
}

static struct wh_shm_memory *next_ending(struct wh_shm_peer *shm)
{
	for (struct wh_list *l = shm->memories.next; l != &shm->memories; l = l->next) {
		struct wh_shm_memory *memory = wh_container(l, struct wh_shm_memory, link);

		if (memory->ending)
			return memory;
	}
	return NULL;
}

/* A region that is in the mapping, or NULL. */
static struct wh_remote_region *next_pinned(struct wh_shm_memory *memory)
{
	for (struct wh_list *l = memory->regions.next; l != &memory->regions; l = l->next) {
		struct wh_remote_region *region =
			wh_container(l, struct wh_remote_region, map_link);

		if (atomic_load(&region->entry.pins))
			return region;
	}
	return NULL;
}

int wh_shm_region_going(struct wh_peer *peer, void *state, struct wh_remote_region *region,
			int64_t deadline)
{
	struct wh_shm_peer *shm = state;
	struct wh_shm_memory *memory;
	struct wh_remote_region *pinned;
	bool left = true;

	(void)peer;
	if (!is_mappable(region))
		return 0;
	pthread_mutex_lock(&shm->maps_lock);
	shm->removals++;
	hide_all(shm, region);
	/* Others may add regions while it is unlocked, but none that finds the mapping; this thread
	 * alone takes them out. */
	while (left && (memory = next_ending(shm))) {
		pinned = next_pinned(memory);
		if (pinned) {
			pthread_mutex_unlock(&shm->maps_lock);
			left = wh_region_entry_unpinned(&pinned->entry, deadline);
			pthread_mutex_lock(&shm->maps_lock);
			continue;
		}
		munmap(memory->base, memory->mapped);
		memory->base = NULL;
		memory->ending = false;
	}
	pthread_mutex_unlock(&shm->maps_lock);
	return left ? 0 : -EBUSY;
}

void wh_shm_region_gone(struct wh_peer *peer, void *state, struct wh_remote_region *region)
{
	struct wh_shm_memory *memory = region->map_memory;
	struct wh_shm_peer *shm = state;

	(void)peer;
	pthread_mutex_lock(&shm->maps_lock);
	if (memory) {
		wh_list_remove(&region->map_link);
		if (wh_list_empty(&memory->regions)) {
			if (memory->base)
				munmap(memory->base, memory->mapped);
			wh_list_remove(&memory->link);
			free(memory);
		}
	}
	region->map_memory = NULL;
	free(region->map_refused);
	region->map_refused = NULL;
	atomic_store(&region->map, NULL);
	atomic_store(&region->map_state, UNKNOWN);
	pthread_mutex_unlock(&shm->maps_lock);
}
