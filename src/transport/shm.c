/* SPDX-License-Identifier: Apache-2.0 */
/* shm, the side that moves the bytes: connecting to the owner, mapping its regions, copying. */
#include "transport/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/core.h"
#include "memory/memory.h"
#include "transport/cuda.h"
#include "util/clock.h"
#include "wire/bytes.h"

/* The owner answers at once or is not well. */
#define ANSWER_TIMEOUT WH_SECOND
/* All segments of a region. */
#define EXPORTS_TIMEOUT (10 * WH_SECOND)
/* The shortest that a segment of a GPU's memory can be, save the first and the last of a region. */
#define SEGMENT_LEAST 65536
/* After a connection that failed, how long to leave it alone. */
#define RETRY_AFTER (5 * WH_SECOND)

/* wh_remote_region.map_state: what the owner has said, and in the bits above, in which generation
 * of the control connection. It has to be asked again in each, for it waits only for those that it
 * has shaken hands with in this one. A mapping stays all the same. */
enum {
	UNKNOWN = 0,
	MAPPED,
	UNMAPPABLE, /* it is left to process_vm; map_refused says why */
};
#define STATE(generation, known) ((uint32_t)(generation) << 2 | (known))

static uint32_t known_of(const struct wh_remote_region *region, unsigned generation)
{
	uint32_t state = atomic_load_explicit(&region->map_state, memory_order_acquire);

	return (state ^ STATE(generation, UNKNOWN)) > 3 ? UNKNOWN : state & 3;
}

static char *shm_map(const struct wh_place *place)
{
	const struct wh_remote_region *region = (const struct wh_remote_region *)place;

	return atomic_load_explicit(&region->map, memory_order_acquire);
}

bool wh_shm_owner_lives(const struct wh_shm_peer *shm)
{
	return atomic_load(shm->alive) == shm->owner;
}

/* The copies before this have been ordered before it by leaving the place. */
static void shm_verify(struct wh_copy *copy, struct wh_piece *piece)
{
	struct wh_shm_peer *shm = (struct wh_shm_peer *)copy;

	if (!wh_shm_owner_lives(shm))
		wh_piece_fail(piece, UINT64_MAX, -ECONNRESET, "%s has %s", shm->peer->welcome.name,
			      atomic_load(shm->alive) ? "died" : "closed its engine");
}

static const struct wh_copy_ops shm_copy = {
	.map = shm_map,
	.move_far = wh_shm_vm_move,
	.refusal = wh_shm_vm_refusal,
	.verify = shm_verify,
};

/* ---- receiving ----------------------------------------------------------------------------- */

/* Exactly `length` bytes by the deadline, and a descriptor if one comes along and *fd is -1. */
static int receive(int socket, void *out, size_t length, int *fd, int64_t deadline)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	char *at = out;

	while (length) {
		struct iovec part = { at, length };
		struct msghdr message = {
			.msg_iov = &part,
			.msg_iovlen = 1,
			.msg_control = &control,
			.msg_controllen = sizeof(control),
		};
		struct cmsghdr *header;
		ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
		int came;

		header = got >= 0 ? CMSG_FIRSTHDR(&message) : NULL;
		/* There is room for one; more are cut off and closed by the kernel. */
		if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
		    header->cmsg_len == CMSG_LEN(sizeof(int))) {
			memcpy(&came, CMSG_DATA(header), sizeof(int));
			if (*fd < 0)
				*fd = came;
			else
				close(came);
		}
		if (got < 0 && errno != EINTR)
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

/* The next frame, its payload to `out`. */
static int receive_frame(int socket, struct wh_frame *frame, void *out, size_t room, int *fd)
{
	int64_t deadline = wh_deadline(ANSWER_TIMEOUT);
	uint8_t header[WH_FRAME_HEADER];
	int error = receive(socket, header, sizeof(header), fd, deadline);

	if (!error)
		error = wh_frame_decode(header, frame);
	if (!error && frame->length > room)
		error = -EPROTO;
	return error ? error : receive(socket, out, frame->length, fd, deadline);
}

/* ---- shaking hands; under shm.lock --------------------------------------------------------- */

static void hang_up(struct wh_shm_peer *shm)
{
	if (shm->fd >= 0)
		close(shm->fd);
	shm->fd = -1;
}

static int trouble(struct wh_shm_peer *shm, int error, const char *what)
{
	snprintf(shm->why, sizeof(shm->why), "%s: %s", what,
		 error == -ETIMEDOUT ? "no answer within 1 s" : strerror(-error));
	return error;
}

static int dial(struct wh_shm_peer *shm, const char *name)
{
	struct timeval patience = { .tv_sec = ANSWER_TIMEOUT / WH_SECOND };
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct ucred user;
	socklen_t length = sizeof(user);

	shm->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (shm->fd < 0)
		return trouble(shm, -errno, "socket");
	setsockopt(shm->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(shm->fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	/* The first byte is 0: an abstract name. */
	memcpy(address.sun_path + 1, name, strlen(name));
	if (connect(shm->fd, (struct sockaddr *)&address,
		    (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name))))
		return trouble(shm, errno == EAGAIN ? -ETIMEDOUT : -errno,
			       "connecting to the peer's unix socket");
	if (getsockopt(shm->fd, SOL_SOCKET, SO_PEERCRED, &user, &length))
		return trouble(shm, -errno, "SO_PEERCRED");
	if (user.uid != geteuid() && user.uid != 0) {
		snprintf(shm->why, sizeof(shm->why),
			 "the peer's unix socket belongs to user %u, this process to user %u",
			 (unsigned)user.uid, (unsigned)geteuid());
		return -EACCES;
	}
	if (shm->pidfd < 0 && atomic_load(&shm->vm) == WH_VM_UNKNOWN)
		wh_shm_vm_meet(shm, user.uid);
	return 0;
}

/* Can it be mapped without fear? A file that shrinks would be a SIGBUS for us. */
static int check_file(int fd, uint64_t least)
{
	struct stat file;
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &file) || file.st_size < 0 ||
	    (uint64_t)file.st_size < least)
		return -EPROTO;
	return 0;
}

static int map_alive(struct wh_shm_peer *shm, int fd)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uint32_t owner;
	void *map;

	if (fd < 0 || check_file(fd, page))
		return trouble(shm, -EPROTO, "the peer's alive page");
	map = mmap(NULL, page, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return trouble(shm, -errno, "mapping the peer's alive page");
	owner = atomic_load((const _Atomic uint32_t *)map);
	if (!owner || owner & 0xc0000000u) { /* FUTEX_OWNER_DIED, FUTEX_WAITERS */
		munmap(map, page);
		return trouble(shm, -ECONNRESET, "the peer's alive page says that it has ended");
	}
	madvise(map, page, MADV_DONTFORK);
	shm->alive = map;
	shm->owner = owner;
	return 0;
}

/* The frame of this type, and the descriptor that comes along; what else may come is a refusal. */
static int hear(struct wh_shm_peer *shm, enum wh_frame_type type, struct wh_greeting *out, int *fd)
{
	char text[WH_REFUSAL_MAX];
	struct wh_frame frame;
	int error, refused;

	error = receive_frame(shm->fd, &frame, out->bytes, sizeof(out->bytes), fd);
	if (!error && frame.type == WH_FRAME_REFUSED &&
	    !wh_refusal_decode(out->bytes, frame.length, &refused, text)) {
		snprintf(shm->why, sizeof(shm->why), "the peer refuses: %.150s", text);
		return -EACCES;
	}
	if (!error && frame.type != type)
		error = -EPROTO;
	out->length = frame.length;
	return error ? trouble(shm, error, "the handshake on the peer's unix socket") : 0;
}

static int shake_hands(struct wh_shm_peer *shm)
{
	struct wh_greeting hello, welcome;
	uint8_t proof[WH_PROVE_SIZE];
	int fd = -1, error = wh_peer_hello(shm->peer, WH_ROLE_SHM, 0, &hello);

	if (!error)
		error = wh_shm_send(shm->fd, hello.bytes, hello.length, -1, 0);
	if (error)
		return trouble(shm, error, "greeting the peer");
	error = hear(shm, WH_FRAME_WELCOME, &welcome, &fd);
	if (error)
		goto out;
	error = wh_peer_prove(shm->peer, WH_ROLE_SHM, shm->fd, NULL, &hello, welcome.bytes, welcome.length,
			      proof);
	if (!error)
		error = wh_shm_send(shm->fd, proof, sizeof(proof), -1, 0);
	if (error) {
		trouble(shm, error, "who has the peer's unix socket does not prove to be the peer");
		goto out;
	}
	error = hear(shm, WH_FRAME_ALIVE, &welcome, &fd);
	/* The same epoch means the same page: once is enough. */
	if (!error && !shm->alive)
		error = map_alive(shm, fd);
out:
	if (fd >= 0)
		close(fd);
	return error;
}

/* Have a connection, a new one if the control connection has broken since the last. */
static int connect_owner(struct wh_shm_peer *shm)
{
	unsigned current = atomic_load(&shm->current);
	int error;

	if (shm->fd >= 0 && shm->generation == current)
		return 0;
	hang_up(shm);
	if (shm->retry_at && shm->generation == current && wh_now() < shm->retry_at)
		return -EAGAIN;
	shm->generation = current;
	error = dial(shm, shm->peer->welcome.socket);
	if (!error)
		error = shake_hands(shm);
	if (!error) {
		shm->retry_at = 0;
		return 0;
	}
	hang_up(shm);
	shm->retry_at = wh_now() + RETRY_AFTER;
	return error;
}

/* ---- mapping; under shm.lock --------------------------------------------------------------- */

/* An answer that comes late would be taken for the next one's. */
static int ask_failed(struct wh_shm_peer *shm, int error)
{
	hang_up(shm);
	shm->retry_at = wh_now() + RETRY_AFTER;
	return trouble(shm, error, "asking the peer for a region's memory");
}

static int send_map(struct wh_shm_peer *shm, uint64_t id, uint32_t segment)
{
	uint8_t bytes[WH_FRAME_HEADER + WH_MAP_SIZE];

	wh_frame_encode(bytes, &(struct wh_frame){ WH_MAP_SIZE, WH_FRAME_MAP, 0 });
	wh_put32(wh_put64(bytes + WH_FRAME_HEADER, id), segment);
	return wh_shm_send(shm->fd, bytes, sizeof(bytes), -1, 0);
}

static int ask(struct wh_shm_peer *shm, uint64_t id, struct wh_mapped *mapped, int *fd)
{
	uint8_t bytes[WH_MAPPED_MAX];
	struct wh_frame frame;
	int error = send_map(shm, id, 0);

	if (!error)
		error = receive_frame(shm->fd, &frame, bytes, WH_MAPPED_MAX, fd);
	if (!error && (frame.type != WH_FRAME_MAPPED ||
		       wh_mapped_decode(bytes, frame.length, mapped) || mapped->id != id))
		error = -EPROTO;
	return error ? ask_failed(shm, error) : 0;
}

/* One segment of a GPU's memory. A region that has gone is answered as host memory is. */
static int hear_export(struct wh_shm_peer *shm, uint64_t id, struct wh_exported *exported, int *fd)
{
	uint8_t bytes[WH_EXPORTED_MAX > WH_MAPPED_MAX ? WH_EXPORTED_MAX : WH_MAPPED_MAX];
	struct wh_mapped mapped;
	struct wh_frame frame;
	int error = receive_frame(shm->fd, &frame, bytes, sizeof(bytes), fd);

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

static int map_region(struct wh_remote_region *region, const struct wh_mapped *mapped, int fd,
		      char why[WH_REFUSAL])
{
	/* Memory that grants only writing has to be mapped readable all the same: the processor
	 * knows no other way. */
	int rights = region->place.access & WH_ACCESS_WRITE ? PROT_READ | PROT_WRITE : PROT_READ;
	size_t length = region->place.length, page = (size_t)sysconf(_SC_PAGESIZE);
	void *base;

	if (fd < 0) {
		snprintf(why, WH_REFUSAL, "the peer's descriptor has not arrived (ulimit -n?)");
		return -EMFILE;
	}
	if (mapped->offset % page || mapped->length != length || length > INT64_MAX ||
	    mapped->offset > INT64_MAX - length || check_file(fd, mapped->offset + length)) {
		snprintf(why, WH_REFUSAL, "the peer's descriptor is not as it should be");
		return -EPROTO;
	}
	base = mmap(NULL, length, rights, MAP_SHARED, fd, (off_t)mapped->offset);
	if (base == MAP_FAILED) {
		snprintf(why, WH_REFUSAL, "mmap of %zu bytes: %s%s", length, strerror(errno),
			 errno == ENOMEM ? " (vm.max_map_count?)" : "");
		return -ENOMEM;
	}
	madvise(base, length, MADV_DONTFORK);
	region->map_base = base;
	region->map_length = length;
	atomic_store_explicit(&region->map, base, memory_order_release);
	return 0;
}

/*
 * Ask the owner for the region, once. It is asked even if there is nothing to map, for one reason:
 * its answer proves that it knew of the region and of this connection at the same time, and so it
 * will not let go of the memory before we have. 0: the region's map_state is known now.
 */
static int ask_region(struct wh_shm_peer *shm, struct wh_remote_region *region,
		      char why[WH_REFUSAL])
{
	uint64_t id = wh_place_id(&region->place);
	struct wh_mapped mapped;
	uint32_t known = MAPPED;
	int fd = -1, error;

	error = ask(shm, id, &mapped, &fd);
	if (error) {
		snprintf(why, WH_REFUSAL, "%s", shm->why);
	} else if (mapped.error == -ENOENT) {
		error = -ESTALE;
		snprintf(why, WH_REFUSAL, "region %#llx: %.120s", (unsigned long long)id,
			 mapped.text);
	} else if (!atomic_load(&region->map)) {
		if (mapped.error)
			snprintf(why, WH_REFUSAL, "%s", mapped.text);
		if (mapped.error || map_region(region, &mapped, fd, why)) {
			free(region->map_refused);
			region->map_refused = strdup(why);
			known = UNMAPPABLE;
		}
	}
	if (fd >= 0)
		close(fd);
	if (!error) {
		atomic_store_explicit(&region->map_state, STATE(shm->generation, known),
				      memory_order_release);
	}
	return error;
}

/* ---- reaching a region --------------------------------------------------------------------- */

static int reach_slowly(struct wh_shm_peer *shm, struct wh_remote_region *region,
			char why[WH_REFUSAL])
{
	char vm[WH_REFUSAL];
	int error = connect_owner(shm);

	if (error) {
		snprintf(why, WH_REFUSAL, "%s", shm->why);
		return error;
	}
	if (!wh_shm_owner_lives(shm)) {
		snprintf(why, WH_REFUSAL, "the peer has ended");
		return -ECONNRESET;
	}
	if (known_of(region, shm->generation) == UNKNOWN) {
		error = ask_region(shm, region, why);
		if (error)
			return error;
	}
	if (known_of(region, shm->generation) == MAPPED)
		return 0;
	error = wh_shm_vm_probe(shm, vm);
	if (error)
		snprintf(why, WH_REFUSAL, "%.64s; %.124s",
			 region->map_refused ? region->map_refused : "cannot be mapped", vm);
	return error;
}

int wh_shm_map(struct wh_shm_peer *shm, struct wh_remote_region *region, char why[WH_REFUSAL])
{
	int error = 0;

	pthread_mutex_lock(&shm->lock);
	if (known_of(region, atomic_load(&shm->current)) == UNKNOWN) {
		error = connect_owner(shm);
		if (error)
			snprintf(why, WH_REFUSAL, "%s", shm->why);
		else
			error = ask_region(shm, region, why);
	}
	if (!error && !atomic_load(&region->map)) {
		error = -EOPNOTSUPP;
		snprintf(why, WH_REFUSAL, "%s",
			 region->map_refused ? region->map_refused : "it cannot be mapped");
	}
	pthread_mutex_unlock(&shm->lock);
	return error;
}

bool wh_shm_asked(const struct wh_shm_peer *shm, const struct wh_remote_region *region)
{
	return known_of(region, atomic_load(&shm->current)) != UNKNOWN;
}

/* Under the lock, connected. */
static int ask_exports(struct wh_shm_peer *shm, const struct wh_remote_region *region, bool objects,
		       int (*each)(void *arg, const struct wh_exported *exported, int *fd,
				   char why[WH_REFUSAL]),
		       void *arg, char why[WH_REFUSAL])
{
	uint64_t id = wh_place_id(&region->place), most = region->place.length / SEGMENT_LEAST + 2;
	int64_t deadline = wh_deadline(EXPORTS_TIMEOUT);
	struct wh_exported exported = { .segments = 1 };
	uint32_t count = 1;
	int error, fd = -1;

	for (uint32_t index = 0; index < count; index++) {
		error = index % WH_EXPORTS ? 0 : send_map(shm, id, index | (objects ? WH_MAP_OBJECTS : 0));
		if (!error)
			error = hear_export(shm, id, &exported, &fd);
		if (!error && !exported.error &&
		    (exported.index != index || exported.segments > most ||
		     (index && exported.segments != count)))
			error = -EPROTO;
		if (!error && wh_now() > deadline)
			error = -ETIMEDOUT;
		if (error) {
			ask_failed(shm, error);
			snprintf(why, WH_REFUSAL, "%s", shm->why);
		} else if (exported.error) {
			snprintf(why, WH_REFUSAL, "%s", exported.text);
			error = exported.error;
		} else {
			count = exported.segments;
			error = each(arg, &exported, &fd, why);
			/* The rest of them is on its way already. */
			if (error)
				hang_up(shm);
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
	error = connect_owner(shm);
	if (error)
		snprintf(why, WH_REFUSAL, "%s", shm->why);
	if (!error)
		error = ask_exports(shm, region, objects, each, arg, why);
	if (!error)
		atomic_store_explicit(&region->map_state, STATE(shm->generation, UNMAPPABLE),
				      memory_order_release);
	pthread_mutex_unlock(&shm->lock);
	return error;
}

/* Called inside the region's place, so that it does not go meanwhile. */
static int shm_reach(struct wh_peer *peer, void *state, const struct wh_region *local,
		     struct wh_place *remote, uint32_t op, char why[WH_REFUSAL])
{
	struct wh_remote_region *region = wh_container(remote, struct wh_remote_region, place);
	struct wh_shm_peer *shm = state;
	uint32_t known = known_of(region, atomic_load(&shm->current));
	int error;

	(void)peer;
	(void)op;
	if (!wh_kind_on_host(local->place.kind) || !wh_kind_on_host(remote->kind)) {
		snprintf(why, WH_REFUSAL, "a GPU's memory is not for the CPU to copy");
		return -ENXIO;
	}
	if (known == MAPPED || (known == UNMAPPABLE && atomic_load(&shm->vm) == WH_VM_WORKS))
		return 0;
	pthread_mutex_lock(&shm->lock);
	error = reach_slowly(shm, region, why);
	pthread_mutex_unlock(&shm->lock);
	return error;
}

/* Nobody is inside. Must work without the transport's state for the peer. */
static void shm_region_gone(struct wh_peer *peer, void *state, struct wh_remote_region *region)
{
	(void)peer;
	(void)state;
	if (atomic_load(&region->map))
		munmap(region->map_base, region->map_length);
	free(region->map_refused);
	region->map_refused = NULL;
	region->map_base = NULL;
	region->map_length = 0;
	atomic_store(&region->map, NULL);
	atomic_store(&region->map_state, UNKNOWN);
}

/* ---- peers --------------------------------------------------------------------------------- */

static void host_text(char out[33], const uint8_t host[16])
{
	for (int i = 0; i < 16; i++)
		snprintf(out + 2 * i, 3, "%02x", host[i]);
}

static int shm_peer_open(struct wh_peer *peer, void **state, char why[WH_REFUSAL])
{
	struct wh_engine *engine = peer->engine;
	char here[33], there[33];
	struct wh_shm_peer *shm;

	if (peer->self) {
		snprintf(why, WH_REFUSAL, "%.63s is this engine itself, not another process",
			 engine->name);
		return -ENXIO;
	}
	if (memcmp(peer->welcome.host, engine->host, sizeof(engine->host))) {
		host_text(here, engine->host);
		host_text(there, peer->welcome.host);
		snprintf(why, WH_REFUSAL,
			 "another host or network namespace: this engine is on %s, %.63s on %s",
			 here, peer->welcome.name, there);
		/* The second half is the boot's alone. Another host is no surprise, another network
		 * namespace of this one may be. */
		return memcmp(peer->welcome.host + 8, engine->host + 8, 8) ? -ENXIO : -EOPNOTSUPP;
	}
	if (!peer->welcome.socket[0]) {
		snprintf(why, WH_REFUSAL, "%.63s has no unix socket: its shm is off",
			 peer->welcome.name);
		return -EOPNOTSUPP;
	}
	shm = calloc(1, sizeof(*shm));
	if (!shm) {
		snprintf(why, WH_REFUSAL, "no memory");
		return -ENOMEM;
	}
	shm->shm = engine->transport[WH_TRANSPORT_SHM];
	shm->peer = peer;
	shm->copy.copier = &shm->shm->copier;
	shm->copy.places = &peer->regions;
	shm->copy.ops = &shm_copy;
	shm->copy.at_once = (uint64_t)engine->config.number[WH_KNOB_INLINE];
	pthread_mutex_init(&shm->lock, NULL);
	pthread_mutex_init(&shm->vm_lock, NULL);
	shm->fd = shm->pidfd = -1;
	*state = shm;
	return 0;
}

static void shm_peer_close(struct wh_peer *peer, void *state)
{
	struct wh_shm_peer *shm = state;

	(void)peer;
	hang_up(shm);
	if (shm->pidfd >= 0)
		close(shm->pidfd);
	if (shm->alive)
		munmap((void *)shm->alive, (size_t)sysconf(_SC_PAGESIZE));
	pthread_mutex_destroy(&shm->lock);
	pthread_mutex_destroy(&shm->vm_lock);
	free(shm);
}

static void shm_peer_lost(struct wh_peer *peer, void *state, int error, const char *text)
{
	(void)peer;
	wh_copy_lost(state, error, text);
}

/* The same engine, over a new control connection: its session there is another. What is mapped
 * stays so. The old connection is dropped by the next who needs one: here would be no place to wait
 * for the lock. */
static int shm_peer_again(struct wh_peer *peer, void *state, char why[WH_REFUSAL])
{
	struct wh_shm_peer *shm = state;

	(void)peer;
	(void)why;
	atomic_fetch_add(&shm->current, 1);
	wh_copy_again(&shm->copy);
	return 0;
}

static void shm_submit(struct wh_peer *peer, void *state, struct wh_piece *piece)
{
	(void)peer;
	wh_copy_submit(state, piece);
}

static void shm_help(struct wh_peer *peer, void *state, struct wh_batch *batch, int64_t deadline)
{
	(void)peer;
	wh_copy_help(state, batch, deadline);
}

static void shm_cancel(struct wh_peer *peer, void *state, struct wh_piece *piece)
{
	(void)peer;
	wh_copy_cancel(state, piece);
}

/* Add to what is known of the ways of a piece; a region that has gone since says nothing. */
static void look_at(struct wh_peer *peer, const struct wh_batch *batch, const struct wh_piece *piece,
		    bool *maps, bool *vms)
{
	uint64_t last = 0;

	for (uint64_t i = piece->first; i < piece->first + piece->count; i++) {
		uint64_t id = piece->blocks ? piece->blocks->bases[i].remote : batch->items[i].remote;
		struct wh_place *place = id == last ? NULL : wh_place_enter(&peer->regions, id);

		last = id;
		if (!place)
			continue;
		*(shm_map(place) ? maps : vms) = true;
		wh_place_leave(place);
	}
}

static void shm_detail(struct wh_peer *peer, void *state, const struct wh_batch *batch, char *out,
		       size_t size)
{
	bool maps = false, vms = false;

	(void)state;
	for (size_t i = 0; i < batch->piece_count; i++)
		if (batch->pieces[i].transport == WH_TRANSPORT_SHM)
			look_at(peer, batch, &batch->pieces[i], &maps, &vms);
	snprintf(out, size, "%s%s%s", maps ? "mapped memfd" : "", maps && vms ? " and " : "",
		 vms ? "process_vm" : "");
}

/* ---- engine -------------------------------------------------------------------------------- */

static int shm_engine_open(struct wh_engine *engine, void **state)
{
	struct wh_shm *shm = calloc(1, sizeof(*shm));
	int error;

	if (!shm)
		return wh_fail(ENOMEM, "shm: no memory");
	shm->engine = engine;
	wh_copier_init(&shm->copier);
	error = wh_shm_alive_open(shm);
	if (error) {
		wh_copier_destroy(&shm->copier);
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
	wh_shm_alive_close(shm);
	free(shm);
}

const struct wh_transport wh_transport_shm = {
	.name = "shm",
	.capabilities = WH_CAN_READ | WH_CAN_WRITE | WH_CAN_ACCEPT | WH_CAN_HELP,
	.role = WH_ROLE_SHM,
	.engine_open = shm_engine_open,
	.engine_close = shm_engine_close,
	.peer_open = shm_peer_open,
	.peer_close = shm_peer_close,
	.peer_lost = shm_peer_lost,
	.peer_again = shm_peer_again,
	.region_gone = shm_region_gone,
	.reach = shm_reach,
	.submit = shm_submit,
	.help = shm_help,
	.cancel = shm_cancel,
	.detail = shm_detail,
	.session_accept = wh_shm_session_accept,
	.session_close = wh_shm_session_close,
};
