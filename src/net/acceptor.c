/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The listeners, and the handshake of every incoming connection: TLS if it is on, HELLO, WELCOME,
 * PROVE (docs/wire-protocol.md). A connection whose initiator proves the key goes to the engine.
 * Everything runs on the engine's loop 0.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "net/acceptor.h"
#include "net/control.h"
#include "net/handshake.h"
#include "net/meet.h"
#include "net/quota.h"
#include "net/tls.h"
#include "net/trust.h"
#include "platform/owner.h"
#include "rendezvous/rendezvous.h"
#include "util/address.h"
#include "util/clock.h"
#include "util/config.h"
#include "util/error.h"
#include "util/list.h"
#include "util/listener.h"
#include "util/log.h"
#include "util/loop.h"
#include "wire/wire.h"

/* Connections whose handshake is not complete: in all, and from one source, which is an IPv4
 * address, an IPv6 prefix or the unix socket. Beyond a limit one of them is closed. */
#define HANDSHAKES_MAX 512
#define HANDSHAKES_PER_SOURCE 256
#define ADDRESSES 8 /* of the name in the setting `listen`; the first is used */

struct acceptor_socket {
	struct wh_listener listener;
	struct wh_acceptor *acceptor;
	bool local; /* a unix socket */
};

/* By TCP; by the abstract unix socket; by one in each folder where engines meet. */
enum {
	NETWORK,
	ABSTRACT,
	FOLDERS,
	SOCKETS = FOLDERS + WH_MEET_FOLDERS,
};

struct wh_acceptor {
	struct wh_acceptor_options given;
	struct acceptor_socket sockets[SOCKETS];
	struct wh_meet meet[WH_MEET_FOLDERS];
	struct wh_list handshakes; /* in the order of arrival */
	unsigned handshake_count;
	struct wh_timer expiry; /* fires at the deadline of the oldest handshake */
};

/* A connection whose initiator is not authenticated yet. */
struct handshake {
	struct wh_source source;
	struct wh_list link;
	struct wh_acceptor *acceptor;
	struct wh_channel *channel; /* NULL: plain, or no byte has arrived yet */
	bool local;
	uint64_t source_prefix; /* wh_address_prefix() of the peer */
	int64_t deadline;
	bool welcomed; /* WELCOME is sent: `received` takes PROVE; else HELLO */
	struct wh_hello hello;
	uint64_t session; /* id of the session that it opens or belongs to */
	struct wh_proofs proofs; /* once welcomed */
	struct wh_greeting received;
};

void wh_refuse(int fd, struct wh_channel *channel, int error, const char *text)
{
	uint8_t bytes[WH_FRAME_HEADER + 16 + WH_REFUSAL_MAX];
	size_t length = wh_refusal_encode(bytes + WH_FRAME_HEADER, error, text);
	struct iovec part = { bytes, WH_FRAME_HEADER + length };

	wh_frame_encode(bytes, &(struct wh_frame){ (uint32_t)length, WH_FRAME_REFUSED, 0 });
	/* It fits an empty socket buffer. If not, the peer only sees the connection close. */
	if (wh_channel_send(fd, channel, &part, 1) > 0)
		shutdown(fd, SHUT_WR);
	wh_channel_free(channel);
	close(fd);
}

/* ---- handshakes -------------------------------------------------------- */

/* Free a handshake. With `keep`, return its descriptor and set *keep to its channel; the caller
 * owns both. Without, close the connection and return -1. */
static int handshake_end(struct handshake *handshake, struct wh_channel **keep)
{
	struct wh_acceptor *acceptor = handshake->acceptor;
	int fd = handshake->source.fd;

	wh_loop_remove(acceptor->given.loop, &handshake->source);
	wh_list_remove(&handshake->link);
	acceptor->handshake_count--;
	explicit_bzero(&handshake->proofs, sizeof(handshake->proofs));
	if (keep)
		*keep = handshake->channel;
	else
		wh_channel_free(handshake->channel);
	free(handshake);
	if (keep)
		return fd;
	wh_socket_close(fd);
	return -1;
}

/* Send the reason, log it, and close the connection. */
static void handshake_refuse(struct handshake *handshake, int error, const char *text)
{
	const struct wh_acceptor_options *given = &handshake->acceptor->given;
	uint64_t from = handshake->source_prefix;
	struct wh_channel *channel;
	int fd = handshake_end(handshake, &channel);

	wh_log_about(given->log, from, WH_LOG_INFO, "net", "connection refused: %s", text);
	wh_refuse(fd, channel, error, text);
}

/* Does the process at the other end of a unix socket belong to this user, or to root? */
static bool acceptor_check_user(int fd, char *why, size_t size)
{
	uid_t user;
	int error = wh_unix_owner(fd, &user);

	if (error == -EACCES)
		snprintf(why, size, "user %u does not share memory with user %u",
			 (unsigned)geteuid(), (unsigned)user);
	else if (error == -EOVERFLOW)
		snprintf(why, size,
			 "the connecting process is in another user namespace, whose "
			 "users have no number here");
	else if (error)
		snprintf(why, size, "cannot find out the user of the connecting process: %s",
			 strerror(-error));
	return !error;
}

/* The key that the initiator has to prove; sets handshake->session. NULL: the connection has been
 * refused. */
static const uint8_t *handshake_key(struct handshake *handshake)
{
	const struct wh_acceptor_options *given = &handshake->acceptor->given;
	const struct wh_hello *hello = &handshake->hello;
	const uint8_t *key;
	char why[WH_REFUSAL_MAX];

	if (handshake->local && !acceptor_check_user(handshake->source.fd, why, sizeof(why))) {
		handshake_refuse(handshake, EACCES, why);
		return NULL;
	}
	if (!handshake->local && wh_trust_check_user(given->self->trust, handshake->source.fd)) {
		handshake_refuse(handshake, EACCES, wh_error_text());
		return NULL;
	}
	if (hello->expected && hello->expected != given->self->epoch) {
		handshake_refuse(handshake, ESTALE,
				 "this engine has another epoch: it was restarted");
		return NULL;
	}
	if (hello->role == WH_ROLE_CONTROL && !handshake->local) {
		handshake->session = given->calls->session_new(given->engine);
		return given->self->trust->keys.key[0];
	}
	if (!given->calls->serves(given->engine, hello->role) ||
	    handshake->local != (hello->role == WH_ROLE_LOCAL)) {
		handshake_refuse(handshake, EOPNOTSUPP,
				 "this socket serves no connections of that role, or their "
				 "transport is off");
		return NULL;
	}
	key = given->calls->session_key(given->engine, hello->session);
	if (!key) {
		handshake_refuse(handshake, EACCES, "no such session: it may have ended");
		return NULL;
	}
	handshake->session = hello->session;
	return key;
}

/* Make the WELCOME, with the proof of a key. 0; -EACCES with a text: the kernel does not say which
 * process is at the other end of the unix socket; -EPROTO: any other reason. */
static int handshake_make_welcome(struct handshake *handshake, const uint8_t *proved,
				  struct wh_greeting *out)
{
	const struct wh_identity *self = handshake->acceptor->given.self;
	const struct wh_crypto *crypto = &self->trust->crypto;
	uint8_t key[WH_KEY_SIZE];
	int error = wh_channel_bind(handshake->channel, crypto, proved, key, sizeof(key));

	if (!error && handshake->local)
		error = wh_meet_bind(crypto, handshake->source.fd, true, key);
	if (!error && wh_welcome_make(self, &handshake->received, &handshake->hello,
				      handshake->session, key, out, &handshake->proofs))
		error = -EPROTO;
	explicit_bzero(key, sizeof(key));
	return error && error != -EACCES ? -EPROTO : error;
}

static void handshake_welcome(struct handshake *handshake)
{
	const uint8_t *proved = handshake_key(handshake);
	struct wh_greeting welcome;
	struct wh_channel *records = NULL;
	struct iovec part;
	int error;

	if (!proved)
		return;
	error = handshake_make_welcome(handshake, proved, &welcome);
	if (error) {
		handshake_refuse(handshake, -error,
				 error == -EACCES ? wh_error_text() :
						    "the HELLO has no nonce, or this engine cannot "
						    "compute proofs");
		return;
	}
	/* The unix socket does not leave the host. */
	error = handshake->local ?
			0 :
			wh_handshake_channel(&handshake->received, welcome.bytes + WH_FRAME_HEADER,
					     welcome.length - WH_FRAME_HEADER, handshake->source.fd,
					     true, &records);
	if (error) {
		handshake_refuse(handshake, -error,
				 error == -EOPNOTSUPP ? wh_error_text() : strerror(-error));
		return;
	}
	/* It fits an empty socket buffer. */
	part = (struct iovec){ welcome.bytes, welcome.length };
	if (wh_channel_send(handshake->source.fd, handshake->channel, &part, 1) !=
	    (ssize_t)welcome.length) {
		wh_channel_free(records);
		handshake_end(handshake, NULL);
		return;
	}
	if (records)
		handshake->channel = records;
	handshake->welcomed = true;
	handshake->received.length = 0;
}

static void handshake_hello(struct handshake *handshake)
{
	char text[WH_REFUSAL_MAX];
	int error =
		wh_hello_decode(handshake->received.bytes + WH_FRAME_HEADER,
				handshake->received.length - WH_FRAME_HEADER, &handshake->hello);

	if (error == -EPROTONOSUPPORT) {
		snprintf(text, sizeof(text),
			 "protocol versions %u to %u requested, this engine speaks %u",
			 handshake->hello.version_min, handshake->hello.version_max,
			 WH_WIRE_VERSION);
		handshake_refuse(handshake, EPROTONOSUPPORT, text);
	} else if (error) {
		handshake_refuse(handshake, EPROTO, "malformed HELLO");
	} else {
		handshake_welcome(handshake);
	}
}

static void handshake_proof(struct handshake *handshake)
{
	const struct wh_acceptor_options *given = &handshake->acceptor->given;
	struct wh_hello hello = handshake->hello;
	uint64_t id = handshake->session, from = handshake->source_prefix;
	uint8_t key[WH_KEY_SIZE];
	struct wh_channel *channel;
	int fd;

	if (!wh_proof_equal(&given->self->trust->crypto, handshake->proofs.initiator,
			    handshake->received.bytes + WH_FRAME_HEADER)) {
		wh_log_about(
			given->log, from, WH_LOG_INFO, "net",
			"authentication failed: the peer claiming to be '%s' does not hold this "
			"engine's key",
			hello.name);
		handshake_refuse(
			handshake, EACCES,
			"authentication failed: the proof does not match this engine's key");
		return;
	}
	memcpy(key, handshake->proofs.session, sizeof(key));
	fd = handshake_end(handshake, &channel);
	given->calls->accepted(given->engine, fd, channel, from, &hello, id, key);
	explicit_bzero(key, sizeof(key));
}

/* Is the received header that of the frame that is due, HELLO or PROVE? */
static bool handshake_expects(const struct handshake *handshake, struct wh_frame *frame)
{
	if (wh_frame_decode(handshake->received.bytes, frame))
		return false;
	if (handshake->welcomed)
		return frame->type == WH_FRAME_PROVE && frame->length == WH_PROOF_SIZE;
	return frame->type == WH_FRAME_HELLO && frame->length <= WH_HELLO_MAX;
}

#define TLS_HANDSHAKE 22 /* first byte of a TLS handshake record */

/* Peek at the first byte: if it starts a TLS handshake, create the TLS channel. Until a byte has
 * arrived, a connection costs no TLS memory. False: no byte yet, or the connection has ended. */
static bool handshake_start_tls(struct handshake *handshake)
{
	const struct wh_acceptor_options *given = &handshake->acceptor->given;
	uint8_t first;
	ssize_t got = recv(handshake->source.fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	if (got <= 0) {
		handshake_end(handshake, NULL);
		return false;
	}
	if (first != TLS_HANDSHAKE) {
		handshake_refuse(
			handshake, EPROTO,
			"this engine speaks TLS only: set tls=1 on both sides (WHERRY_TLS=1)");
		return false;
	}
	handshake->channel =
		wh_tls_channel_new(given->self->trust->tls, handshake->source.fd, true);
	if (handshake->channel)
		return true;
	handshake_end(handshake, NULL);
	return false;
}

/* Continue the TLS handshake. True: it is complete, or the connection is not encrypted. False: more
 * bytes are needed, or the connection has ended. */
static bool handshake_shake(struct handshake *handshake)
{
	const struct wh_acceptor_options *given = &handshake->acceptor->given;
	int error;

	if (handshake->local || !given->self->trust->tls)
		return true;
	if (!handshake->channel && !handshake_start_tls(handshake))
		return false;
	error = wh_channel_handshake(handshake->channel);
	if (error == -EAGAIN) {
		wh_loop_modify(given->loop, &handshake->source,
			       wh_channel_unsent(handshake->channel) ? EPOLLIN | EPOLLOUT :
								       EPOLLIN);
	} else if (error) {
		wh_log_about(given->log, handshake->source_prefix, WH_LOG_INFO, "net",
			     "connection refused: %s", wh_channel_text(handshake->channel));
		handshake_end(handshake, NULL);
	}
	return !error;
}

static void handshake_ready(struct wh_source *source, uint32_t events)
{
	struct handshake *handshake = wh_container(source, struct handshake, source);
	struct wh_greeting *received = &handshake->received;
	struct wh_frame frame;
	struct iovec part;
	size_t want = WH_FRAME_HEADER;
	ssize_t got;

	(void)events;
	if (!handshake_shake(handshake))
		return;
	/* Receive exactly the frame that is due: bytes behind it belong to the connection's next
	 * owner. */
	for (;;) {
		if (received->length >= WH_FRAME_HEADER) {
			if (!handshake_expects(handshake, &frame)) {
				handshake_refuse(
					handshake, EPROTO,
					"not a Wherry handshake: a Wherry engine listens here");
				return;
			}
			want = WH_FRAME_HEADER + frame.length;
			if (received->length == want)
				break;
		}
		part = (struct iovec){ received->bytes + received->length,
				       want - received->length };
		got = wh_channel_receive(source->fd, handshake->channel, &part, 1);
		if (got < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (got < 0 && errno == EBADMSG)
			wh_log_about(handshake->acceptor->given.log, handshake->source_prefix,
				     WH_LOG_WARN, "net", "%s, during its handshake, %s",
				     handshake->hello.name, wh_channel_text(handshake->channel));
		if (got <= 0) {
			handshake_end(handshake, NULL);
			return;
		}
		received->length += (size_t)got;
	}
	if (handshake->welcomed)
		handshake_proof(handshake);
	else
		handshake_hello(handshake);
}

/* Close all handshakes that have passed their deadlines, which come in the order of arrival. */
static void acceptor_expire(struct wh_timer *timer)
{
	struct wh_acceptor *acceptor = wh_container(timer, struct wh_acceptor, expiry);
	int64_t now = wh_now();

	while (!wh_list_empty(&acceptor->handshakes)) {
		struct handshake *handshake =
			wh_container(acceptor->handshakes.next, struct handshake, link);

		if (handshake->deadline > now) {
			wh_timer_set(acceptor->given.loop, timer, handshake->deadline);
			return;
		}
		handshake_end(handshake, NULL);
	}
}

/* The handshake to close when a limit is reached, of those from the source *prefix, or of all if
 * `prefix` is NULL: the oldest without a HELLO, as a genuine client sends HELLO at once; else the
 * oldest. *count: how many there are. */
static struct handshake *acceptor_victim(struct wh_acceptor *acceptor, const uint64_t *prefix,
					 unsigned *count)
{
	struct handshake *oldest = NULL, *silent = NULL;

	*count = 0;
	for (struct wh_list *l = acceptor->handshakes.next; l != &acceptor->handshakes;
	     l = l->next) {
		struct handshake *handshake = wh_container(l, struct handshake, link);

		if (prefix && handshake->source_prefix != *prefix)
			continue;
		if (!(*count)++)
			oldest = handshake;
		if (!silent && !handshake->welcomed)
			silent = handshake;
	}
	return silent ? silent : oldest;
}

/* Close a handshake if one more from this source would exceed a limit. */
static void acceptor_make_room(struct wh_acceptor *acceptor, uint64_t prefix)
{
	unsigned count;
	struct handshake *victim = acceptor_victim(acceptor, &prefix, &count);

	if (count < HANDSHAKES_PER_SOURCE)
		victim = acceptor->handshake_count >= HANDSHAKES_MAX ?
				 acceptor_victim(acceptor, NULL, &count) :
				 NULL;
	if (victim)
		handshake_end(victim, NULL);
}

/* Start the handshake of an accepted connection. Takes ownership of fd. */
static void acceptor_add(struct wh_acceptor *acceptor, int fd, bool local, uint64_t prefix)
{
	struct handshake *handshake = calloc(1, sizeof(*handshake));
	int64_t timeout = acceptor->given.config->number[WH_SETTING_TIMEOUT] * WH_MS;

	if (!handshake) {
		close(fd);
		return;
	}
	handshake->source.fd = fd;
	handshake->source.ready = handshake_ready;
	handshake->acceptor = acceptor;
	handshake->local = local;
	handshake->source_prefix = prefix;
	handshake->deadline = wh_deadline(timeout);
	if (wh_loop_add(acceptor->given.loop, &handshake->source, EPOLLIN)) {
		close(fd);
		free(handshake);
		return;
	}
	acceptor_make_room(acceptor, prefix);
	if (wh_list_empty(&acceptor->handshakes))
		wh_timer_set(acceptor->given.loop, &acceptor->expiry, handshake->deadline);
	wh_list_append(&acceptor->handshakes, &handshake->link);
	acceptor->handshake_count++;
	/* Under load the HELLO has usually arrived already. Read it now, before this handshake can
	 * be mistaken for a silent one and closed. */
	handshake_ready(&handshake->source, EPOLLIN);
}

/* The initiator counts a connection as open, and sends requests behind PROVE, as soon as it has
 * WELCOME: by then the handshake is here, and knows its session. */
void wh_acceptor_abort(struct wh_acceptor *acceptor, uint64_t session, uint32_t connection)
{
	struct wh_list *link, *next;

	if (!acceptor)
		return;
	for (link = acceptor->handshakes.next; link != &acceptor->handshakes; link = next) {
		struct handshake *handshake = wh_container(link, struct handshake, link);

		next = link->next;
		if (handshake->welcomed && handshake->session == session &&
		    handshake->hello.role == WH_ROLE_DATA &&
		    handshake->hello.connection == connection)
			handshake_end(handshake, NULL);
	}
}

/* ---- listeners --------------------------------------------------------- */

static void acceptor_accepted(struct wh_listener *listener, int fd,
			      const struct sockaddr_storage *from)
{
	struct acceptor_socket *by = wh_container(listener, struct acceptor_socket, listener);

	wh_socket_tune(by->acceptor->given.config, fd);
	acceptor_add(by->acceptor, fd, by->local, wh_address_prefix(from));
}

/* Accepting failed, as for lack of descriptors; the listener tries again. */
static void acceptor_waits(struct wh_listener *listener, int error)
{
	struct acceptor_socket *by = wh_container(listener, struct acceptor_socket, listener);

	wh_listener_log(by->acceptor->given.log, "net",
			by->local ? "connections of this machine" : "connections", error);
}

/* Listen on the address that the setting names, and set the URL. Returns the descriptor, or a
 * negative errno. *loopback: only this network namespace reaches it. */
static int acceptor_listen_network(const struct wh_acceptor_options *given, bool *loopback)
{
	struct sockaddr_storage address[ADDRESSES];
	const char *where = given->listen;
	unsigned count = ADDRESSES;
	struct sockaddr_storage bound;
	socklen_t length = sizeof(bound);
	char text[64], why[WH_TEXT_MAX];
	int fd, one = 1, error;

	error = wh_rendezvous_resolve(where, WH_RESOLVE_LISTENING, address, &count);
	if (error) {
		snprintf(why, sizeof(why), "%s", wh_error_text());
		return wh_fail(error == -EHOSTUNREACH ? EINVAL : -error, "listen \"%.80s\": %.150s",
			       where, why);
	}
	error = wh_trust_allows(given->self->trust, &address[0], true);
	if (error)
		return error;
	fd = socket(address[0].ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return wh_fail(errno, "wh_engine_open: socket: %s", strerror(errno));
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	wh_socket_unpace(fd, &address[0]);
	if (bind(fd, (struct sockaddr *)&address[0],
		 address[0].ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) :
						    sizeof(struct sockaddr_in)) ||
	    listen(fd, 1024) || getsockname(fd, (struct sockaddr *)&bound, &length)) {
		error = errno;
		close(fd);
		return wh_fail(error, "cannot listen on %s: %s%s", where, strerror(error),
			       error == EADDRINUSE ? "; choose another port, or 0 for a free one" :
						     "");
	}
	wh_address_format(text, sizeof(text), &bound);
	snprintf(given->url, WH_URL_MAX, "wherry://%s", text);
	*loopback = wh_address_is_loopback(&bound);
	return fd;
}

/* Listen on an abstract unix socket, which processes of this network namespace reach. -1: no
 * socket, and the reason is logged. */
static int acceptor_listen_abstract(const struct wh_acceptor_options *given)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	const char *name = given->self->socket;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	memcpy(address.sun_path + 1, name, strlen(name));
	if (fd >= 0 &&
	    !bind(fd, (struct sockaddr *)&address,
		  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name))) &&
	    !listen(fd, 64))
		return fd;
	wh_log_line(given->log, WH_LOG_WARN, "net",
		    "cannot open a unix socket; other processes cannot use shm: %s",
		    strerror(errno));
	if (fd >= 0)
		close(fd);
	return -1;
}

/* Listen in each folder where engines of other network namespaces may look. A folder of the
 * defaults may be missing; one that the setting names should be there. */
static unsigned acceptor_listen_folders(struct wh_acceptor *acceptor)
{
	const struct wh_acceptor_options *given = &acceptor->given;
	struct wh_meet_folders folders;
	char why[WH_REFUSAL];
	unsigned count = 0;
	int fd;

	wh_meet_folders(given->config->text[WH_SETTING_MEET], &folders);
	for (unsigned i = 0; i < folders.count; i++) {
		fd = wh_meet_listen(folders.path[i], given->self->socket, &acceptor->meet[i], why);
		acceptor->sockets[FOLDERS + i].listener.source.fd = fd < 0 ? -1 : fd;
		count += fd >= 0;
		if (fd < 0)
			wh_log_line(given->log, folders.given ? WH_LOG_WARN : WH_LOG_INFO, "net",
				    "no socket for other containers of this machine: %s", why);
	}
	return count;
}

/* Open the unix sockets. All have one name, which is random; only WELCOME frames carry it. Without
 * a socket the engine runs without shm from other processes. On loopback nobody from another
 * network namespace connects, so that nobody meets it in a folder, unless it is told to be there.
 */
static void acceptor_listen_local(struct wh_acceptor *acceptor, bool loopback)
{
	const struct wh_acceptor_options *given = &acceptor->given;
	int *abstract = &acceptor->sockets[ABSTRACT].listener.source.fd;
	unsigned met = 0;

	if (wh_meet_name(given->self->socket)) {
		*given->self->socket = 0;
		return;
	}
	*abstract = acceptor_listen_abstract(given);
	if (!loopback || *given->config->text[WH_SETTING_MEET])
		met = acceptor_listen_folders(acceptor);
	if (met)
		given->self->capabilities |= WH_CAPABLE_MEET;
	if (!met && *abstract < 0)
		*given->self->socket = 0;
}

static struct wh_acceptor *acceptor_new(const struct wh_acceptor_options *given)
{
	struct wh_acceptor *acceptor = calloc(1, sizeof(*acceptor));

	if (!acceptor)
		return NULL;
	acceptor->given = *given;
	wh_list_init(&acceptor->handshakes);
	acceptor->expiry.fire = acceptor_expire;
	for (unsigned i = 0; i < SOCKETS; i++) {
		struct acceptor_socket *socket = &acceptor->sockets[i];

		socket->acceptor = acceptor;
		socket->local = i != NETWORK;
		socket->listener.source.fd = -1;
		socket->listener.accepted = acceptor_accepted;
		socket->listener.waits = acceptor_waits;
	}
	for (unsigned i = 0; i < WH_MEET_FOLDERS; i++)
		acceptor->meet[i].directory = -1;
	return acceptor;
}

int wh_acceptor_open(const struct wh_acceptor_options *given, struct wh_acceptor **out)
{
	struct wh_acceptor *acceptor;
	bool loopback = false;
	int fd, error = 0;

	*out = NULL;
	if (!strcmp(given->listen, "none"))
		return 0;
	fd = acceptor_listen_network(given, &loopback);
	if (fd < 0)
		return fd;
	acceptor = acceptor_new(given);
	if (!acceptor) {
		close(fd);
		return wh_fail(ENOMEM, "wh_engine_open: no memory");
	}
	acceptor->sockets[NETWORK].listener.source.fd = fd;
	*out = acceptor;
	if (given->local)
		acceptor_listen_local(acceptor, loopback);
	/* The network's last: what connects there has all unix sockets. */
	for (unsigned i = SOCKETS; i-- > 0 && !error;) {
		fd = acceptor->sockets[i].listener.source.fd;
		if (fd >= 0)
			error = wh_listener_open(&acceptor->sockets[i].listener, given->loop, fd);
	}
	if (error)
		wh_acceptor_close(out);
	return error;
}

static void acceptor_stop(void *argument)
{
	struct wh_acceptor **at = argument, *acceptor = *at;

	*at = NULL;
	for (unsigned i = 0; i < SOCKETS; i++) {
		struct wh_listener *listener = &acceptor->sockets[i].listener;

		if (listener->source.fd < 0)
			continue;
		if (listener->loop)
			wh_listener_close(listener);
		wh_socket_close(listener->source.fd);
	}
	while (!wh_list_empty(&acceptor->handshakes))
		handshake_end(wh_container(acceptor->handshakes.next, struct handshake, link),
			      NULL);
	wh_timer_clear(&acceptor->expiry);
}

void wh_acceptor_close(struct wh_acceptor **at)
{
	struct wh_acceptor *acceptor = *at;

	if (!acceptor)
		return;
	for (unsigned i = 0; i < WH_MEET_FOLDERS; i++)
		wh_meet_leave(&acceptor->meet[i]);
	/* Sessions that go on for a moment may have a connection aborted. */
	wh_loop_call(acceptor->given.loop, acceptor_stop, at);
	free(acceptor);
}
