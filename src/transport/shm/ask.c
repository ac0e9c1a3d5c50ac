/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport/shm/ask.c: the initiator's connection to the owner's unix socket: meeting, asking
 *
 * No plan waits for an owner that does not answer. What has been sent stays open: the plan is made
 * again (core/deferred.h), and finds the answer then. Only while an answer has just been asked for
 * a plan lingers: a healthy owner answers sooner than a plan is made again, and thousands of
 * regions may have to be asked for. One question is open at a time. Everything is called under
 * shm.lock.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "net/handshake.h"
#include "net/meet.h"
#include "platform/owner.h"
#include "transport/core.h"
#include "transport/shm/shm.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/turns.h"
#include "wire/wire.h"

/* A healthy owner answers at once. */
#define ANSWER_TIMEOUT WH_SECOND
/* How long a plan waits for an answer. */
#define LINGER (2 * WH_MS)
/* How often an engine without threads looks for an answer. */
#define ANSWER_PAUSE (WH_MS / 20)
/* How long an answer is kept for the plan that has asked, which is made again sooner. */
#define ANSWER_KEPT (200 * WH_MS)
/* How long to wait after a failed connection before the next attempt. */
#define RETRY_AFTER (5 * WH_SECOND)

/* ---- receiving ----------------------------------------------------------------------------- */

/* Sleep until the owner has sent something, at most until `until`. Without threads the owner may be
 * waiting for this engine: give turns. */
static void socket_wait(const struct wh_shm_peer *shm, int64_t until)
{
	struct wh_turns *turns = wh_engine_turns(wh_peer_engine(shm->peer));
	struct pollfd look = { .fd = shm->fd, .events = POLLIN };

	if (turns)
		wh_turns_pause(turns, ANSWER_PAUSE);
	else
		poll(&look, 1, (int)((until - wh_now()) / WH_MS) + 1);
}

/* Receive exactly `length` bytes by the deadline, and a descriptor to *fd if that is -1. */
static int socket_receive(const struct wh_shm_peer *shm, void *out, size_t length, int *fd,
			  int64_t deadline)
{
	char *at = out;

	while (length) {
		ssize_t got = wh_shm_receive(shm->fd, at, length, fd, MSG_DONTWAIT);

		if (got < 0 && errno != EAGAIN && errno != EINTR)
			return -errno;
		if (!got)
			return -ECONNRESET;
		if (got > 0) {
			at += got;
			length -= (size_t)got;
			continue;
		}
		if (wh_now() > deadline)
			return -ETIMEDOUT;
		socket_wait(shm, deadline);
	}
	return 0;
}

int wh_shm_receive_frame(struct wh_shm_peer *shm, struct wh_frame *frame, void *out, size_t room,
			 int *fd)
{
	int64_t deadline = wh_deadline(ANSWER_TIMEOUT);
	uint8_t header[WH_FRAME_HEADER];
	int error = socket_receive(shm, header, sizeof(header), fd, deadline);

	shm->question.kind = WH_SHM_ASK_NOTHING;
	if (!error)
		error = wh_frame_decode(header, frame);
	if (!error && frame->length > room)
		error = -EPROTO;
	return error ? error : socket_receive(shm, out, frame->length, fd, deadline);
}

/* Has the owner sent what follows shm.asked_at? Frames are sent whole, so it need not be waited for
 * then. 0, -EINPROGRESS or -ETIMEDOUT. */
static int answer_await(const struct wh_shm_peer *shm)
{
	int64_t limit = shm->asked_at + ANSWER_TIMEOUT, until = limit, now;
	struct pollfd look = { .fd = shm->fd, .events = POLLIN };

	if (wh_plan_how() != WH_PLAN_WAITS)
		until = shm->asked_at + LINGER;
	for (;;) {
		if (poll(&look, 1, 0) > 0)
			return 0;
		now = wh_now();
		if (now >= limit)
			return -ETIMEDOUT;
		if (now >= until)
			return -EINPROGRESS;
		socket_wait(shm, until);
	}
}

/* ---- connecting ---------------------------------------------------------------------------- */

void wh_shm_disconnect(struct wh_shm_peer *shm)
{
	if (shm->fd >= 0)
		close(shm->fd);
	shm->fd = -1;
	shm->step = WH_SHM_APART;
	shm->question.kind = WH_SHM_ASK_NOTHING;
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

/* -EINPROGRESS: the owner accepts nobody now; dial again. */
static int dial_fail(struct wh_shm_peer *shm, int error, const char *what)
{
	if (error != -EAGAIN)
		return wh_shm_fail(shm, error, what);
	if (!shm->dialed_at)
		shm->dialed_at = wh_now();
	return wh_shm_fail(
		shm, wh_now() - shm->dialed_at < ANSWER_TIMEOUT ? -EINPROGRESS : -ETIMEDOUT, what);
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
	return error ? dial_fail(shm, error,
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
	bool inside = wh_engine_nearness(shm->shm->engine, welcome) == WH_SAME_NETWORK;
	int error = -ENOENT;

	shm->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (shm->fd < 0)
		return wh_shm_fail(shm, -errno, "socket");
	if (inside)
		error = peer_dial_abstract(shm->fd, welcome->socket);
	if (inside && error && !(welcome->capabilities & WH_CAPABLE_MEET))
		return dial_fail(shm, error, "connecting to the peer's unix socket");
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

static int peer_map_alive(struct wh_shm_peer *shm, int fd, size_t length)
{
	uint32_t owner;
	void *map;

	if (fd < 0 || wh_shm_check_file(fd, length))
		return wh_shm_fail(shm, -EPROTO, "the peer's alive page");
	map = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return wh_shm_fail(shm, -errno, "mapping the peer's alive page");
	owner = atomic_load((const _Atomic uint32_t *)map);
	if (!owner || owner & 0xc0000000u) { /* FUTEX_OWNER_DIED, FUTEX_WAITERS */
		munmap(map, length);
		return wh_shm_fail(shm, -ECONNRESET,
				   "the peer's alive page: its process has ended");
	}
	madvise(map, length, MADV_DONTFORK);
	shm->alive = map;
	shm->alive_length = length;
	shm->owner = owner;
	return 0;
}

#define SHAKING "the handshake on the peer's unix socket"

static int handshake_await(struct wh_shm_peer *shm)
{
	int error = answer_await(shm);

	return error ? wh_shm_fail(shm, error, SHAKING) : 0;
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
	return error ? wh_shm_fail(shm, error, SHAKING) : 0;
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

static int peer_greet(struct wh_shm_peer *shm)
{
	int error = wh_peer_hello(shm->peer, WH_ROLE_LOCAL, 0, &shm->hello);

	if (!error)
		error = wh_shm_send(shm->fd, shm->hello.bytes, shm->hello.length, -1, 0);
	if (error)
		return wh_shm_fail(shm, error, "greeting the peer");
	shm->asked_at = wh_now();
	shm->step = WH_SHM_GREETED;
	return 0;
}

static int peer_prove(struct wh_shm_peer *shm)
{
	struct wh_greeting welcome;
	uint8_t proof[WH_PROVE_SIZE];
	int fd = -1, error = handshake_receive(shm, WH_FRAME_WELCOME, &welcome, &fd);

	if (fd >= 0)
		close(fd);
	if (error)
		return error;
	error = wh_peer_prove(shm->peer, WH_ROLE_LOCAL, shm->fd, NULL, &shm->hello, welcome.bytes,
			      welcome.length, proof);
	if (!error)
		error = wh_shm_send(shm->fd, proof, sizeof(proof), -1, 0);
	if (error)
		return wh_shm_fail(shm, error, "authentication failed on the peer's unix socket");
	shm->asked_at = wh_now();
	shm->step = WH_SHM_PROVED;
	return 0;
}

static int peer_take_alive(struct wh_shm_peer *shm)
{
	struct wh_greeting alive;
	struct wh_alive_word word = { 0, 0 };
	size_t length = (size_t)sysconf(_SC_PAGESIZE);
	int fd = -1, error = handshake_receive(shm, WH_FRAME_ALIVE, &alive, &fd);

	/* Owners of older versions have no words for sessions. */
	if (!error && alive.length && wh_alive_decode(alive.bytes, alive.length, &word))
		error = wh_shm_fail(shm, -EPROTO, SHAKING);
	if (word.index)
		length = WH_ALIVE_WORDS * sizeof(*shm->alive);
	/* The peer's epoch is still the same, so is its alive page: map it once. */
	if (!error && !shm->alive)
		error = peer_map_alive(shm, fd, length);
	if (!error && length > shm->alive_length)
		error = wh_shm_fail(shm, -EPROTO, SHAKING);
	if (!error)
		atomic_store(&shm->word, (uint64_t)word.index << 32 | word.value);
	if (!error)
		error = peer_watch_line(shm);
	if (!error)
		shm->step = WH_SHM_MET;
	if (fd >= 0)
		close(fd);
	return error;
}

/* Go on from where the meeting has come to. */
static int peer_meet(struct wh_shm_peer *shm)
{
	int error = 0;

	if (shm->step == WH_SHM_APART) {
		error = peer_dial(shm);
		if (!error)
			error = peer_greet(shm);
	}
	if (!error && shm->step == WH_SHM_GREETED) {
		error = handshake_await(shm);
		if (!error)
			error = peer_prove(shm);
	}
	if (!error && shm->step == WH_SHM_PROVED) {
		error = handshake_await(shm);
		if (!error)
			error = peer_take_alive(shm);
	}
	return error;
}

int wh_shm_connect(struct wh_shm_peer *shm)
{
	struct wh_turns *turns = wh_engine_turns(wh_peer_engine(shm->peer));
	unsigned current = atomic_load(&shm->current);
	int error;

	if (shm->generation != current)
		wh_shm_disconnect(shm);
	if (shm->step == WH_SHM_MET)
		return 0;
	if (shm->retry_at && shm->generation == current && wh_now() < shm->retry_at)
		return -EAGAIN;
	if (!wh_plan_may_linger())
		return wh_shm_fail(shm, -EINPROGRESS, "connecting to the peer's unix socket");
	if (shm->generation != current)
		shm->dialed_at = 0;
	shm->generation = current;
	for (;;) {
		error = peer_meet(shm);
		if (error != -EINPROGRESS)
			break;
		if (shm->step == WH_SHM_APART)
			wh_shm_disconnect(shm); /* it was not accepted */
		if (wh_plan_how() != WH_PLAN_WAITS)
			return error;
		wh_turns_pause(turns, WH_MS);
	}
	shm->dialed_at = 0;
	shm->retry_at = error ? wh_now() + RETRY_AFTER : 0;
	if (error)
		wh_shm_disconnect(shm);
	return error;
}

/* ---- asking -------------------------------------------------------------------------------- */

/* Take the answer to a question of another plan, which seems to be given up, and drop it. */
static int answer_drop(struct wh_shm_peer *shm)
{
	uint8_t bytes[WH_MAPPED_MAX];
	struct wh_frame frame;
	int error, fd = -1;

	/* There are more segments than one, or less: nobody knows when the last one has come. */
	if (shm->question.kind == WH_SHM_ASK_EXPORTS || shm->question.kind == WH_SHM_ASK_OBJECTS) {
		wh_shm_disconnect(shm);
		return wh_shm_connect(shm);
	}
	error = wh_shm_receive_frame(shm, &frame, bytes, sizeof(bytes), &fd);
	if (fd >= 0)
		close(fd);
	return error ? wh_shm_fail_disconnect(shm, error, WH_SHM_ASKING) : 0;
}

/* Another question is open. 0: not any more. */
static int question_clear(struct wh_shm_peer *shm)
{
	int error = answer_await(shm);

	if (error == -ETIMEDOUT)
		return wh_shm_fail_disconnect(shm, error, WH_SHM_ASKING);
	if (!error && !shm->question.answered_at)
		shm->question.answered_at = wh_now();
	/* Whoever asked comes back for it, but not if the batch was cancelled. */
	if (!error && wh_plan_how() != WH_PLAN_WAITS &&
	    wh_now() - shm->question.answered_at < ANSWER_KEPT)
		error = -EINPROGRESS;
	return error ? wh_shm_fail(shm, error, WH_SHM_ASKING) : answer_drop(shm);
}

static int question_send(struct wh_shm_peer *shm, enum wh_shm_ask kind, uint64_t id,
			 const void *bytes, size_t length, int fd)
{
	int error;

	pthread_mutex_lock(&shm->maps_lock);
	shm->question.removals = shm->removals;
	pthread_mutex_unlock(&shm->maps_lock);
	shm->question.arrivals = atomic_load(&shm->arrivals);
	error = wh_shm_send(shm->fd, bytes, length, fd, 0);
	if (error)
		return wh_shm_fail_disconnect(shm, error, WH_SHM_ASKING);
	shm->question.kind = kind;
	shm->question.id = id;
	shm->question.answered_at = 0;
	shm->asked_at = wh_now();
	return 0;
}

int wh_shm_ask(struct wh_shm_peer *shm, enum wh_shm_ask kind, uint64_t id, const void *bytes,
	       size_t length, int fd)
{
	bool open = shm->question.kind, same = shm->question.kind == kind && shm->question.id == id;
	int error = open && !same ? question_clear(shm) : 0;

	if (!error && !same)
		error = question_send(shm, kind, id, bytes, length, fd);
	if (error)
		return error;
	error = answer_await(shm);
	if (error == -EINPROGRESS)
		return wh_shm_fail(shm, error, WH_SHM_ASKING);
	return error ? wh_shm_fail_disconnect(shm, error, WH_SHM_ASKING) : 0;
}
