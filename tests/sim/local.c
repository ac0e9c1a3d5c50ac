/* SPDX-License-Identifier: Apache-2.0 */
/* Unix stream sockets with abstract names, between processes of one host: bytes are there at once,
 * in order, and descriptors of memfds may come with them. */
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/un.h>

#include "calls.h"
#include "world.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#define ROOM 212992 /* bytes that nobody has read; net.core.wmem_default */
#define PATIENCE_ENDLESS INT64_MAX

/* What one sendmsg() has sent. */
struct message {
	struct message *next;
	size_t length, done;
	struct shared *passed; /* NULL: no descriptor comes with it */
	uint8_t bytes[];
};

struct local {
	enum { LOCAL_FRESH, LOCAL_OPEN, LOCAL_LISTENS } state;
	int node, other; /* other: the node at the other end, as the kernel noted it */
	int references; /* descriptors, and calls that wait */
	bool waits; /* not O_NONBLOCK */
	struct local *peer; /* NULL: none, or it is closed */
	char name[sizeof(((struct sockaddr_un *)0)->sun_path)];
	struct message *head, **tail;
	size_t queued;
	bool ended; /* no bytes come any more, and none can be sent */
	int error;
	int64_t receive_patience, send_patience;
	struct local *waiting[64]; /* of a listener: to be accepted */
	int waiting_count, backlog;
	uint32_t edges;
};

static struct local **locals; /* in the order of their making */
static int local_count, local_room;

static struct local *local_new(int node)
{
	struct local *local = calloc(1, sizeof(*local));

	if (local_count == local_room)
		locals = sim_grow(locals, local_room += 64, sizeof(struct local *));
	locals[local_count++] = local;
	local->node = local->other = node;
	local->references = 1;
	local->tail = &local->head;
	local->receive_patience = local->send_patience = PATIENCE_ENDLESS;
	return local;
}

static void local_changed(struct local *local)
{
	local->edges++;
	node_changed(local->node);
}

uint32_t local_edges(const struct local *local)
{
	return local->edges;
}

void local_hold(struct local *local)
{
	local->references++;
}

static void local_drop_messages(struct local *local)
{
	struct message *message;

	while ((message = local->head)) {
		local->head = message->next;
		if (message->passed)
			shared_release(message->passed);
		free(message);
	}
	local->tail = &local->head;
	local->queued = 0;
}

/* The other end learns of it at once; bytes that it has sent and nobody read are an error there. */
static void local_hang_up(struct local *local)
{
	struct local *peer = local->peer;

	if (peer) {
		peer->error = local->queued ? ECONNRESET : 0;
		peer->ended = true;
		peer->peer = NULL;
		local_changed(peer);
	}
	local->peer = NULL;
	local->ended = true;
	local_drop_messages(local);
	for (int i = 0; i < local->waiting_count; i++)
		local_release(local->waiting[i]);
	local->waiting_count = 0;
}

void local_release(struct local *local)
{
	int at = 0;

	if (--local->references)
		return;
	local_hang_up(local);
	while (locals[at] != local)
		at++;
	memmove(locals + at, locals + at + 1, (size_t)(--local_count - at) * sizeof(*locals));
	free(local);
}

void local_crash(int node)
{
	for (int i = 0; i < local_count; i++) {
		struct local *local = locals[i];

		if (local->node != node)
			continue;
		if (local->state == LOCAL_LISTENS)
			local->state = LOCAL_FRESH;
		i = -1; /* hanging up may have removed some before it */
		local->node = -1;
		local_hang_up(local);
		local_changed(local);
	}
	node_changed(node);
}

/* ---- descriptors ----------------------------------------------------------------------------- */

static uint32_t local_events(const struct descriptor *descriptor)
{
	const struct local *local = descriptor->local;
	uint32_t events = 0;

	if (local->state == LOCAL_LISTENS)
		return local->waiting_count ? EPOLLIN : 0;
	if (local->state == LOCAL_FRESH) /* nobody comes to one that listened before a crash */
		return local->node < 0 ? 0 : EPOLLOUT | EPOLLHUP;
	if (local->queued || local->ended)
		events |= EPOLLIN;
	if (local->ended)
		events |= EPOLLRDHUP | EPOLLHUP | EPOLLOUT;
	else if (local->peer->queued < ROOM / 2)
		events |= EPOLLOUT;
	return events | (local->error ? EPOLLERR : 0);
}

static void local_close(struct descriptor *descriptor)
{
	local_release(descriptor->local);
}

const struct descriptor_kind kind_local = {
	.name = "unix socket",
	.events = local_events,
	.close = local_close,
};

static struct local *local_of(int fd)
{
	struct descriptor *descriptor = descriptor_of(fd);

	return descriptor ? descriptor->local : NULL;
}

bool descriptor_is_local(int fd)
{
	return local_of(fd);
}

/* ---- making and connecting ------------------------------------------------------------------- */

int local_socket(int type)
{
	struct descriptor *descriptor;

	if (node_lacks_descriptors())
		return (int)call_failed("socket", AF_UNIX, EMFILE);
	descriptor = descriptor_new(&kind_local);
	descriptor->local = local_new(node_self());
	descriptor->local->waits = !(type & SOCK_NONBLOCK);
	return (int)call_result("socket", AF_UNIX, descriptor->fd);
}

/* "": not an abstract name. */
static void name_read(char *out, size_t size, const struct sockaddr *address, socklen_t length)
{
	const struct sockaddr_un *local = (const void *)address;
	size_t bytes = length - offsetof(struct sockaddr_un, sun_path);

	memset(out, 0, size);
	if (bytes > 1 && bytes <= size && !local->sun_path[0])
		memcpy(out, local->sun_path + 1, bytes - 1);
}

static struct local *listener_named(const char *name, int host)
{
	for (int i = 0; i < local_count; i++)
		if (locals[i]->state == LOCAL_LISTENS && node_of(locals[i]->node)->host == host &&
		    strcmp(locals[i]->name, name) == 0)
			return locals[i];
	return NULL;
}

int local_bind(int fd, const struct sockaddr *address, socklen_t length)
{
	struct local *local = local_of(fd);
	char name[sizeof(local->name)];

	call_point("bind", (uint64_t)fd);
	name_read(name, sizeof(name), address, length);
	if (!*name)
		return (int)call_failed("bind", fd, EACCES);
	if (local->node < 0 || listener_named(name, node_of(local->node)->host))
		return (int)call_failed("bind", fd, EADDRINUSE);
	memcpy(local->name, name, sizeof(name));
	return (int)call_result("bind", fd, 0);
}

int local_listen(int fd, int backlog)
{
	struct local *local = local_of(fd);
	int most = (int)(sizeof(local->waiting) / sizeof(*local->waiting));

	call_point("listen", (uint64_t)fd);
	if (local->node >= 0)
		local->state = LOCAL_LISTENS;
	local->backlog = backlog < most ? backlog : most;
	return (int)call_result("listen", fd, 0);
}

static bool wait_for(struct local *local, bool (*ready)(const struct fiber *), size_t bytes,
		     int64_t patience, const char *why)
{
	bool in_time;

	local->references++;
	in_time = fiber_block(ready, local, (int64_t)bytes,
			      patience == PATIENCE_ENDLESS ? INT64_MAX : sim_time + patience, why);
	local->references--;
	return in_time;
}

static bool may_connect(const struct fiber *fiber)
{
	const struct local *local = fiber->on, *listener;

	if (local->node < 0)
		return true;
	listener = listener_named(local->name, node_of(local->node)->host);
	return !listener || listener->waiting_count < listener->backlog;
}

int local_connect(int fd, const struct sockaddr *address, socklen_t length)
{
	struct local *local = local_of(fd), *listener, *other;
	struct fiber probe = { .on = local };

	call_point("connect", (uint64_t)fd);
	name_read(local->name, sizeof(local->name), address, length);
	if (!may_connect(&probe) &&
	    !(local->waits && wait_for(local, may_connect, 0, local->send_patience, "connect")))
		return (int)call_failed("connect", fd, EAGAIN);
	listener = local->node < 0 || !*local->name ?
			   NULL :
			   listener_named(local->name, node_of(local->node)->host);
	if (!listener || sim_chance(sim_options.connect_fails))
		return (int)call_failed("connect", fd, ECONNREFUSED);
	other = local_new(listener->node);
	local->state = other->state = LOCAL_OPEN;
	local->peer = other;
	other->peer = local;
	local->other = other->node;
	other->other = local->node;
	listener->waiting[listener->waiting_count++] = other;
	local_changed(listener);
	return (int)call_result("connect", fd, 0);
}

int local_accept(int fd, struct sockaddr *address, socklen_t *length)
{
	struct local *listener = local_of(fd);
	struct descriptor *descriptor;

	call_point("accept4", (uint64_t)fd);
	if (!listener->waiting_count)
		return (int)call_failed("accept4", fd, EAGAIN);
	if (node_lacks_descriptors())
		return (int)call_failed("accept4", fd, EMFILE);
	descriptor = descriptor_new(&kind_local);
	descriptor->local = listener->waiting[0];
	memmove(listener->waiting, listener->waiting + 1,
		(size_t)--listener->waiting_count * sizeof(*listener->waiting));
	if (address) {
		address->sa_family = AF_UNIX;
		*length = sizeof(address->sa_family);
	}
	return (int)call_result("accept4", fd, descriptor->fd);
}

/* An abstract name, or none: only its family counts. */
int local_name(const char *call, int fd, struct sockaddr *address, socklen_t *length)
{
	call_point(call, (uint64_t)fd);
	memset(address, 0, *length);
	address->sa_family = AF_UNIX;
	*length = sizeof(address->sa_family);
	return (int)call_result(call, fd, 0);
}

int local_getsockopt(int fd, int level, int name, void *value, socklen_t *length)
{
	struct local *local = local_of(fd);
	struct ucred user = { .pid = node_pid(local->other), .uid = geteuid(), .gid = getegid() };

	call_point("getsockopt", (uint64_t)fd);
	if (level != SOL_SOCKET)
		return (int)call_failed("getsockopt", fd, ENOPROTOOPT);
	if (name == SO_PEERCRED && *length >= sizeof(user)) {
		memcpy(value, &user, sizeof(user));
		return (int)call_result("getsockopt", fd, 0);
	}
	if (name == SO_PEERPIDFD && !sim_options.old_kernel) {
		int pidfd = process_open("getsockopt", local->other);

		if (pidfd < 0)
			return -1;
		memcpy(value, &pidfd, sizeof(pidfd));
		return (int)call_result("getsockopt", fd, 0);
	}
	return (int)call_failed("getsockopt", fd, ENOPROTOOPT);
}

int local_setsockopt(int fd, int level, int name, const void *value)
{
	struct local *local = local_of(fd);
	const struct timeval *patience = value;

	call_point("setsockopt", (uint64_t)fd);
	if (level != SOL_SOCKET || (name != SO_RCVTIMEO && name != SO_SNDTIMEO))
		return (int)call_failed("setsockopt", fd, ENOPROTOOPT);
	*(name == SO_RCVTIMEO ? &local->receive_patience : &local->send_patience) =
		patience->tv_sec * SIM_SEC + patience->tv_usec * 1000;
	return (int)call_result("setsockopt", fd, 0);
}

int local_shutdown(int fd)
{
	struct local *local = local_of(fd);

	call_point("shutdown", (uint64_t)fd);
	if (local->state != LOCAL_OPEN)
		return (int)call_failed("shutdown", fd, ENOTCONN);
	local_hang_up(local);
	local_changed(local);
	return (int)call_result("shutdown", fd, 0);
}

/* ---- sending and receiving ------------------------------------------------------------------- */

static size_t total_of(const struct msghdr *message)
{
	size_t total = 0;

	for (size_t i = 0; i < message->msg_iovlen; i++)
		total += message->msg_iov[i].iov_len;
	return total;
}

/* The memfd that a message passes on. False: it names a descriptor that is none. */
static bool passed_read(const struct msghdr *message, struct shared **out)
{
	struct cmsghdr *header = message->msg_control ? CMSG_FIRSTHDR(message) : NULL;
	struct descriptor *descriptor;
	int fd;

	*out = NULL;
	if (!header)
		return true;
	memcpy(&fd, CMSG_DATA(header), sizeof(fd));
	descriptor = descriptor_of(fd);
	if (descriptor)
		*out = descriptor->shared;
	return *out;
}

static bool has_room(const struct fiber *fiber)
{
	const struct local *local = fiber->on;

	return !local->peer || local->peer->queued + (size_t)fiber->value <= ROOM;
}

static void message_put(struct local *to, const struct msghdr *from, size_t total,
			struct shared *passed)
{
	struct message *message = calloc(1, sizeof(*message) + total);
	size_t at = 0;

	for (size_t i = 0; i < from->msg_iovlen; i++) {
		memcpy(message->bytes + at, from->msg_iov[i].iov_base, from->msg_iov[i].iov_len);
		at += from->msg_iov[i].iov_len;
	}
	hash_bytes(message->bytes, total);
	message->length = total;
	message->passed = passed;
	if (passed)
		shared_hold(passed);
	*to->tail = message;
	to->tail = &message->next;
	to->queued += total;
	local_changed(to);
}

/* All bytes or none: what Wherry sends is small. */
ssize_t local_send(int fd, const struct msghdr *message, int flags)
{
	struct local *local = local_of(fd);
	size_t total = total_of(message);
	struct fiber probe = { .on = local, .value = (int64_t)total };
	struct shared *passed;

	call_point("sendmsg", (uint64_t)fd);
	if (local->state != LOCAL_OPEN)
		return call_failed("sendmsg", fd, ENOTCONN);
	if (!passed_read(message, &passed))
		return call_failed("sendmsg", fd, EBADF);
	if (sim_chance(sim_options.eintr))
		return call_failed("sendmsg", fd, EINTR);
	if (!has_room(&probe) &&
	    (!local->waits || flags & MSG_DONTWAIT ||
	     !wait_for(local, has_room, total, local->send_patience, "sendmsg")))
		return call_failed("sendmsg", fd, EAGAIN);
	if (!local->peer)
		return call_failed("sendmsg", fd, EPIPE);
	message_put(local->peer, message, total, passed);
	return call_result("sendmsg", fd, (long)total);
}

static size_t message_take(struct local *local, const struct msghdr *out, size_t done, size_t room)
{
	struct message *message = local->head;
	size_t part = message->length - message->done, left, skip = done;

	part = part < room ? part : room;
	left = part;
	for (size_t i = 0; i < out->msg_iovlen && left; i++) {
		size_t length = out->msg_iov[i].iov_len, piece;

		if (skip >= length) {
			skip -= length;
			continue;
		}
		piece = length - skip < left ? length - skip : left;
		memcpy((char *)out->msg_iov[i].iov_base + skip,
		       message->bytes + message->done + part - left, piece);
		left -= piece;
		skip = 0;
	}
	message->done += part;
	local->queued -= part;
	if (message->done == message->length) {
		local->head = message->next;
		if (!local->head)
			local->tail = &local->head;
		free(message);
	}
	return part;
}

/* As the kernel does: never beyond a message that brings a descriptor. */
static size_t local_take(struct local *local, const struct msghdr *out, struct shared **passed)
{
	size_t room = total_of(out), done = 0;

	if (room > 1 && sim_chance(sim_options.short_read))
		room = 1 + sim_draw_world(room - 1);
	while (local->head && done < room && !(done && local->head->passed)) {
		bool brings = local->head->passed;

		if (brings) {
			*passed = local->head->passed;
			local->head->passed = NULL;
		}
		done += message_take(local, out, done, room - done);
		if (brings)
			break;
	}
	if (local->peer)
		local_changed(local->peer);
	return done;
}

/* A process that has no descriptor left does not get it. */
static void passed_write(struct msghdr *out, struct shared *passed)
{
	struct cmsghdr *header = out->msg_control ? CMSG_FIRSTHDR(out) : NULL;
	int fd = passed && header && !node_lacks_descriptors() ? shared_open(passed) : -1;

	out->msg_controllen = 0;
	out->msg_flags = passed && fd < 0 ? MSG_CTRUNC : 0;
	if (fd >= 0) {
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof(fd));
		memcpy(CMSG_DATA(header), &fd, sizeof(fd));
		out->msg_controllen = CMSG_SPACE(sizeof(fd));
	}
	if (passed)
		shared_release(passed);
}

/* The first byte, which is all that anybody asks for. */
static long message_peek(const struct local *local, const struct msghdr *out)
{
	if (!local->head || !total_of(out))
		return 0;
	*(uint8_t *)out->msg_iov[0].iov_base = local->head->bytes[local->head->done];
	return 1;
}

static bool has_bytes(const struct fiber *fiber)
{
	const struct local *local = fiber->on;

	return local->queued || local->ended;
}

ssize_t local_receive(int fd, struct msghdr *out, int flags)
{
	struct local *local = local_of(fd);
	struct fiber probe = { .on = local };
	struct shared *passed = NULL;
	size_t done;

	call_point("recvmsg", (uint64_t)fd);
	if (local->state != LOCAL_OPEN)
		return call_failed("recvmsg", fd, ENOTCONN);
	if (!has_bytes(&probe)) {
		if (!local->waits || flags & MSG_DONTWAIT)
			return call_failed("recvmsg", fd, EAGAIN);
		if (sim_chance(sim_options.eintr))
			return call_failed("recvmsg", fd, EINTR);
		if (!wait_for(local, has_bytes, 0, local->receive_patience, "recvmsg"))
			return call_failed("recvmsg", fd, EAGAIN);
	}
	if (!local->queued && local->error) {
		int error = local->error;

		local->error = 0;
		return call_failed("recvmsg", fd, error);
	}
	if (flags & MSG_PEEK)
		return call_result("recvmsg", fd, message_peek(local, out));
	done = local_take(local, out, &passed);
	passed_write(out, passed);
	return call_result("recvmsg", fd, (long)done);
}
