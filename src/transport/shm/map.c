/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport/shm/map.c: the initiator's mappings: ask the owner for memory, map it, unmap it
 *
 * An allocation of the owner's is mapped once, for all of its regions. A copy pins its region (see
 * memory/region-table.h). The owner gives a descriptor only while all of the allocation is
 * published to us. When one of its regions is withdrawn, the mapping ends for all of them: it is
 * hidden from the regions, copies that have one of them pinned are waited for, and it is unmapped;
 * only then does the owner get the confirmation. The remaining regions are copied by process_vm,
 * until the owner, asked again, gives a descriptor.
 *
 * The descriptor and the news of a withdrawn region arrive over different sockets, in any order. So
 * withdrawals are counted: if one arrives between the question and the answer, the answer may be
 * out of date, and the owner is asked again.
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
#include "transport/shm/shm.h"
#include "transport/shm/wire.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/list.h"
#include "wire/bytes.h"
#include "wire/wire.h"

/* For the answers to all segments of a region. */
#define EXPORTS_TIMEOUT (10 * WH_SECOND)
/* Bytes: the least of a segment of GPU memory, except for the first and last of a region. */
#define SEGMENT_MIN 65536
/* How often in a row to ask the owner again because regions were withdrawn meanwhile. */
#define ASK_MAX 8u

/* Bytes of the reason against process_vm, when it follows the reason against the mapping. */
#define VM_TEXT 124

/* struct region_map.state: the owner's answer in the low 2 bits, above it the generation of the
 * control connection. The owner must be asked again in each generation: when it unregisters a
 * region it waits only for peers that have connected to its unix socket in this one. Mappings end
 * with their generation. */
enum {
	NOT_ASKED = 0,
	MAPPED,
	REFUSED, /* process_vm copies it; `refused` says why */
	REFUSED_FOR_NOW, /* the same, until the owner says that a region was registered */
};
#define STATE(generation, known) ((uint32_t)(generation) << 2 | (known))

/* What shm keeps for a remote region, from the first question about it until it is withdrawn.
 * Under maps_lock, but for the atomics, which whoever has entered or pinned the region may read. */
struct region_map {
	struct wh_remote_region *region;
	_Atomic uint32_t state;
	_Atomic uint32_t arrivals; /* wh_shm_peer.arrivals when it was refused */
	_Atomic(char *) base; /* local address of the region's first byte; NULL: not mapped */
	_Atomic bool writable;
	uint64_t number; /* of its allocation, as numbered by the owner; 0: not known */
	struct wh_shm_memory *memory; /* that allocation, once it is mapped */
	struct wh_list link; /* memory->regions */
	char *refused; /* why it is not mapped, or not for writing; owned; NULL: it is */
};

/* NULL: the owner was never asked. */
static struct region_map *map_of(const struct wh_remote_region *region)
{
	return atomic_load_explicit(&region->transport[WH_TRANSPORT_SHM], memory_order_acquire);
}

/* The same, made if need be. NULL: no memory. Under shm.lock. */
static struct region_map *map_make(struct wh_remote_region *region)
{
	struct region_map *map = map_of(region);

	if (map)
		return map;
	map = calloc(1, sizeof(*map));
	if (!map)
		return NULL;
	map->region = region;
	atomic_store_explicit(&region->transport[WH_TRANSPORT_SHM], map, memory_order_release);
	return map;
}

static uint32_t region_known(const struct wh_shm_peer *shm, const struct wh_remote_region *region)
{
	const struct region_map *map = map_of(region);
	uint32_t now = STATE(atomic_load(&shm->current), NOT_ASKED), state;

	if (!map)
		return NOT_ASKED;
	state = atomic_load_explicit(&map->state, memory_order_acquire);
	if ((state ^ now) > 3)
		return NOT_ASKED;
	if ((state & 3) == REFUSED_FOR_NOW &&
	    atomic_load(&map->arrivals) != atomic_load(&shm->arrivals))
		return NOT_ASKED;
	return state & 3;
}

static void map_set_known(const struct wh_shm_peer *shm, struct region_map *map, uint32_t known)
{
	atomic_store_explicit(&map->state, STATE(shm->generation, known), memory_order_release);
}

char *wh_shm_mapped_at(const struct wh_region_entry *entry, uint32_t op)
{
	const struct region_map *map = map_of((const struct wh_remote_region *)entry);
	char *base = map ? atomic_load(&map->base) : NULL; /* as wh_region_entry_pin() requires */

	return base && (op == WH_READ ||
			atomic_load_explicit(&map->writable, memory_order_relaxed)) ?
		       base :
		       NULL;
}

/* ---- asking the owner; under shm.lock ------------------------------------------------------ */

#define QUESTION (WH_FRAME_HEADER + WH_MAP_SIZE)

static void question_encode(uint8_t bytes[QUESTION], uint64_t id, uint32_t segment)
{
	wh_frame_encode(bytes, &(struct wh_frame){ WH_MAP_SIZE, WH_FRAME_MAP, 0 });
	wh_put32(wh_put64(bytes + WH_FRAME_HEADER, id), segment);
}

/* After an error the connection is closed: a late answer would be taken for the next one. */
static int ask_owner(struct wh_shm_peer *shm, uint64_t id, struct wh_mapped *mapped, int *fd)
{
	uint8_t bytes[WH_MAPPED_MAX], question[QUESTION];
	struct wh_frame frame;
	int error;

	question_encode(question, id, 0);
	error = wh_shm_ask(shm, WH_SHM_ASK_MAP, id, question, sizeof(question), -1);
	if (error)
		return error;
	error = wh_shm_receive_frame(shm, &frame, bytes, WH_MAPPED_MAX, fd);
	if (!error && (frame.type != WH_FRAME_MAPPED ||
		       wh_mapped_decode(bytes, frame.length, mapped) || mapped->id != id))
		error = -EPROTO;
	return error ? wh_shm_fail_disconnect(shm, error, WH_SHM_ASKING) : 0;
}

/* Receive one segment of GPU memory. A refusal has the form of an answer for host memory. */
static int ask_receive_export(struct wh_shm_peer *shm, uint64_t id, struct wh_exported *exported,
			      int *fd)
{
	uint8_t bytes[WH_EXPORTED_MAX > WH_MAPPED_MAX ? WH_EXPORTED_MAX : WH_MAPPED_MAX];
	struct wh_mapped mapped;
	struct wh_frame frame;
	int error = wh_shm_receive_frame(shm, &frame, bytes, sizeof(bytes), fd);

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

/* ---- mappings; under shm.maps_lock --------------------------------------------------------- */

static size_t map_page_size(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

static struct wh_shm_memory *memory_find(struct wh_shm_peer *shm, uint64_t number)
{
	for (struct wh_list *l = shm->memories.next; l != &shm->memories; l = l->next) {
		struct wh_shm_memory *memory = wh_container(l, struct wh_shm_memory, link);

		if (memory->number == number)
			return memory;
	}
	return NULL;
}

/* Could an honest owner have answered this for the region? */
static bool answer_is_valid(const struct wh_remote_region *region, const struct wh_mapped *mapped,
			    int fd)
{
	uint64_t page = map_page_size(), whole = mapped->whole;

	return whole && whole <= INT64_MAX - page && mapped->length == region->entry.length &&
	       mapped->offset <= INT64_MAX - mapped->length &&
	       mapped->offset + mapped->length <= (whole + page - 1) / page * page &&
	       mapped->offset <= region->entry.address && !wh_shm_check_file(fd, whole);
}

static int memory_map(struct wh_shm_memory *memory, const struct wh_mapped *mapped, int fd,
		      char why[WH_REFUSAL])
{
	bool writable = mapped->rights & WH_ACCESS_WRITE;
	size_t page = map_page_size(), length = (mapped->whole + page - 1) / page * page;
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

/* Find the answer's allocation, or create it, and map it. NULL: refused, with the reason in `why`.
 */
static struct wh_shm_memory *memory_acquire(struct wh_shm_peer *shm,
					    const struct wh_remote_region *region,
					    const struct wh_mapped *mapped, int fd,
					    char why[WH_REFUSAL])
{
	uint64_t start = region->entry.address - mapped->offset;
	struct wh_shm_memory *memory = memory_find(shm, mapped->memory);
	bool made = !memory;

	if (memory &&
	    (memory->ending || memory->start != start || memory->length != mapped->whole)) {
		snprintf(why, WH_REFUSAL, "%s",
			 memory->ending ? "a region of its allocation is being unregistered" :
					  "the peer's answer contradicts an earlier one");
		return NULL;
	}
	if (made)
		memory = calloc(1, sizeof(*memory));
	if (!memory) {
		snprintf(why, WH_REFUSAL, "no memory");
		return NULL;
	}
	if (!memory->base && memory_map(memory, mapped, fd, why)) {
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

static void map_refuse(struct region_map *map, const char *why)
{
	free(map->refused);
	map->refused = *why ? strdup(why) : NULL;
}

/* Map what the owner has given a descriptor of. Returns MAPPED, or another state with the reason in
 * `why`; NOT_ASKED: a region was withdrawn since the question. */
static uint32_t answer_map(struct wh_shm_peer *shm, struct region_map *map,
			   const struct wh_mapped *mapped, int fd, uint64_t removals,
			   char why[WH_REFUSAL])
{
	struct wh_shm_memory *memory;

	if (shm->removals != removals) {
		snprintf(why, WH_REFUSAL,
			 "the peer unregisters regions faster than they can be mapped");
		return NOT_ASKED;
	}
	memory = memory_acquire(shm, map->region, mapped, fd, why);
	if (!memory)
		return REFUSED;
	if (map->memory != memory) {
		wh_list_remove(&map->link);
		wh_list_append(&memory->regions, &map->link);
		map->memory = memory;
	}
	map_refuse(map, memory->writable ? "" : mapped->text);
	atomic_store_explicit(&map->writable, memory->writable, memory_order_relaxed);
	atomic_store(&map->base, memory->base + (map->region->entry.address - memory->start));
	return MAPPED;
}

/* Store the owner's answer in the region, and map it if granted. True: ask again. */
static bool answer_apply(struct wh_shm_peer *shm, struct region_map *map,
			 const struct wh_mapped *mapped, int fd, uint64_t removals,
			 uint32_t arrivals, char why[WH_REFUSAL])
{
	uint32_t known;

	pthread_mutex_lock(&shm->maps_lock);
	if (mapped->error) {
		known = mapped->error == -EAGAIN ? REFUSED_FOR_NOW : REFUSED;
		snprintf(why, WH_REFUSAL, "%s", mapped->text);
	} else if (fd < 0) {
		known = REFUSED;
		snprintf(why, WH_REFUSAL, "the peer's descriptor has not arrived (ulimit -n?)");
	} else if (!answer_is_valid(map->region, mapped, fd)) {
		known = REFUSED;
		snprintf(why, WH_REFUSAL,
			 "the peer's descriptor does not fit its answer, or is not sealed");
	} else {
		known = answer_map(shm, map, mapped, fd, removals, why);
	}
	if (known != MAPPED)
		map_refuse(map, why);
	atomic_store(&map->arrivals, arrivals);
	map->number = mapped->memory;
	if (known == REFUSED_FOR_NOW) {
		shm->refused.number = mapped->memory;
		shm->refused.arrivals = arrivals;
		atomic_store(&shm->partly, true);
	}
	map_set_known(shm, map, known);
	pthread_mutex_unlock(&shm->maps_lock);
	return known == NOT_ASKED;
}

/* Was another region of the same allocation refused after the last region was published? Then
 * asking again gives the same answer. */
static bool region_is_still_refused(struct wh_shm_peer *shm, struct wh_remote_region *region)
{
	uint32_t arrivals = atomic_load(&shm->arrivals);
	struct region_map *map = map_of(region);
	bool still;

	if (!map || atomic_load(&map->state) != STATE(shm->generation, REFUSED_FOR_NOW))
		return false;
	pthread_mutex_lock(&shm->maps_lock);
	still = shm->refused.number && shm->refused.number == map->number &&
		shm->refused.arrivals == arrivals;
	if (still)
		atomic_store(&map->arrivals, arrivals);
	pthread_mutex_unlock(&shm->maps_lock);
	return still;
}

/*
 * Ask the owner for the region, even if there is nothing to map: the answer proves that the owner
 * had both the region and this connection, so it will not free the memory before we confirm its
 * removal. 0: the region's state is set, and it stays NOT_ASKED only if withdrawals outran all
 * ASK_MAX answers; *fd belongs to the caller, -1: none. Under shm.lock, connected, with the region
 * entered.
 */
static int ask_region(struct wh_shm_peer *shm, struct wh_remote_region *region,
		      struct wh_mapped *mapped, int *fd, char why[WH_REFUSAL])
{
	uint64_t id = wh_region_entry_id(&region->entry);
	struct region_map *map = map_make(region);
	bool again = true;
	int error;

	if (!map) {
		snprintf(why, WH_REFUSAL, "no memory");
		return -ENOMEM;
	}
	if (!wh_plan_may_linger()) {
		snprintf(why, WH_REFUSAL, "the peer is still to be asked for region %#llx",
			 (unsigned long long)id);
		return -EINPROGRESS;
	}
	for (unsigned turn = 0; again && turn < ASK_MAX; turn++) {
		if (*fd >= 0)
			close(*fd);
		*fd = -1;
		error = ask_owner(shm, id, mapped, fd);
		if (error) {
			snprintf(why, WH_REFUSAL, "%s", shm->why);
			return error;
		}
		if (mapped->error == -ENOENT) {
			snprintf(why, WH_REFUSAL, "region %#llx: %.120s", (unsigned long long)id,
				 mapped->text);
			return -ESTALE;
		}
		again = answer_apply(shm, map, mapped, *fd, shm->question.removals,
				     shm->question.arrivals, why);
	}
	return 0;
}

/* ---- reaching a region --------------------------------------------------------------------- */

void wh_shm_refused(struct wh_shm_peer *shm, const struct wh_remote_region *region, uint32_t op,
		    char why[WH_REFUSAL])
{
	const struct region_map *map = map_of(region);

	pthread_mutex_lock(&shm->maps_lock);
	snprintf(why, WH_REFUSAL, "%s",
		 wh_shm_mapped_at(&region->entry, op) ? "" :
		 map && map->refused                  ? map->refused :
				       "a region of its allocation was unregistered");
	pthread_mutex_unlock(&shm->maps_lock);
}

int wh_shm_lock(struct wh_shm_peer *shm, char why[WH_REFUSAL])
{
	if (wh_plan_how() == WH_PLAN_WAITS)
		return pthread_mutex_lock(&shm->lock);
	if (!pthread_mutex_trylock(&shm->lock))
		return 0;
	snprintf(why, WH_REFUSAL, "the peer is still being asked for memory");
	return -EINPROGRESS;
}

static int region_reach(struct wh_shm_peer *shm, struct wh_remote_region *region, uint32_t op,
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
		snprintf(why, WH_REFUSAL, "the peer %s", wh_shm_owner_fate(shm));
		return -ECONNRESET;
	}
	if (region_known(shm, region) == NOT_ASKED && !region_is_still_refused(shm, region)) {
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
		/* Keep the second reason whole: it says what to do. */
		room = strnlen(vm, VM_TEXT);
		snprintf(why, WH_REFUSAL, "%.*s; %.*s", (int)(WH_REFUSAL - 3 - room), map,
			 (int)room, vm);
	}
	return error;
}

/* A file of ours and memory of the peer, which has to be mapped: the kernel copies between a file
 * and this process only. */
static int file_reach(struct wh_shm_peer *shm, struct wh_remote_region *region, uint32_t op,
		      char why[WH_REFUSAL])
{
	int error = wh_shm_lock(shm, why);

	if (error)
		return error;
	if (!wh_shm_mapped_at(&region->entry, op))
		error = region_reach(shm, region, op, why);
	pthread_mutex_unlock(&shm->lock);
	if (error || wh_shm_mapped_at(&region->entry, op))
		return error;
	snprintf(why, WH_REFUSAL, "%s", WH_SHM_FILE_UNMAPPED);
	return -EOPNOTSUPP;
}

/* Called with the remote region entered, so it stays registered meanwhile. */
int wh_shm_is_reachable(struct wh_peer *peer, void *state, const struct wh_region *local,
			struct wh_region_entry *remote, uint32_t op, char why[WH_REFUSAL])
{
	struct wh_remote_region *region = wh_container(remote, struct wh_remote_region, entry);
	struct wh_shm_peer *shm = state;
	uint32_t known = region_known(shm, region);
	int error;

	(void)peer;
	if (wh_kind_on_gpu(local->entry.kind) || wh_kind_on_gpu(remote->kind)) {
		snprintf(why, WH_REFUSAL, "the CPU does not copy GPU memory");
		return -ENXIO;
	}
	if (remote->kind == WH_MEMORY_FILE) {
		snprintf(why, WH_REFUSAL,
			 "region %#llx is a file, which only its owner reads and writes",
			 (unsigned long long)wh_region_entry_id(remote));
		/* Its bytes go through memory that tcp has this transport lend: lend.c. */
		return wh_kind_on_host(local->entry.kind) && wh_shm_may_lend(shm) ? -ENXIO :
										    -EOPNOTSUPP;
	}
	if (local->entry.kind == WH_MEMORY_FILE)
		return file_reach(shm, region, op, why);
	if ((known == MAPPED && wh_shm_mapped_at(remote, op)) ||
	    (known != NOT_ASKED && atomic_load(&shm->vm) == WH_VM_WORKS))
		return 0;
	error = wh_shm_lock(shm, why);
	if (error)
		return error;
	error = region_reach(shm, region, op, why);
	pthread_mutex_unlock(&shm->lock);
	return error;
}

/* ---- for other transports ------------------------------------------------------------------ */

/* Only pages without bytes of other regions: the mapping may outlive the rights to those. */
static int own_map(const struct wh_remote_region *region, const struct wh_mapped *mapped, int fd,
		   struct wh_shm_own *own, char why[WH_REFUSAL])
{
	size_t page = map_page_size();
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

	error = wh_shm_lock(shm, why);
	if (error)
		return error;
	error = wh_shm_connect(shm);
	if (error)
		snprintf(why, WH_REFUSAL, "%s", shm->why);
	else
		error = ask_region(shm, region, &mapped, &fd, why);
	if (!error && own) {
		/* ask_region() has written the reason. */
		error = mapped.error || fd < 0 || !answer_is_valid(region, &mapped, fd) ?
				-EOPNOTSUPP :
				own_map(region, &mapped, fd, own, why);
	}
	pthread_mutex_unlock(&shm->lock);
	if (fd >= 0)
		close(fd);
	return error;
}

bool wh_shm_asked(const struct wh_shm_peer *shm, const struct wh_remote_region *region)
{
	return region_known(shm, region) != NOT_ASKED;
}

/* Ask for the segments from `index` on. Those behind the first answer are waited for: what has come
 * would have to be imported once more. */
static int ask_for_exports(struct wh_shm_peer *shm, uint64_t id, uint32_t index, uint32_t how)
{
	enum wh_shm_ask kind = how == WH_MAP_OBJECTS ? WH_SHM_ASK_OBJECTS : WH_SHM_ASK_EXPORTS;
	uint8_t bytes[QUESTION];

	question_encode(bytes, id, index | how);
	return index ? wh_shm_send(shm->fd, bytes, sizeof(bytes), -1, 0) :
		       wh_shm_ask(shm, kind, id, bytes, sizeof(bytes), -1);
}

/* Under shm.lock, connected. */
static int ask_exports(struct wh_shm_peer *shm, const struct wh_remote_region *region, bool objects,
		       int (*each)(void *arg, const struct wh_exported *exported, int *fd,
				   char why[WH_REFUSAL]),
		       void *arg, char why[WH_REFUSAL])
{
	uint64_t id = wh_region_entry_id(&region->entry),
		 max_segments = region->entry.length / SEGMENT_MIN + 2;
	int64_t deadline = wh_deadline(EXPORTS_TIMEOUT);
	struct wh_exported exported = { .segments = 1 };
	uint32_t count = 1;
	uint32_t how = objects ? WH_MAP_OBJECTS :
		       wh_peer_welcome(shm->peer)->capabilities & WH_CAPABLE_FABRIC ?
				 WH_MAP_FABRIC :
				 0;
	int error, fd = -1;

	for (uint32_t index = 0; index < count; index++) {
		error = index % WH_EXPORTS ? 0 : ask_for_exports(shm, id, index, how);
		if (error == -EINPROGRESS) {
			snprintf(why, WH_REFUSAL, "%s", shm->why);
			return error;
		}
		if (!error)
			error = ask_receive_export(shm, id, &exported, &fd);
		if (!error && !exported.error &&
		    (exported.index != index || exported.segments > max_segments ||
		     (index && exported.segments != count)))
			error = -EPROTO;
		if (!error && wh_now() > deadline)
			error = -ETIMEDOUT;
		if (error) {
			wh_shm_fail_disconnect(shm, error, WH_SHM_ASKING);
			snprintf(why, WH_REFUSAL, "%s", shm->why);
		} else if (exported.error) {
			snprintf(why, WH_REFUSAL, "%s", exported.text);
			error = exported.error;
		} else {
			count = exported.segments;
			error = each(arg, &exported, &fd, why);
			/* More segments are on their way; nobody reads them. */
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
	struct region_map *map;
	int error;

	error = wh_shm_lock(shm, why);
	if (error)
		return error;
	error = wh_shm_connect(shm);
	if (error)
		snprintf(why, WH_REFUSAL, "%s", shm->why);
	if (!error)
		error = ask_exports(shm, region, objects, each, arg, why);
	map = error ? NULL : map_make(region);
	if (map)
		map_set_known(shm, map, REFUSED);
	pthread_mutex_unlock(&shm->lock);
	return error;
}

/* ---- published and withdrawn regions; on loop 0 -------------------------------------------- */

void wh_shm_region_came(struct wh_peer *peer, void *state)
{
	struct wh_shm_peer *shm = state;

	atomic_fetch_add(&shm->arrivals, 1);
	/* It may complete an allocation that was refused for now. */
	if (atomic_exchange(&shm->partly, false))
		wh_peer_replan(peer);
}

/* Hide the mapping from its regions. */
static void memory_hide(struct wh_shm_memory *memory)
{
	memory->ending = true;
	for (struct wh_list *l = memory->regions.next; l != &memory->regions; l = l->next) {
		struct region_map *map = wh_container(l, struct region_map, link);

		/* Sequentially consistent: see wh_region_entry_pin(). */
		atomic_store(&map->base, NULL);
		atomic_store(&map->state, NOT_ASKED);
	}
}

/* Hide the mappings that contain bytes of the range, also those that a call before could not end.
 */
static void memory_hide_range(struct wh_shm_peer *shm, uint64_t start, uint64_t end)
{
	for (struct wh_list *l = shm->memories.next; l != &shm->memories; l = l->next) {
		struct wh_shm_memory *memory = wh_container(l, struct wh_shm_memory, link);

		if (memory->base && start < memory->start + memory->mapped && memory->start < end)
			memory_hide(memory);
	}
}

static struct wh_shm_memory *memory_next_ending(struct wh_shm_peer *shm)
{
	for (struct wh_list *l = shm->memories.next; l != &shm->memories; l = l->next) {
		struct wh_shm_memory *memory = wh_container(l, struct wh_shm_memory, link);

		if (memory->ending)
			return memory;
	}
	return NULL;
}

/* A region of the mapping that a copy has pinned, or NULL. */
static struct wh_remote_region *memory_next_pinned(struct wh_shm_memory *memory)
{
	for (struct wh_list *l = memory->regions.next; l != &memory->regions; l = l->next) {
		struct wh_remote_region *region = wh_container(l, struct region_map, link)->region;

		if (atomic_load(&region->entry.pins))
			return region;
	}
	return NULL;
}

int wh_shm_region_going(struct wh_peer *peer, void *state, uint64_t address, uint64_t length,
			int64_t deadline)
{
	struct wh_shm_peer *shm = state;
	struct wh_shm_memory *memory;
	struct wh_remote_region *pinned;
	bool left = true;

	(void)peer;
	pthread_mutex_lock(&shm->maps_lock);
	shm->removals++;
	memory_hide_range(shm, address, address + length);
	/* While the lock is released other threads may add regions to an allocation, but not to
	 * one that is ending; only this thread removes any. */
	while (left && (memory = memory_next_ending(shm))) {
		pinned = memory_next_pinned(memory);
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

/* Nobody has entered or pinned the region any more: region_map can be freed. */
void wh_shm_region_gone(struct wh_peer *peer, void *state, struct wh_remote_region *region)
{
	struct region_map *map = map_of(region);
	struct wh_shm_peer *shm = state;
	struct wh_shm_memory *memory;

	(void)peer;
	if (!map)
		return;
	memory = map->memory;
	pthread_mutex_lock(&shm->maps_lock);
	if (memory) {
		wh_list_remove(&map->link);
		if (wh_list_empty(&memory->regions)) {
			if (memory->base)
				munmap(memory->base, memory->mapped);
			wh_list_remove(&memory->link);
			free(memory);
		}
	}
	pthread_mutex_unlock(&shm->maps_lock);
	atomic_store(&region->transport[WH_TRANSPORT_SHM], NULL);
	free(map->refused);
	free(map);
}
