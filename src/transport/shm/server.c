/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shm, the side whose memory it is: the alive page, and descriptors of published memory for those
 * who have shaken hands. All of it on loop 0.
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
#include "net/handshake.h"
#include "net/tls.h"
#include "transport/core.h"
#include "transport/cuda/cuda.h"
#include "transport/shm/shm.h"
#include "transport/transport.h"
#include "util/error.h"
#include "util/list.h"
#include "util/loop.h"
#include "wire/bytes.h"
#include "wire/wire.h"

/* ---- the alive page ------------------------------------------------------------------------ */

/*
 * Who writes into a mapping of ours does not notice when we die: the memory stays. So it looks at a
 * word before it says done, and the kernel keeps that word: it is, for the kernel, a robust futex
 * that loop 0's thread holds. When the thread ends, whatever ended it, the kernel walks the
 * thread's robust list and ors FUTEX_OWNER_DIED into it. That costs the other side a load, and
 * comes earlier than the end of our sockets, which a forked child might even keep open.
 *
 * The list that the C library keeps for the thread is put aside meanwhile. It is for robust mutexes
 * that a thread holds when it dies, and this one takes none, unless a callback did.
 */
struct wh_alive {
	struct wh_engine *engine;
	int fd; /* sealed: nobody else can map it writable */
	size_t length;
	_Atomic uint32_t *word; /* loop 0's thread id; 0: closed */
	/* What the kernel walks. `futex_offset` is the way from an entry to its word. */
	struct robust_list_head head;
	struct robust_list entry;
	void *old_head;
	size_t old_length;
	int error;
};

/* On loop 0. */
static void arm(void *argument)
{
	struct wh_alive *alive = argument;

	alive->entry.next = &alive->head.list;
	alive->head.list.next = &alive->entry;
	alive->head.futex_offset = (long)((char *)alive->word - (char *)&alive->entry);
	alive->head.list_op_pending = NULL;
	if (syscall(SYS_get_robust_list, 0, &alive->old_head, &alive->old_length)) {
		alive->error = errno;
		return;
	}
	atomic_store(alive->word, (uint32_t)gettid());
	if (syscall(SYS_set_robust_list, &alive->head, sizeof(alive->head)))
		alive->error = errno;
}

static void disarm(void *argument)
{
	struct wh_alive *alive = argument;

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
	alive->length = (size_t)sysconf(_SC_PAGESIZE);
	alive->fd = memfd_create("wherry-alive", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (alive->fd < 0) {
		error = wh_fail(errno, "shm: memfd_create: %s", strerror(errno));
		goto err_free;
	}
	if (ftruncate(alive->fd, (off_t)alive->length)) {
		error = wh_fail(errno, "shm: a memfd of a page: ftruncate: %s", strerror(errno));
		goto err_close;
	}
	alive->word = mmap(NULL, alive->length, PROT_READ | PROT_WRITE, MAP_SHARED, alive->fd, 0);
	if (alive->word == MAP_FAILED) {
		error = wh_fail(errno, "shm: a memfd of a page: mmap: %s", strerror(errno));
		goto err_close;
	}
	madvise(alive->word, alive->length, MADV_DONTFORK);
	if (fcntl(alive->fd, F_ADD_SEALS,
		  F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)) {
		error = wh_fail(errno, "shm: sealing a memfd: %s (it takes Linux 5.1)",
				strerror(errno));
		goto err_unmap;
	}
	wh_loop_call(wh_engine_first_loop(shm->engine), arm, alive);
	if (alive->error) {
		error = wh_fail(alive->error, "shm: the kernel keeps no robust futexes: %s",
				strerror(alive->error));
		goto err_unmap;
	}
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

	wh_loop_call(wh_engine_first_loop(alive->engine), disarm, alive);
	munmap(alive->word, alive->length);
	close(alive->fd);
	free(alive);
}

/* ---- frames -------------------------------------------------------------------------------- */

size_t wh_mapped_encode(uint8_t *out, const struct wh_mapped *mapped)
{
	size_t text = strnlen(mapped->text, WH_REFUSAL - 1);
	uint8_t *at = wh_put64(out, mapped->id);

	at = wh_put32(at, (uint32_t)-mapped->error);
	at = wh_put64(at, mapped->memory);
	at = wh_put32(at, mapped->rights);
	at = wh_put64(at, mapped->offset);
	at = wh_put64(at, mapped->length);
	at = wh_put64(at, mapped->whole);
	at = wh_put_bytes(at, mapped->text, text);
	return (size_t)(at - out);
}

int wh_mapped_decode(const uint8_t *in, size_t length, struct wh_mapped *mapped)
{
	struct wh_bytes bytes = { .at = in, .end = in + length };
	struct wh_mapped got = { 0 };
	uint32_t error;
	size_t text;

	got.id = wh_take64(&bytes);
	error = wh_take32(&bytes);
	got.memory = wh_take64(&bytes);
	got.rights = wh_take32(&bytes);
	got.offset = wh_take64(&bytes);
	got.length = wh_take64(&bytes);
	got.whole = wh_take64(&bytes);
	text = (size_t)(bytes.end - bytes.at);
	if (bytes.cut || error > 4095 || text >= WH_REFUSAL)
		return -EPROTO;
	got.error = -(int)error;
	if (!error &&
	    (!got.memory || !got.length ||
	     (got.rights != WH_ACCESS_READ && got.rights != (WH_ACCESS_READ | WH_ACCESS_WRITE))))
		return -EPROTO;
	wh_take_text(&bytes, got.text, text);
	if (bytes.cut)
		return -EPROTO;
	*mapped = got;
	return 0;
}

int wh_shm_send(int socket, const void *bytes, size_t length, int fd, int flags)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec part = { (void *)bytes, length };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
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
	/* So little goes at once, or something is wrong. */
	return (size_t)sent == length ? 0 : -EPIPE;
}

/* ---- granting ------------------------------------------------------------------------------ */

/* One MAP at a time: a frame header, an id and the number of a segment. */
#define REQUEST_SIZE (WH_FRAME_HEADER + WH_MAP_SIZE)

struct connection {
	struct wh_source source;
	struct wh_session *session;
	struct wh_shm_verdicts verdicts;
	size_t length;
	uint8_t request[REQUEST_SIZE];
};

/* The region is entered, or there is none. Under engine.lock, so that no region goes between the
 * decision and its being sent: who confirms that he has let go of one is not sent what shows it. */
static int answer_host(struct connection *connection, uint64_t id,
		       const struct wh_region_entry *entry, uint8_t access)
{
	uint8_t bytes[WH_FRAME_HEADER + WH_MAPPED_MAX];
	struct wh_mapped mapped = { .id = id };
	int fd = -1, error;
	size_t length;

	if (access & WH_ACCESS_NONE) {
		mapped.error = -ENOENT;
		snprintf(mapped.text, sizeof(mapped.text), "not published any more");
	} else {
		fd = wh_shm_grant(connection->session, &connection->verdicts,
				  wh_container(entry, struct wh_region, entry), access, &mapped);
	}
	length = wh_mapped_encode(bytes + WH_FRAME_HEADER, &mapped);
	wh_frame_encode(bytes, &(struct wh_frame){ (uint32_t)length, WH_FRAME_MAPPED, 0 });
	error = wh_shm_send(connection->source.fd, bytes, WH_FRAME_HEADER + length, fd,
			    MSG_DONTWAIT);
	if (fd >= 0)
		close(fd);
	return error;
}

/* Sent from inside: whoever closes the region waits for this, and then for the peer to confirm that
 * it has let go, which has to come after. */
static int answer(struct connection *connection, uint64_t id, uint32_t segment)
{
	struct wh_engine *engine = wh_session_engine(connection->session);
	uint8_t access = WH_ACCESS_NONE;
	struct wh_region_entry *entry;
	bool host = true;
	int error = 0;

	wh_engine_hold_regions(engine);
	entry = wh_region_entry_enter(wh_engine_regions(engine), id);
	if (entry) {
		access = wh_session_access(connection->session, entry);
		/* What is refused is answered as host memory is. */
		host = wh_kind_on_host(entry->kind) || access != entry->access ||
		       access & WH_ACCESS_NONE;
	}
	if (host)
		error = answer_host(connection, id, entry, access);
	wh_engine_release_regions(engine);
	if (!host)
		error = wh_cuda_export(wh_container(entry, struct wh_region, entry), segment,
				       connection->source.fd);
	if (entry)
		wh_region_entry_leave(entry);
	return error;
}

static int request(struct connection *connection)
{
	struct wh_frame frame;

	if (wh_frame_decode(connection->request, &frame) || frame.type != WH_FRAME_MAP ||
	    frame.length != REQUEST_SIZE - WH_FRAME_HEADER)
		return -EPROTO;
	if (connection->length < REQUEST_SIZE)
		return 0;
	connection->length = 0;
	return answer(connection, wh_get64(connection->request + WH_FRAME_HEADER),
		      wh_get32(connection->request + WH_FRAME_HEADER + 8));
}

static void drop(struct connection *connection)
{
	struct wh_session *session = connection->session;

	wh_session_set_transport(session, WH_TRANSPORT_SHM, NULL);
	wh_loop_remove(wh_engine_first_loop(wh_session_engine(session)), &connection->source);
	close(connection->source.fd);
	free(connection);
}

static void ready(struct wh_source *source, uint32_t events)
{
	struct connection *connection = wh_container(source, struct connection, source);
	ssize_t got;

	(void)events;
	for (int turn = 0; turn < 64; turn++) {
		/* Descriptors that come along are not received, and so closed by the kernel. */
		got = recv(source->fd, connection->request + connection->length,
			   REQUEST_SIZE - connection->length, MSG_DONTWAIT);
		if (got < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (got > 0)
			connection->length += (size_t)got;
		if (got <= 0 || (connection->length >= WH_FRAME_HEADER && request(connection))) {
			drop(connection);
			return;
		}
	}
}

/* ---- sessions ------------------------------------------------------------------------------ */

int wh_shm_session_accept(struct wh_session *session, int fd, struct wh_tls *tls,
			  const struct wh_hello *hello)
{
	struct wh_engine *engine = wh_session_engine(session);
	struct wh_shm *shm = wh_engine_transport(engine, WH_TRANSPORT_SHM);
	struct connection *connection;
	uint8_t bytes[WH_FRAME_HEADER];
	int error;

	/* and `tls` is NULL: nobody but the kernel sees what goes over a unix socket */
	(void)hello;
	connection = calloc(1, sizeof(*connection));
	if (!connection) {
		wh_refuse(fd, tls, ENOMEM, "no memory");
		return -ENOMEM;
	}
	/* One a session: it has lost the old one, or does not need it. */
	wh_shm_session_close(session);
	connection->source.fd = fd;
	connection->source.ready = ready;
	connection->session = session;
	error = wh_loop_add(wh_engine_first_loop(engine), &connection->source, EPOLLIN);
	if (error) {
		close(fd);
		free(connection);
		return error;
	}
	wh_session_set_transport(session, WH_TRANSPORT_SHM, connection);
	/* From now on, and for good: what it has mapped outlives this connection. */
	wh_session_touches(session);
	wh_frame_encode(bytes, &(struct wh_frame){ 0, WH_FRAME_ALIVE, 0 });
	error = wh_shm_send(fd, bytes, sizeof(bytes), shm->alive->fd, MSG_DONTWAIT);
	if (error)
		drop(connection);
	return error;
}

void wh_shm_session_close(struct wh_session *session)
{
	if (wh_session_transport(session, WH_TRANSPORT_SHM))
		drop(wh_session_transport(session, WH_TRANSPORT_SHM));
}
