/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport/shm/shm.c: the initiator's connection to the owner, and the transport's table
 */
#include "transport/shm/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "memory/memory.h"
#include "memory/region-table.h"
#include "memory/region.h"
#include "net/handshake.h"
#include "net/meet.h"
#include "platform/owner.h"
#include "transport/blocks.h"
#include "transport/copier-file.h"
#include "transport/core.h"
#include "transport/fragment.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/config.h"
#include "util/error.h"
#include "util/list.h"
#include "util/turns.h"
#include "wire/bytes.h"
#include "wire/wire.h"

/* A healthy owner answers at once. */
#define ANSWER_TIMEOUT WH_SECOND
/* How long to wait after a failed connection before the next attempt. */
#define RETRY_AFTER (5 * WH_SECOND)
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

bool wh_shm_owner_lives(const struct wh_shm_peer *shm)
{
	return atomic_load(shm->alive) == shm->owner &&
	       (shm->owner != WH_ALIVE_NO_THREAD || owner_hangs_on(shm));
}

/* An owner without threads: watch the new connection instead of the one before. Others may be
 * polling its number, so it stays the same. */
static int peer_watch_line(struct wh_shm_peer *shm)
{
	int line = atomic_load(&shm->line);

	if (shm->owner != WH_ALIVE_NO_THREAD)
		return 0;
	if (line >= 0)
		line = dup3(shm->fd, line, O_CLOEXEC);
	else
		line = fcntl(shm->fd, F_DUPFD_CLOEXEC, 0);
	if (line < 0)
		return wh_shm_fail(shm, -errno, "duplicating the peer's unix socket");
	atomic_store(&shm->line, line);
	return 0;
}

/* Leaving the region has ordered all copies before this load of the alive page. */
static void peer_verify(const struct wh_shm_peer *shm, struct wh_fragment *fragment)
{
	if (!wh_shm_owner_lives(shm))
		wh_fragment_fail(fragment, UINT64_MAX, -ECONNRESET, "%s has %s",
				 wh_peer_name(shm->peer),
				 atomic_load(shm->alive) ? "died" : "closed its engine");
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

/* ---- receiving ----------------------------------------------------------------------------- */

/* How often an engine without threads looks for an answer. */
#define ANSWER_PAUSE (WH_MS / 20)

/* Receive exactly `length` bytes by the deadline, and a descriptor to *fd if that is -1. */
static int socket_receive(int socket, void *out, size_t length, int *fd, int64_t deadline,
			  struct wh_turns *turns)
{
	/* The owner may be waiting for an answer of ours. */
	char *at = out;

	while (length) {
		ssize_t got = wh_shm_receive(socket, at, length, fd, turns ? MSG_DONTWAIT : 0);

		if (got < 0 && errno == EAGAIN && turns)
			wh_turns_pause(turns, ANSWER_PAUSE);
		else if (got < 0 && errno != EINTR)
			return errno == EAGAIN ? -ETIMEDOUT : -errno;
		if (!got)
			return -ECONNRESET;
		if (got > 0) {
			at += got;
			length -= (size_t)got;
		}
		if (length && wh_now() > deadline)
			return -ETIMEDOUT;
	}
	return 0;
}

int wh_shm_receive_frame(const struct wh_shm_peer *shm, struct wh_frame *frame, void *out,
			 size_t room, int *fd)
{
	struct wh_turns *turns = wh_engine_turns(wh_peer_engine(shm->peer));
	int64_t deadline = wh_deadline(ANSWER_TIMEOUT);
	uint8_t header[WH_FRAME_HEADER];
	int error = socket_receive(shm->fd, header, sizeof(header), fd, deadline, turns);

	if (!error)
		error = wh_frame_decode(header, frame);
	if (!error && frame->length > room)
		error = -EPROTO;
	return error ? error : socket_receive(shm->fd, out, frame->length, fd, deadline, turns);
}

/* ---- connecting; under shm.lock ------------------------------------------------------------ */

void wh_shm_disconnect(struct wh_shm_peer *shm)
{
	if (shm->fd >= 0)
		close(shm->fd);
	shm->fd = -1;
}

int wh_shm_fail(struct wh_shm_peer *shm, int error, const char *what)
{
	snprintf(shm->why, sizeof(shm->why), "%s: %s", what,
		 error == -ETIMEDOUT ? "no answer within 1 s" : strerror(-error));
	return error;
}

int wh_shm_fail_disconnect(struct wh_shm_peer *shm, int error, const char *what)
{
	wh_shm_disconnect(shm);
	shm->retry_at = wh_now() + RETRY_AFTER;
	return wh_shm_fail(shm, error, what);
}

/* Within the network namespace. */
static int peer_dial_abstract(int socket, const char *name)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	/* The first byte stays 0: the name is abstract. */
	memcpy(address.sun_path + 1, name, strlen(name));
	return connect(socket, (struct sockaddr *)&address,
		       (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name))) ?
		       -errno :
		       0;
}

/* In a folder that both mount. A sandbox may forbid abstract sockets also within the namespace. */
static int peer_dial_path(struct wh_shm_peer *shm, const char *name)
{
	int found = wh_meet_find(&shm->shm->folders, name, shm->why), error;

	if (found < 0)
		return found;
	error = wh_meet_connect(shm->fd, found);
	close(found);
	return error ? wh_shm_fail(shm, error == -EAGAIN ? -ETIMEDOUT : error,
				   "connecting to the peer's unix socket in a shared folder") :
		       0;
}

/* Does the owner's process belong to this user, or to root, whoever else proves the key? */
static int peer_check_user(struct wh_shm_peer *shm)
{
	uid_t user;
	int error = wh_unix_owner(shm->fd, &user);

	if (error == -EACCES)
		snprintf(shm->why, sizeof(shm->why),
			 "the peer's unix socket belongs to user %u, this process to user %u",
			 (unsigned)user, (unsigned)geteuid());
	else if (error == -EOVERFLOW)
		snprintf(shm->why, sizeof(shm->why),
			 "the peer is in a user namespace whose users have no number here: run "
			 "both in one (hostUsers: true), or with the same mapping");
	else if (error)
		wh_shm_fail(shm, error, "SO_PEERCRED");
	return error;
}

static int peer_dial(struct wh_shm_peer *shm)
{
	const struct wh_hello *welcome = wh_peer_welcome(shm->peer);
	struct timeval patience = { .tv_sec = ANSWER_TIMEOUT / WH_SECOND };
	bool inside = wh_engine_nearness(shm->shm->engine, welcome) == WH_SAME_NETWORK;
	int error = -ENOENT;

	shm->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (shm->fd < 0)
		return wh_shm_fail(shm, -errno, "socket");
	setsockopt(shm->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(shm->fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	if (inside)
		error = peer_dial_abstract(shm->fd, welcome->socket);
	if (inside && error && !(welcome->capabilities & WH_CAPABLE_MEET))
		return wh_shm_fail(shm, error == -EAGAIN ? -ETIMEDOUT : error,
				   "connecting to the peer's unix socket");
	if (error)
		error = peer_dial_path(shm, welcome->socket);
	if (!error)
		error = peer_check_user(shm);
	if (!error && shm->pidfd < 0 && atomic_load(&shm->vm) == WH_VM_UNKNOWN)
		wh_shm_vm_meet(shm);
	return error;
}

int wh_shm_check_file(int fd, uint64_t least)
{
	struct stat file;
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &file) || file.st_size < 0 ||
	    (uint64_t)file.st_size < least)
		return -EPROTO;
	return 0;
}

static int peer_map_alive(struct wh_shm_peer *shm, int fd)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uint32_t owner;
	void *map;

	if (fd < 0 || wh_shm_check_file(fd, page))
		return wh_shm_fail(shm, -EPROTO, "the peer's alive page");
	map = mmap(NULL, page, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return wh_shm_fail(shm, -errno, "mapping the peer's alive page");
	owner = atomic_load((const _Atomic uint32_t *)map);
	if (!owner || owner & 0xc0000000u) { /* FUTEX_OWNER_DIED, FUTEX_WAITERS */
		munmap(map, page);
		return wh_shm_fail(shm, -ECONNRESET,
				   "the peer's alive page: its process has ended");
	}
	madvise(map, page, MADV_DONTFORK);
	shm->alive = map;
	shm->owner = owner;
	return 0;
}

/* Receive a frame of this type, and its descriptor. The owner may send a refusal instead. */
static int handshake_receive(struct wh_shm_peer *shm, enum wh_frame_type type,
			     struct wh_greeting *out, int *fd)
{
	char text[WH_REFUSAL_MAX];
	struct wh_frame frame;
	int error, refused;

	error = wh_shm_receive_frame(shm, &frame, out->bytes, sizeof(out->bytes), fd);
	if (!error && frame.type == WH_FRAME_REFUSED &&
	    !wh_refusal_decode(out->bytes, frame.length, &refused, text)) {
		snprintf(shm->why, sizeof(shm->why), "the peer refuses: %.150s", text);
		return -EACCES;
	}
	if (!error && frame.type != type)
		error = -EPROTO;
	out->length = frame.length;
	return error ? wh_shm_fail(shm, error, "the handshake on the peer's unix socket") : 0;
}

static int peer_shake_hands(struct wh_shm_peer *shm)
{
	struct wh_greeting hello, welcome;
	uint8_t proof[WH_PROVE_SIZE];
	int fd = -1, error = wh_peer_hello(shm->peer, WH_ROLE_LOCAL, 0, &hello);

	if (!error)
		error = wh_shm_send(shm->fd, hello.bytes, hello.length, -1, 0);
	if (error)
		return wh_shm_fail(shm, error, "greeting the peer");
	error = handshake_receive(shm, WH_FRAME_WELCOME, &welcome, &fd);
	if (error)
		goto out;
	error = wh_peer_prove(shm->peer, WH_ROLE_LOCAL, shm->fd, NULL, &hello, welcome.bytes,
			      welcome.length, proof);
	if (!error)
		error = wh_shm_send(shm->fd, proof, sizeof(proof), -1, 0);
	if (error) {
		wh_shm_fail(shm, error, "authentication failed on the peer's unix socket");
		goto out;
	}
	error = handshake_receive(shm, WH_FRAME_ALIVE, &welcome, &fd);
	/* The peer's epoch is still the same, so is its alive page: map it once. */
	if (!error && !shm->alive)
		error = peer_map_alive(shm, fd);
	if (!error)
		error = peer_watch_line(shm);
out:
	if (fd >= 0)
		close(fd);
	return error;
}

int wh_shm_connect(struct wh_shm_peer *shm)
{
	unsigned current = atomic_load(&shm->current);
	int error;

	if (shm->fd >= 0 && shm->generation == current)
		return 0;
	wh_shm_disconnect(shm);
	if (shm->retry_at && shm->generation == current && wh_now() < shm->retry_at)
		return -EAGAIN;
	if (wh_plan_how() != WH_PLAN_WAITS)
		return wh_shm_fail(shm, -EINPROGRESS, "connecting to the peer's unix socket");
	shm->generation = current;
	error = peer_dial(shm);
	if (!error)
		error = peer_shake_hands(shm);
	if (!error) {
		shm->retry_at = 0;
		return 0;
	}
	wh_shm_disconnect(shm);
	shm->retry_at = wh_now() + RETRY_AFTER;
	return error;
}

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
		munmap((void *)shm->alive, (size_t)sysconf(_SC_PAGESIZE));
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
	.session_close = wh_shm_session_close,
};
