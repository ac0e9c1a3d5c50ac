/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport/shm/shm.c: the initiator's peers, and the transport's table
 */
#include "transport/shm/shm.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory/memory.h"
#include "memory/region-table.h"
#include "memory/region.h"
#include "net/handshake.h"
#include "net/meet.h"
#include "transport/blocks.h"
#include "transport/copier-file.h"
#include "transport/core.h"
#include "transport/fragment.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/config.h"
#include "util/error.h"
#include "util/list.h"
#include "wire/wire.h"

/* How many bytes of a mapping are prepared at a time: some 10 ms. */
#define POPULATE_PIECE (UINT64_C(64) << 20)

/* A forked child may keep the socket open, and an exec() keeps the process: ask both. */
static bool owner_hangs_on(const struct wh_shm_peer *shm)
{
	struct pollfd look[] = {
		{ .fd = atomic_load(&shm->line), .events = POLLRDHUP },
		{ .fd = shm->pidfd, .events = POLLIN }, /* -1: ignored */
	};

	return poll(look, 2, 0) == 0;
}

static bool session_lasts(const struct wh_shm_peer *shm)
{
	uint64_t word = atomic_load(&shm->word);

	return !word || atomic_load(&shm->alive[word >> 32]) == (uint32_t)word;
}

bool wh_shm_owner_lives(const struct wh_shm_peer *shm)
{
	return atomic_load(shm->alive) == shm->owner && session_lasts(shm) &&
	       (shm->owner != WH_ALIVE_NO_THREAD || owner_hangs_on(shm));
}

const char *wh_shm_owner_fate(const struct wh_shm_peer *shm)
{
	uint32_t owner = atomic_load(shm->alive);

	return !owner                                     ? "has closed its engine" :
	       owner == shm->owner && !session_lasts(shm) ? "has ended the session" :
							    "has died";
}

/* Leaving the region has ordered all copies before these loads of the alive page. */
static void peer_verify(const struct wh_shm_peer *shm, struct wh_fragment *fragment)
{
	if (!wh_shm_owner_lives(shm))
		wh_fragment_fail(fragment, UINT64_MAX, -ECONNRESET, "%s %s",
				 wh_peer_name(shm->peer), wh_shm_owner_fate(shm));
}

static void shm_verify(struct wh_copier_peer *copy, struct wh_fragment *fragment)
{
	peer_verify((struct wh_shm_peer *)copy, fragment);
}

static const struct wh_copier_ops shm_copy = {
	.map = wh_shm_mapped_at,
	.move_unmapped = wh_shm_vm_move,
	.refusal = wh_shm_vm_refusal,
	.verify = shm_verify,
	.pins = true,
};

/* ---- files of this engine ------------------------------------------------------------------ */

/* The peer's first: a file keeps what has been written. */
static void files_verify(struct wh_copier_peer *files, struct wh_fragment *fragment)
{
	peer_verify(wh_container(files, struct wh_shm_peer, files), fragment);
	wh_copier_sync_files(files, fragment);
}

static void files_refusal(struct wh_copier_peer *files, char why[WH_REFUSAL])
{
	(void)files;
	snprintf(why, WH_REFUSAL, "%s", WH_SHM_FILE_UNMAPPED);
}

static const struct wh_copier_ops shm_copy_files = {
	.map = wh_shm_mapped_at,
	.refusal = files_refusal,
	.verify = files_verify,
	.files = true,
	.pins = true,
};

/* ---- peers --------------------------------------------------------------------------------- */

static void host_text(char out[33], const uint8_t host[16])
{
	for (int i = 0; i < 16; i++)
		snprintf(out + 2 * i, 3, "%02x", host[i]);
}

/* Is there a place where the peer can be met? It is another thing whether the meeting succeeds; but
 * a missing folder is the administrator's mistake, of which he learns when the peer is opened. */
static int peer_find_place(const struct wh_shm *shm, struct wh_peer *peer, char why[WH_REFUSAL])
{
	const struct wh_hello *welcome = wh_peer_welcome(peer);
	int found;

	if (!(welcome->capabilities & WH_CAPABLE_MEET)) {
		snprintf(why, WH_REFUSAL,
			 "it is in another network namespace and listens in no folder: mount one "
			 "folder into both containers, at /run/wherry or as the setting meet says");
		return -EOPNOTSUPP;
	}
	if (!shm->folders.count) {
		snprintf(why, WH_REFUSAL,
			 "it is in another network namespace, and the setting "
			 "meet is off");
		return -EOPNOTSUPP;
	}
	found = wh_meet_find(&shm->folders, welcome->socket, why);
	if (found < 0)
		return -EOPNOTSUPP;
	close(found);
	return 0;
}

/* -ENXIO: shm does not apply to such a peer. -EOPNOTSUPP: it would, and is worth a report. */
static int peer_check_place(const struct wh_shm *shm, struct wh_peer *peer, char why[WH_REFUSAL])
{
	const struct wh_hello *welcome = wh_peer_welcome(peer);
	enum wh_nearness near = wh_engine_nearness(shm->engine, welcome);
	char there[33];

	if (wh_peer_is_self(peer)) {
		snprintf(why, WH_REFUSAL, "%.63s is this engine itself, not another process",
			 wh_engine_name(shm->engine));
		return -ENXIO;
	}
	if (near == WH_ELSEWHERE) {
		host_text(there, welcome->host);
		snprintf(why, WH_REFUSAL, "another machine: %.63s is on %s", wh_peer_name(peer),
			 there);
		return -ENXIO;
	}
	if (!welcome->socket[0]) {
		snprintf(why, WH_REFUSAL,
			 "%.63s has no unix socket: shm is switched off or "
			 "could not be opened there",
			 wh_peer_name(peer));
		return -EOPNOTSUPP;
	}
	/* Nothing else that the peer might name, such as the socket of another program. */
	if (!wh_meet_name_valid(welcome->socket)) {
		snprintf(why, WH_REFUSAL,
			 "%.63s names its unix socket otherwise than an engine does",
			 wh_peer_name(peer));
		return -EOPNOTSUPP;
	}
	return near == WH_SAME_NETWORK ? 0 : peer_find_place(shm, peer, why);
}

static int shm_peer_open(struct wh_peer *peer, void **state, char why[WH_REFUSAL])
{
	struct wh_engine *engine = wh_peer_engine(peer);
	struct wh_shm *here = wh_engine_transport(engine, WH_TRANSPORT_SHM);
	struct wh_shm_peer *shm;
	int error = peer_check_place(here, peer, why);

	if (error)
		return error;
	shm = calloc(1, sizeof(*shm));
	if (!shm) {
		snprintf(why, WH_REFUSAL, "no memory");
		return -ENOMEM;
	}
	shm->shm = here;
	shm->peer = peer;
	shm->copy.copier = &shm->shm->copier;
	shm->copy.entries = wh_peer_regions(peer);
	shm->copy.ops = &shm_copy;
	shm->copy.at_once = (uint64_t)wh_engine_config(engine)->number[WH_SETTING_INLINE];
	shm->files.copier = &shm->shm->files;
	shm->files.entries = wh_peer_regions(peer);
	shm->files.ops = &shm_copy_files;
	pthread_mutex_init(&shm->lock, NULL);
	pthread_mutex_init(&shm->vm_lock, NULL);
	pthread_mutex_init(&shm->maps_lock, NULL);
	wh_list_init(&shm->memories);
	shm->fd = shm->pidfd = -1;
	atomic_init(&shm->line, -1);
	*state = shm;
	return 0;
}

static void shm_peer_close(struct wh_peer *peer, void *state)
{
	struct wh_shm_peer *shm = state;

	(void)peer;
	wh_shm_disconnect(shm);
	if (shm->pidfd >= 0)
		close(shm->pidfd);
	if (atomic_load(&shm->line) >= 0)
		close(atomic_load(&shm->line));
	if (shm->alive)
		munmap((void *)shm->alive, shm->alive_length);
	pthread_mutex_destroy(&shm->lock);
	pthread_mutex_destroy(&shm->vm_lock);
	pthread_mutex_destroy(&shm->maps_lock);
	free(shm);
}

static void shm_peer_lost(struct wh_peer *peer, void *state, int error, const char *text)
{
	struct wh_shm_peer *shm = state;

	(void)peer;
	wh_copier_lost(&shm->copy, error, text);
	wh_copier_lost(&shm->files, error, text);
}

/* The same engine, over a new control connection, so with a new session there. Mappings stay. The
 * next thread that needs the unix socket connects anew; this one must not wait for the lock. */
static int shm_peer_again(struct wh_peer *peer, void *state, char why[WH_REFUSAL])
{
	struct wh_shm_peer *shm = state;
	int64_t timeout =
		wh_engine_config(wh_peer_engine(peer))->number[WH_SETTING_TIMEOUT] * WH_MS;

	/* The owner does not say which regions went meanwhile, and mappings may show them. */
	if (wh_shm_region_going(peer, state, 0, UINT64_MAX, wh_deadline(timeout / 2))) {
		snprintf(why, WH_REFUSAL, "memory that was mapped before is still being copied");
		return -EBUSY;
	}
	atomic_fetch_add(&shm->current, 1);
	wh_copier_again(&shm->copy);
	wh_copier_again(&shm->files);
	return 0;
}

static void shm_submit(struct wh_peer *peer, void *state, struct wh_fragment *fragment)
{
	struct wh_shm_peer *shm = state;
	struct wh_file_system *system = wh_engine_file_threads(wh_peer_engine(peer)) ?
						wh_fragment_file_system(fragment, NULL) :
						NULL;

	wh_copier_job(fragment)->system = system;
	wh_copier_submit(system ? &shm->files : &shm->copy, fragment);
}

static void shm_progress(struct wh_peer *peer, void *state, struct wh_batch *batch,
			 int64_t deadline)
{
	(void)peer;
	wh_copier_progress(state, batch, deadline);
}

static void shm_cancel(struct wh_peer *peer, void *state, struct wh_fragment *fragment)
{
	struct wh_shm_peer *shm = state;

	(void)peer;
	wh_copier_cancel(wh_copier_job(fragment)->system ? &shm->files : &shm->copy, fragment);
}

/* How the fragments' regions are reached. */
struct shm_routes {
	bool mapped, process_vm, files;
	char refused[WH_REFUSAL]; /* why the first unmapped region is not mapped */
};

/* A region that is gone by now is skipped. */
static void fragment_routes(struct wh_peer *peer, struct wh_shm_peer *shm,
			    const struct wh_fragment *fragment, struct shm_routes *routes)
{
	uint64_t last = 0;

	routes->files |= wh_fragment_has_file(fragment, NULL);
	for (uint64_t i = fragment->first; i < fragment->first + fragment->count; i++) {
		uint64_t id = wh_fragment_remote(fragment, i);
		struct wh_region_entry *entry =
			id == last ? NULL : wh_region_entry_enter(wh_peer_regions(peer), id);

		last = id;
		if (!entry)
			continue;
		if (wh_shm_mapped_at(entry, fragment->op)) {
			routes->mapped = true;
		} else {
			routes->process_vm = true;
			if (!*routes->refused)
				wh_shm_refused(shm,
					       wh_container(entry, struct wh_remote_region, entry),
					       fragment->op, routes->refused);
		}
		wh_region_entry_leave(entry);
	}
}

static struct shm_routes batch_routes(struct wh_peer *peer, void *state,
				      const struct wh_batch *batch)
{
	const struct wh_fragment *fragment = NULL;
	struct shm_routes routes = { .mapped = false };

	while ((fragment = wh_batch_fragment(batch, WH_TRANSPORT_SHM, fragment)))
		fragment_routes(peer, state, fragment, &routes);
	return routes;
}

static void shm_describe(struct wh_peer *peer, void *state, const struct wh_batch *batch,
			 struct wh_description *out)
{
	struct shm_routes routes = batch_routes(peer, state, batch);

	snprintf(out->how, sizeof(out->how), "%s%s%s%s", routes.files ? "file, " : "",
		 routes.mapped ? "mapped memfd" : "",
		 routes.mapped && routes.process_vm ? " and " : "",
		 routes.process_vm ? "process_vm" : "");
	/* A mapping would have been faster, had the region been allocated or published
	 * differently. */
	if (*routes.refused)
		snprintf(out->memory, sizeof(out->memory),
			 "shm: a region of %s is copied by process_vm and not mapped: %s",
			 wh_peer_name(peer), routes.refused);
}

/* ---- engine -------------------------------------------------------------------------------- */

static int shm_engine_open(struct wh_engine *engine, void **state)
{
	struct wh_shm *shm = calloc(1, sizeof(*shm));
	int error;

	if (!shm)
		return wh_fail(ENOMEM, "shm: no memory");
	shm->engine = engine;
	wh_meet_folders(wh_engine_config(engine)->text[WH_SETTING_MEET], &shm->folders);
	wh_copier_init(&shm->copier, wh_engine_turns(engine),
		       (unsigned)wh_engine_config(engine)->number[WH_SETTING_COPY_THREADS],
		       (uint64_t)wh_engine_config(engine)->number[WH_SETTING_COPY_FROM]);
	wh_copier_init_files(&shm->files, wh_engine_turns(engine),
			     (unsigned)wh_engine_config(engine)->number[WH_SETTING_FILE_THREADS]);
	error = wh_shm_alive_open(shm);
	if (error) {
		wh_copier_destroy(&shm->copier);
		wh_copier_destroy(&shm->files);
		free(shm);
		return error;
	}
	*state = shm;
	return 0;
}

static void shm_engine_close(struct wh_engine *engine, void *state)
{
	struct wh_shm *shm = state;

	(void)engine;
	wh_copier_destroy(&shm->copier);
	wh_copier_destroy(&shm->files);
	wh_shm_alive_close(shm);
	free(shm);
}

/* ---- preparing ----------------------------------------------------------------------------- */

/* Fill this process's page table for the mapping of a region, which otherwise the first copy does,
 * fault by fault, which takes longer than the copy. In pieces, so that the owner can take the
 * region back meanwhile. Linux before 5.14 does not know the advice; then the first copy does it.
 */
static void region_populate(struct wh_shm_peer *shm, uint64_t id, uint32_t op)
{
	uint64_t length = 1;

	for (uint64_t done = 0; done < length; done += POPULATE_PIECE) {
		struct wh_region_entry *entry = wh_region_entry_pin(shm->copy.entries, id);
		uintptr_t map, offset = (uintptr_t)sysconf(_SC_PAGESIZE) - 1;
		uint64_t piece;

		if (!entry)
			return;
		length = entry->length;
		piece = length - done < POPULATE_PIECE ? length - done : POPULATE_PIECE;
		map = (uintptr_t)wh_shm_mapped_at(entry, op);
		if (map)
			madvise((void *)((map + done) & ~offset), piece + ((map + done) & offset),
				MADV_POPULATE_READ);
		wh_region_entry_unpin(entry);
		if (!map)
			return;
	}
}

static int shm_prepare(struct wh_peer *peer, void *state, const struct wh_batch *batch,
		       int64_t deadline, char why[WH_REFUSAL])
{
	const struct wh_fragment *fragment = NULL;
	struct wh_shm_peer *shm = state;
	uint64_t last = 0, remote;

	(void)peer;
	(void)why;
	while ((fragment = wh_batch_fragment(batch, WH_TRANSPORT_SHM, fragment))) {
		for (uint64_t k = 0; k < fragment->count && wh_now() < deadline; k++) {
			remote = wh_fragment_remote(fragment, fragment->first + k);
			if (remote != last)
				region_populate(shm, remote, fragment->op);
			last = remote;
		}
	}
	return 0;
}

const struct wh_transport wh_transport_shm = {
	.name = "shm",
	.capabilities = WH_CAN_READ | WH_CAN_WRITE | WH_CAN_ACCEPT | WH_CAN_PROGRESS,
	.role = WH_ROLE_LOCAL,
	.hello = WH_CAPABLE_LEND,
	.engine_open = shm_engine_open,
	.engine_close = shm_engine_close,
	.peer_open = shm_peer_open,
	.peer_close = shm_peer_close,
	.peer_lost = shm_peer_lost,
	.peer_again = shm_peer_again,
	.region_came = wh_shm_region_came,
	.region_going = wh_shm_region_going,
	.region_gone = wh_shm_region_gone,
	.is_reachable = wh_shm_is_reachable,
	.prepare = shm_prepare,
	.submit = shm_submit,
	.progress = shm_progress,
	.cancel = shm_cancel,
	.describe = shm_describe,
	.session_accept = wh_shm_session_accept,
	.session_ending = wh_shm_session_ending,
	.session_close = wh_shm_session_close,
};
