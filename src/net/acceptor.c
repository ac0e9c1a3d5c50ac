/* SPDX-License-Identifier: Apache-2.0 */
/* The listeners, and the handshake of every connection that comes in. All of it on loop 0. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/engine.h"
#include "core/peer.h"
#include "core/session.h"
#include "net/acceptor.h"
#include "net/control.h"
#include "net/handshake.h"
#include "net/quota.h"
#include "net/tls.h"
#include "net/trust.h"
#include "rendezvous/rendezvous.h"
#include "transport/transport.h"
#include "util/address.h"
#include "util/clock.h"
#include "util/config.h"
#include "util/error.h"
#include "util/list.h"
#include "util/listener.h"
#include "util/loop.h"
#include "wire/wire.h"

/* Connections that have not proved themselves yet; beyond that one has to go, of all, or of those
 * from one place, which is an address, a network of IPv6, or the unix socket. */
#define GREETINGS_MAX 512
#define GREETINGS_PER_SOURCE 256

struct acceptor_socket {
	struct wh_listener listener;
	struct wh_acceptor *acceptor;
	bool local; /* the unix socket */
};

struct wh_acceptor {
	struct wh_engine *engine;
	struct acceptor_socket network, local;
	struct wh_list greetings;
	unsigned greeting_count;
	struct wh_timer sweep; /* of greetings that take too long */
};

/* A connection whose initiator has not proved itself yet. */
struct greeting {
	struct wh_source source;
	struct wh_list link;
	struct wh_acceptor *acceptor;
	struct wh_tls *tls; /* NULL: plain, or nothing has come yet */
	bool local;
	uint64_t from; /* address or prefix that it comes from */
	int64_t deadline;
	bool welcomed; /* `said` receives PROVE now; else HELLO */
	struct wh_hello hello;
	uint64_t session; /* that it begins, or belongs to */
	struct wh_proofs proofs;
	struct wh_greeting said;
};

void wh_refuse(int fd, struct wh_tls *tls, int error, const char *text)
{
	uint8_t bytes[WH_FRAME_HEADER + 16 + WH_REFUSAL_MAX];
	size_t length = wh_refusal_encode(bytes + WH_FRAME_HEADER, error, text);
	struct iovec part = { bytes, WH_FRAME_HEADER + length };

	wh_frame_encode(bytes, &(struct wh_frame){ (uint32_t)length, WH_FRAME_REFUSED, 0 });
	/* A fresh socket takes it at once; if not, the other side sees the connection close. */
	if (wh_stream_send(fd, tls, &part, 1) > 0)
		shutdown(fd, SHUT_WR);
	wh_tls_free(tls);
	close(fd);
}

/* ---- greetings ---------------------------------------------------------------------------- */

/* Give the descriptor away, and what encrypts it, or -1 and close it. */
static int greeting_end(struct greeting *greeting, struct wh_tls **keep)
{
	struct wh_acceptor *acceptor = greeting->acceptor;
	int fd = greeting->source.fd;

	wh_loop_remove(&acceptor->engine->loops[0], &greeting->source);
	wh_list_remove(&greeting->link);
	acceptor->greeting_count--;
	explicit_bzero(&greeting->proofs, sizeof(greeting->proofs));
	if (keep)
		*keep = greeting->tls;
	else
		wh_tls_free(greeting->tls);
	free(greeting);
	if (keep)
		return fd;
	wh_socket_close(fd);
	return -1;
}

static void refuse(struct greeting *greeting, int error, const char *text)
{
	struct wh_engine *engine = greeting->acceptor->engine;
	struct wh_tls *tls;
	int fd = greeting_end(greeting, &tls);

	wh_log_line(&engine->log, "a connection is refused: %s", text);
	wh_refuse(fd, tls, error, text);
}

static const struct wh_transport *transport_of_role(const struct wh_engine *engine, uint16_t role)
{
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		if (wh_transport(id)->role == role && !engine->transport_off[id][0])
			return wh_transport(id);
	return NULL;
}

/* The same user, or root, who may do everything anyway. */
static bool welcome_user(int fd, char *why, size_t size)
{
	struct ucred user;
	socklen_t length = sizeof(user);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &user, &length)) {
		snprintf(why, size, "cannot tell whose process it is: %s", strerror(errno));
		return false;
	}
	if (user.uid == geteuid() || user.uid == 0)
		return true;
	snprintf(why, size, "memory of user %u is not for user %u", (unsigned)geteuid(),
		 (unsigned)user.uid);
	return false;
}

/* The key that is to be proved, and `session`. NULL: it has been refused. */
static const uint8_t *key_of(struct greeting *greeting)
{
	struct wh_engine *engine = greeting->acceptor->engine;
	const struct wh_hello *hello = &greeting->hello;
	struct wh_session *session;
	char why[WH_REFUSAL_MAX];

	if (greeting->local && !welcome_user(greeting->source.fd, why, sizeof(why))) {
		refuse(greeting, EACCES, why);
		return NULL;
	}
	if (!greeting->local && wh_trust_knows(&engine->trust, greeting->source.fd)) {
		refuse(greeting, EACCES, wh_error_text());
		return NULL;
	}
	if (hello->expected && hello->expected != engine->epoch) {
		refuse(greeting, ESTALE, "the engine here has another epoch: it was restarted");
		return NULL;
	}
	if (hello->role == WH_ROLE_CONTROL && !greeting->local) {
		greeting->session = ++engine->next_session;
		return engine->trust.keys.key[0];
	}
	if (!transport_of_role(engine, hello->role) ||
	    greeting->local != (hello->role == WH_ROLE_SHM)) {
		refuse(greeting, EOPNOTSUPP,
		       "no such role on this socket, or its transport is off");
		return NULL;
	}
	session = wh_session_find(engine, hello->session);
	if (!session) {
		refuse(greeting, EACCES, "no session with this number");
		return NULL;
	}
	greeting->session = session->id;
	return session->key;
}

static void answer(struct greeting *greeting)
{
	struct wh_engine *engine = greeting->acceptor->engine;
	const uint8_t *proved = key_of(greeting);
	struct wh_greeting welcome;
	uint8_t key[WH_KEY_SIZE];
	struct iovec part;

	if (!proved)
		return;
	if (wh_tls_bind(greeting->tls, &engine->trust.crypto, proved, key) ||
	    wh_welcome(engine, &greeting->said, &greeting->hello, greeting->session, key, &welcome,
		       &greeting->proofs)) {
		refuse(greeting, EPROTO, "a hello without a nonce, or no way to prove a key here");
		return;
	}
	/* It fits into an empty socket buffer. */
	explicit_bzero(key, sizeof(key));
	part = (struct iovec){ welcome.bytes, welcome.length };
	if (wh_stream_send(greeting->source.fd, greeting->tls, &part, 1) !=
	    (ssize_t)welcome.length) {
		greeting_end(greeting, NULL);
		return;
	}
	greeting->welcomed = true;
	greeting->said.length = 0;
}

static void hear_hello(struct greeting *greeting)
{
	char text[WH_REFUSAL_MAX];
	int error = wh_hello_decode(greeting->said.bytes + WH_FRAME_HEADER,
				    greeting->said.length - WH_FRAME_HEADER, &greeting->hello);

	if (error == -EPROTONOSUPPORT) {
		snprintf(text, sizeof(text),
			 "protocol versions %u to %u are asked for, this engine speaks %u",
			 greeting->hello.version_min, greeting->hello.version_max, WH_WIRE_VERSION);
		refuse(greeting, EPROTONOSUPPORT, text);
	} else if (error) {
		refuse(greeting, EPROTO, "a malformed hello");
	} else {
		answer(greeting);
	}
}

static void hear_proof(struct greeting *greeting)
{
	struct wh_engine *engine = greeting->acceptor->engine;
	struct wh_hello hello = greeting->hello;
	uint64_t id = greeting->session, from = greeting->from;
	uint8_t key[WH_KEY_SIZE];
	struct wh_session *session;
	struct wh_tls *tls;
	int fd;

	if (!wh_proof_equal(&engine->trust.crypto, greeting->proofs.initiator,
			    greeting->said.bytes + WH_FRAME_HEADER)) {
		wh_log_line(&engine->log, "who says to be %s does not prove the key of this engine",
			    hello.name);
		refuse(greeting, EACCES, "that does not prove the key of this engine");
		return;
	}
	memcpy(key, greeting->proofs.session, sizeof(key));
	fd = greeting_end(greeting, &tls);
	if (hello.role == WH_ROLE_CONTROL) {
		wh_session_new(engine, fd, tls, from, &hello, id, key);
	} else {
		session = wh_session_find(engine, id);
		/* It may have ended in the meantime. */
		if (session)
			transport_of_role(engine, hello.role)
				->session_accept(session, fd, tls, &hello);
		else
			wh_refuse(fd, tls, EACCES, "the session has ended");
	}
	explicit_bzero(key, sizeof(key));
}

/* Is this the header of what it has to say next? */
static bool is_due(const struct greeting *greeting, struct wh_frame *frame)
{
	if (wh_frame_decode(greeting->said.bytes, frame))
		return false;
	if (greeting->welcomed)
		return frame->type == WH_FRAME_PROVE && frame->length == WH_PROOF_SIZE;
	return frame->type == WH_FRAME_HELLO && frame->length <= WH_HELLO_MAX;
}

#define TLS_HANDSHAKE 22 /* the first byte of a record with one */

/* What comes first tells who it is: nothing is set up for who says nothing. False: not yet, or it
 * has been refused. */
static bool is_secure(struct greeting *greeting)
{
	struct wh_engine *engine = greeting->acceptor->engine;
	uint8_t first;
	ssize_t got = recv(greeting->source.fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	if (got <= 0) {
		greeting_end(greeting, NULL);
		return false;
	}
	if (first != TLS_HANDSHAKE) {
		refuse(greeting, EPROTO,
		       "this engine speaks TLS only: set tls=1 on both sides (WHERRY_TLS=1)");
		return false;
	}
	greeting->tls = wh_tls_new(engine->trust.tls, greeting->source.fd, true);
	if (greeting->tls)
		return true;
	greeting_end(greeting, NULL);
	return false;
}

static bool shaken(struct greeting *greeting)
{
	struct wh_engine *engine = greeting->acceptor->engine;
	int error;

	if (greeting->local || !engine->trust.tls)
		return true;
	if (!greeting->tls && !is_secure(greeting))
		return false;
	error = wh_tls_shake(greeting->tls);
	if (error == -EAGAIN) {
		wh_loop_modify(&engine->loops[0], &greeting->source,
			       wh_tls_unsent(greeting->tls) ? EPOLLIN | EPOLLOUT : EPOLLIN);
	} else if (error) {
		wh_log_line(&engine->log, "a connection is refused: %s",
			    wh_tls_text(greeting->tls));
		greeting_end(greeting, NULL);
	}
	return !error;
}

static void greeting_ready(struct wh_source *source, uint32_t events)
{
	struct greeting *greeting = wh_container(source, struct greeting, source);
	struct wh_greeting *said = &greeting->said;
	struct wh_frame frame;
	struct iovec part;
	size_t want = WH_FRAME_HEADER;
	ssize_t got;

	(void)events;
	if (!shaken(greeting))
		return;
	/* Not a byte more than what is due: what follows is not ours. */
	for (;;) {
		if (said->length >= WH_FRAME_HEADER) {
			if (!is_due(greeting, &frame)) {
				refuse(greeting, EPROTO,
				       "this is a Wherry engine; that was not a handshake");
				return;
			}
			want = WH_FRAME_HEADER + frame.length;
			if (said->length == want)
				break;
		}
		part = (struct iovec){ said->bytes + said->length, want - said->length };
		got = wh_stream_receive(source->fd, greeting->tls, &part, 1);
		if (got < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (got <= 0) {
			greeting_end(greeting, NULL);
			return;
		}
		said->length += (size_t)got;
	}
	if (greeting->welcomed)
		hear_proof(greeting);
	else
		hear_hello(greeting);
}

static void sweep(struct wh_timer *timer)
{
	struct wh_acceptor *acceptor = wh_container(timer, struct wh_acceptor, sweep);
	int64_t now = wh_now();

	/* The list is in the order of arrival. */
	while (!wh_list_empty(&acceptor->greetings)) {
		struct greeting *greeting =
			wh_container(acceptor->greetings.next, struct greeting, link);

		if (greeting->deadline > now) {
			wh_timer_set(&acceptor->engine->loops[0], timer, greeting->deadline);
			return;
		}
		greeting_end(greeting, NULL);
	}
}

/* The first to go of those from this place, or, without one, of all: the oldest that has said
 * nothing, for who means it says hello at once; else the oldest. The list is in the order of
 * arrival. */
static struct greeting *least_wanted(struct wh_acceptor *acceptor, const uint64_t *from,
				     unsigned *count)
{
	struct greeting *oldest = NULL, *silent = NULL;

	*count = 0;
	for (struct wh_list *l = acceptor->greetings.next; l != &acceptor->greetings; l = l->next) {
		struct greeting *greeting = wh_container(l, struct greeting, link);

		if (from && greeting->from != *from)
			continue;
		if (!(*count)++)
			oldest = greeting;
		if (!silent && !greeting->welcomed)
			silent = greeting;
	}
	return silent ? silent : oldest;
}

/* Before one more from this place. */
static void make_room(struct wh_acceptor *acceptor, uint64_t from)
{
	unsigned count;
	struct greeting *last = least_wanted(acceptor, &from, &count);

	if (count < GREETINGS_PER_SOURCE)
		last = acceptor->greeting_count >= GREETINGS_MAX ?
			       least_wanted(acceptor, NULL, &count) :
			       NULL;
	if (last)
		greeting_end(last, NULL);
}

static void greet(struct wh_acceptor *acceptor, int fd, bool local, uint64_t from)
{
	struct greeting *greeting = calloc(1, sizeof(*greeting));
	int64_t timeout = acceptor->engine->config.number[WH_SETTING_TIMEOUT] * WH_MS;

	if (!greeting) {
		close(fd);
		return;
	}
	greeting->source.fd = fd;
	greeting->source.ready = greeting_ready;
	greeting->acceptor = acceptor;
	greeting->local = local;
	greeting->from = from;
	greeting->deadline = wh_deadline(timeout);
	if (wh_loop_add(&acceptor->engine->loops[0], &greeting->source, EPOLLIN)) {
		close(fd);
		free(greeting);
		return;
	}
	make_room(acceptor, from);
	if (wh_list_empty(&acceptor->greetings))
		wh_timer_set(&acceptor->engine->loops[0], &acceptor->sweep, greeting->deadline);
	wh_list_append(&acceptor->greetings, &greeting->link);
	acceptor->greeting_count++;
	/* Where many come, its hello has been waiting: the sooner it is heard, the less it is taken
	 * for one of those that never say a word. */
	greeting_ready(&greeting->source, EPOLLIN);
}

/* ---- listeners ---------------------------------------------------------------------------- */

static void acceptor_accepted(struct wh_listener *listener, int fd,
			      const struct sockaddr_storage *from)
{
	struct acceptor_socket *by = wh_container(listener, struct acceptor_socket, listener);

	wh_socket_tune(&by->acceptor->engine->config, fd);
	greet(by->acceptor, fd, by->local, wh_address_prefix(from));
}

static void acceptor_waits(struct wh_listener *listener, int error)
{
	struct acceptor_socket *by = wh_container(listener, struct acceptor_socket, listener);

	wh_log_line(&by->acceptor->engine->log, "a connection has to wait: %s", strerror(error));
}

static int listen_network(struct wh_engine *engine, const char *where)
{
	struct sockaddr_storage address[WH_PEER_ADDRESSES];
	unsigned count = WH_PEER_ADDRESSES;
	struct sockaddr_storage bound;
	socklen_t length = sizeof(bound);
	char text[64], why[WH_TEXT_MAX];
	int fd, one = 1, error;

	error = wh_rendezvous_resolve(where, true, address, &count);
	if (error) {
		snprintf(why, sizeof(why), "%s", wh_error_text());
		return wh_fail(error == -EHOSTUNREACH ? EINVAL : -error, "listen \"%.80s\": %.150s",
			       where, why);
	}
	error = wh_trust_allows(&engine->trust, &address[0], true);
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
	snprintf(engine->url, sizeof(engine->url), "wherry://%s", text);
	return fd;
}

/* The abstract socket's name is random and told only to those who shook hands. Without it there is
 * no shm, which is not worth failing for. */
static int listen_local(struct wh_engine *engine)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	uint64_t number[2];
	int fd;

	if (getrandom(number, sizeof(number), 0) != sizeof(number))
		return -1;
	snprintf(engine->socket_name, sizeof(engine->socket_name), "wherry-%016llx%016llx",
		 (unsigned long long)number[0], (unsigned long long)number[1]);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	memcpy(address.sun_path + 1, engine->socket_name, strlen(engine->socket_name));
	if (fd >= 0 &&
	    !bind(fd, (struct sockaddr *)&address,
		  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
			      strlen(engine->socket_name))) &&
	    !listen(fd, 64))
		return fd;
	wh_log_line(&engine->log, "no unix socket, so no shm from other processes: %s",
		    strerror(errno));
	engine->socket_name[0] = 0;
	if (fd >= 0)
		close(fd);
	return -1;
}

int wh_acceptor_open(struct wh_engine *engine, const char *listen)
{
	struct wh_acceptor *acceptor;
	int fd, local, error;

	if (!strcmp(listen, "none"))
		return 0;
	fd = listen_network(engine, listen);
	if (fd < 0)
		return fd;
	acceptor = calloc(1, sizeof(*acceptor));
	if (!acceptor) {
		close(fd);
		return wh_fail(ENOMEM, "wh_engine_open: no memory");
	}
	acceptor->engine = engine;
	wh_list_init(&acceptor->greetings);
	acceptor->sweep.fire = sweep;
	acceptor->network.acceptor = acceptor->local.acceptor = acceptor;
	acceptor->network.listener.accepted = acceptor->local.listener.accepted = acceptor_accepted;
	acceptor->network.listener.waits = acceptor->local.listener.waits = acceptor_waits;
	acceptor->local.local = true;
	local = engine->transport_off[WH_TRANSPORT_SHM][0] ? -1 : listen_local(engine);
	acceptor->local.listener.source.fd = local;
	engine->acceptor = acceptor;
	if (local >= 0)
		wh_listener_open(&acceptor->local.listener, &engine->loops[0], local);
	error = wh_listener_open(&acceptor->network.listener, &engine->loops[0], fd);
	if (error)
		wh_acceptor_close(engine);
	return error;
}

static void stop_listening(void *argument)
{
	struct wh_acceptor *acceptor = argument;
	struct wh_listener *listeners[] = { &acceptor->network.listener,
					    &acceptor->local.listener };

	for (int i = 0; i < 2; i++) {
		if (listeners[i]->source.fd < 0)
			continue;
		wh_listener_close(listeners[i]);
		wh_socket_close(listeners[i]->source.fd);
	}
	while (!wh_list_empty(&acceptor->greetings))
		greeting_end(wh_container(acceptor->greetings.next, struct greeting, link), NULL);
	wh_timer_clear(&acceptor->sweep);
}

void wh_acceptor_close(struct wh_engine *engine)
{
	if (!engine->acceptor)
		return;
	wh_loop_call(&engine->loops[0], stop_listening, engine->acceptor);
	free(engine->acceptor);
	engine->acceptor = NULL;
}
