/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transport/shm/server.c: the owner's side of the unix socket
 *
 * Keeps the alive page, answers the MAP of an authenticated peer with a descriptor of the region's
 * memory, and takes the memory that comes with a LEND. Everything here runs on loop 0.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "memory/memory.h"
#include "memory/region-table.h"
#include "memory/region.h"
#include "net/channel.h"
#include "net/handshake.h"
#include "transport/core.h"
#include "transport/shm/shm.h"
#include "transport/transport.h"
#include "util/error.h"
#include "util/list.h"
#include "util/loop.h"
#include "wire/bytes.h"
#include "wire/wire.h"

/* ---- the alive page ------------------------------------------------------------------------ */

/*
 * A peer that writes into a mapping of our memory does not notice when this process dies, because
 * the memory stays. So the peer checks a word in the alive page before it reports success. The word
 * is a robust futex held by loop 0's thread: however that thread ends, the kernel walks its robust
 * list and sets FUTEX_OWNER_DIED in the word. The check costs the peer one load. It is also faster
 * than waiting for our sockets to close, which a forked child might even keep open.
 *
 * The words behind it belong to sessions. A peer that still believes in a session which has ended
 * here may be using memory that was unregistered since: its session's word has another value then.
 *
 * An engine without threads has no thread to hold it, and not every kernel has robust futexes
 * (emulators of processes do not: qemu-user): the word says WH_ALIVE_NO_THREAD instead, and the
 * peer asks the kernel whether this process and the unix socket are still there.
 *
 * The C library's robust list of that thread is replaced meanwhile. It would only serve robust
 * mutexes that the thread holds when it dies; only a callback of the application could take one.
 */
struct wh_alive {
	struct wh_engine *engine;
	int fd; /* sealed: no other process can map it writable */
	size_t length;
	_Atomic uint32_t *word; /* loop 0's thread id, or WH_ALIVE_NO_THREAD; 0: closed */
	uint32_t last; /* the word of a session that was handed out last */
	uint32_t number; /* the value that a session got last */
	/* The robust list for the kernel; head.futex_offset is the distance from entry to word. */
	struct robust_list_head head;
	struct robust_list entry;
	void *old_head;
	size_t old_length;
	bool armed; /* the kernel has our robust list */
};

/* On loop 0. */
static void alive_arm(void *argument)
{
	struct wh_alive *alive = argument;

	atomic_store(alive->word, WH_ALIVE_NO_THREAD);
	if (wh_engine_turns(alive->engine) ||
	    syscall(SYS_get_robust_list, 0, &alive->old_head, &alive->old_length))
		return;
	alive->entry.next = &alive->head.list;
	alive->head.list.next = &alive->entry;
	alive->head.futex_offset = (long)((char *)alive->word - (char *)&alive->entry);
	alive->head.list_op_pending = NULL;
	if (syscall(SYS_set_robust_list, &alive->head, sizeof(alive->head)))
		return;
	alive->armed = true;
	atomic_store(alive->word, (uint32_t)syscall(SYS_gettid));
}

static void alive_disarm(void *argument)
{
	struct wh_alive *alive = argument;

	if (alive->armed)
		syscall(SYS_set_robust_list, alive->old_head, alive->old_length);
	atomic_store(alive->word, 0);
}

int wh_shm_alive_open(struct wh_shm *shm)
{
	struct wh_alive *alive = calloc(1, sizeof(*alive));
	int error;

	if (!alive)
		return wh_fail(ENOMEM, "shm: no memory");
	alive->engine = shm->engine;
	alive->length = WH_ALIVE_WORDS * sizeof(*alive->word);
	alive->fd = memfd_create("wherry-alive", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (alive->fd < 0) {
		error = wh_fail(errno, "shm: memfd_create: %s", strerror(errno));
		goto err_free;
	}
	if (ftruncate(alive->fd, (off_t)alive->length)) {
		error = wh_fail(errno, "shm: a memfd of 64 KiB: ftruncate: %s", strerror(errno));
		goto err_close;
	}
	alive->word = mmap(NULL, alive->length, PROT_READ | PROT_WRITE, MAP_SHARED, alive->fd, 0);
	if (alive->word == MAP_FAILED) {
		error = wh_fail(errno, "shm: a memfd of 64 KiB: mmap: %s", strerror(errno));
		goto err_close;
	}
	madvise(alive->word, alive->length, MADV_DONTFORK);
	if (fcntl(alive->fd, F_ADD_SEALS,
		  F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)) {
		error = wh_fail(errno, "shm: sealing a memfd: %s (needs Linux 5.1)",
				strerror(errno));
		goto err_unmap;
	}
	wh_loop_call(wh_engine_first_loop(shm->engine), alive_arm, alive);
	shm->alive = alive;
	return 0;

err_unmap:
	munmap(alive->word, alive->length);
err_close:
	close(alive->fd);
err_free:
	free(alive);
	return error;
}

void wh_shm_alive_close(struct wh_shm *shm)
{
	struct wh_alive *alive = shm->alive;

	wh_loop_call(wh_engine_first_loop(alive->engine), alive_disarm, alive);
	munmap(alive->word, alive->length);
	close(alive->fd);
	free(alive);
}

/* Find a word for a session. False: they are all taken. */
static bool alive_take(struct wh_alive *alive, struct wh_alive_word *out)
{
	for (uint32_t i = 0; i < WH_ALIVE_WORDS; i++) {
		alive->last = alive->last % (WH_ALIVE_WORDS - 1) + 1;
		if (atomic_load(&alive->word[alive->last]))
			continue;
		alive->number += 1 + (alive->number == UINT32_MAX);
		*out = (struct wh_alive_word){ alive->last, alive->number };
		atomic_store(&alive->word[out->index], out->value);
		return true;
	}
	return false;
}

/* ---- frames -------------------------------------------------------------------------------- */

int wh_shm_send(int socket, const void *bytes, size_t length, int fd, int flags)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec iov = { (void *)bytes, length };
	struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t sent;

	if (fd >= 0) {
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.header), &fd, sizeof(int));
	}
	do
		sent = sendmsg(socket, &message, flags | MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	if (sent < 0)
		return errno == EAGAIN ? -ETIMEDOUT : -errno;
	/* A frame is small: the kernel takes all of it, or the connection is broken. */
	return (size_t)sent == length ? 0 : -EPIPE;
}

/* Close the descriptors that came with a message, but take one if the message has no other. False:
 * the peer has sent something else. */
static bool descriptors_take(struct msghdr *message, int *fd)
{
	bool good = true;
	int received;

	for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header;
	     header = CMSG_NXTHDR(message, header)) {
		if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
			good = false;
			continue;
		}
		for (size_t at = 0; CMSG_LEN(at + sizeof(int)) <= header->cmsg_len;
		     at += sizeof(int)) {
			memcpy(&received, CMSG_DATA(header) + at, sizeof(int));
			if (*fd < 0 && good) {
				*fd = received;
			} else {
				close(received);
				good = false;
			}
		}
	}
	/* The kernel has closed what had no room. Without a descriptor this process has none left.
	 */
	return good && (*fd < 0 || !(message->msg_flags & MSG_CTRUNC));
}

ssize_t wh_shm_receive(int socket, void *out, size_t length, int *fd, int flags)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = { out, length };
	struct msghdr message = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	ssize_t got = recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);

	if (got < 0 || descriptors_take(&message, fd))
		return got;
	errno = EPROTO;
	return -1;
}

/* ---- granting ------------------------------------------------------------------------------ */

/* A MAP: a frame header, a region's id and a segment's number. A LEND is as long. */
#define REQUEST_SIZE (WH_FRAME_HEADER + WH_MAP_SIZE)

/* The transport's state for a session. */
struct local {
	struct wh_alive_word word; /* outlives connections, as the peer's mappings do */
	struct connection *connection; /* NULL: none */
};

struct connection {
	struct wh_source source;
	struct wh_session *session;
	struct wh_shm_verdicts verdicts;
	size_t length; /* bytes of `request` that have arrived */
	uint8_t request[REQUEST_SIZE]; /* one MAP or LEND at a time */
	int fd; /* the descriptor that came with it; -1: none */
};

/* `access` is 0, or `entry` is entered. Under engine.lock, so that no region is
 * unregistered between the decision and the send: a peer that has confirmed the removal of a
 * region must not get a descriptor that still shows it. */
static int connection_answer_host(struct connection *connection, uint64_t id,
				  const struct wh_region_entry *entry, uint8_t access)
{
	uint8_t bytes[WH_FRAME_HEADER + WH_MAPPED_MAX];
	struct wh_mapped mapped = { .id = id };
	int fd = -1, error;
	size_t length;

	if (!access) {
		mapped.error = -ENOENT;
		snprintf(mapped.text, sizeof(mapped.text), "not published any more");
	} else {
		fd = wh_shm_grant(connection->session, &connection->verdicts,
				  wh_container(entry, struct wh_region, entry), access, &mapped);
	}
	if (mapped.error == -EAGAIN)
		wh_session_misses_memory(connection->session);
	length = wh_mapped_encode(bytes + WH_FRAME_HEADER, &mapped);
	wh_frame_encode(bytes, &(struct wh_frame){ (uint32_t)length, WH_FRAME_MAPPED, 0 });
	error = wh_shm_send(connection->source.fd, bytes, WH_FRAME_HEADER + length, fd,
			    MSG_DONTWAIT);
	if (fd >= 0)
		close(fd);
	return error;
}

/* Let the transport answer that exports GPU memory. The region is entered. */
static int connection_export(struct connection *connection, struct wh_region *region,
			     uint32_t segment)
{
	int error = -ENXIO;

	for (unsigned id = 0; id < WH_TRANSPORT_COUNT && error == -ENXIO; id++)
		error = wh_transport(id)->region_export(region, segment, connection->source.fd);
	return error;
}

/* The answer is sent while the region is entered. wh_region_unregister() waits for that, and only
 * then for the peer's confirmation that it has unmapped the region. */
static int connection_answer(struct connection *connection, uint64_t id, uint32_t segment)
{
	struct wh_engine *engine = wh_session_engine(connection->session);
	uint8_t access = 0;
	struct wh_region_entry *entry;
	bool host = true;
	int error = 0;

	wh_engine_hold_regions(engine);
	entry = wh_region_entry_enter(wh_engine_regions(engine), id);
	if (entry) {
		access = wh_session_access(connection->session, entry);
		/* Every refusal has the form of an answer for host memory. */
		host = wh_kind_on_host(entry->kind) || !access || access != entry->access;
		if (access)
			error = wh_session_learn(connection->session, entry);
	}
	if (host && !error)
		error = connection_answer_host(connection, id, entry, access);
	wh_engine_release_regions(engine);
	if (!host && !error)
		error = connection_export(connection, wh_container(entry, struct wh_region, entry),
					  segment);
	if (entry)
		wh_region_entry_leave(entry);
	return error;
}

static void connection_close_descriptor(struct connection *connection)
{
	if (connection->fd >= 0)
		close(connection->fd);
	connection->fd = -1;
}

static int connection_parse(struct connection *connection)
{
	const uint8_t *payload = connection->request + WH_FRAME_HEADER;
	struct wh_frame frame;
	int error;

	if (wh_frame_decode(connection->request, &frame) ||
	    (frame.type != WH_FRAME_MAP && frame.type != WH_FRAME_LEND) ||
	    frame.length != REQUEST_SIZE - WH_FRAME_HEADER)
		return -EPROTO;
	if (connection->length < REQUEST_SIZE)
		return 0;
	connection->length = 0;
	if (frame.type == WH_FRAME_MAP)
		error = connection_answer(connection, wh_get64(payload), wh_get32(payload + 8));
	else
		error = wh_shm_lend_accept(connection->session, connection->source.fd, payload,
					   connection->fd);
	connection_close_descriptor(connection);
	return error;
}

static void connection_drop(struct connection *connection)
{
	struct wh_session *session = connection->session;
	struct local *local = wh_session_transport(session, WH_TRANSPORT_SHM);

	local->connection = NULL;
	wh_loop_remove(wh_engine_first_loop(wh_session_engine(session)), &connection->source);
	close(connection->source.fd);
	connection_close_descriptor(connection);
	free(connection);
}

static void connection_ready(struct wh_source *source, uint32_t events)
{
	struct connection *connection = wh_container(source, struct connection, source);
	ssize_t got;

	(void)events;
	for (int turn = 0; turn < 64; turn++) {
		got = wh_shm_receive(source->fd, connection->request + connection->length,
				     REQUEST_SIZE - connection->length, &connection->fd,
				     MSG_DONTWAIT);
		if (got < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (got > 0)
			connection->length += (size_t)got;
		if (got <= 0 ||
		    (connection->length >= WH_FRAME_HEADER && connection_parse(connection))) {
			connection_drop(connection);
			return;
		}
	}
}

/* ---- sessions ------------------------------------------------------------------------------ */

/* The session's state, which is made with its first connection. NULL: no memory, or no word. */
static struct local *session_local(struct wh_session *session, struct wh_alive *alive)
{
	struct local *local = wh_session_transport(session, WH_TRANSPORT_SHM);

	if (local)
		return local;
	local = calloc(1, sizeof(*local));
	if (local && !alive_take(alive, &local->word)) {
		free(local);
		return NULL;
	}
	wh_session_set_transport(session, WH_TRANSPORT_SHM, local);
	return local;
}

static int connection_send_alive(const struct connection *connection, const struct local *local,
				 const struct wh_alive *alive)
{
	uint8_t bytes[WH_FRAME_HEADER + WH_ALIVE_SIZE];

	wh_frame_encode(bytes, &(struct wh_frame){ WH_ALIVE_SIZE, WH_FRAME_ALIVE, 0 });
	wh_alive_encode(bytes + WH_FRAME_HEADER, local->word);
	return wh_shm_send(connection->source.fd, bytes, sizeof(bytes), alive->fd, MSG_DONTWAIT);
}

int wh_shm_session_accept(struct wh_session *session, int fd, struct wh_channel *channel,
			  const struct wh_hello *hello)
{
	struct wh_engine *engine = wh_session_engine(session);
	struct wh_shm *shm = wh_engine_transport(engine, WH_TRANSPORT_SHM);
	struct local *local = session_local(session, shm->alive);
	struct connection *connection;
	int error;

	/* `channel` is NULL: only the kernel sees the bytes on a unix socket. */
	(void)hello;
	connection = local ? calloc(1, sizeof(*connection)) : NULL;
	if (!connection) {
		wh_refuse(fd, channel, ENOMEM, "no memory");
		return -ENOMEM;
	}
	/* A session has one connection; a new one replaces the old one. */
	if (local->connection)
		connection_drop(local->connection);
	connection->fd = -1;
	connection->source.fd = fd;
	connection->source.ready = connection_ready;
	connection->session = session;
	error = wh_loop_add(wh_engine_first_loop(engine), &connection->source, EPOLLIN);
	if (error) {
		close(fd);
		free(connection);
		return error;
	}
	local->connection = connection;
	/* Stays set: the peer's mappings outlive this connection. */
	wh_session_touches(session);
	error = connection_send_alive(connection, local, shm->alive);
	if (error)
		connection_drop(connection);
	return error;
}

/* A copy that has ended before this store is over before the region goes: it may succeed. One that
 * ends later is seen to be of a session that is over. */
void wh_shm_session_ending(struct wh_session *session)
{
	const struct wh_shm *shm =
		wh_engine_transport(wh_session_engine(session), WH_TRANSPORT_SHM);
	const struct local *local = wh_session_transport(session, WH_TRANSPORT_SHM);

	if (local)
		atomic_store(&shm->alive->word[local->word.index], 0);
}

void wh_shm_session_close(struct wh_session *session)
{
	struct local *local = wh_session_transport(session, WH_TRANSPORT_SHM);

	if (!local)
		return;
	if (local->connection)
		connection_drop(local->connection);
	wh_session_set_transport(session, WH_TRANSPORT_SHM, NULL);
	free(local);
}
