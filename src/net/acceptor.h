/* SPDX-License-Identifier: Apache-2.0 */
/* The listeners of an engine, and the handshake of every incoming connection. */
#ifndef WH_NET_ACCEPTOR_H
#define WH_NET_ACCEPTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "net/handshake.h"
#include "wire/wire.h"

struct wh_acceptor;
struct wh_config;
struct wh_log;
struct wh_loop;
struct wh_channel;

#define WH_URL_MAX 96 /* bytes of an engine's URL, with the NUL */

/* What the acceptor asks of the engine that it serves; all on the loop. */
struct wh_acceptor_calls {
	/* Does the engine serve data connections of this role? */
	bool (*serves)(void *engine, uint16_t role);
	/* A number for a new session. */
	uint64_t (*session_new)(void *engine);
	/* The key of the session with this number; NULL: there is none. */
	const uint8_t *(*session_key)(void *engine, uint64_t session);
	/* The initiator of a connection has proved its key: `key`, which the acceptor overwrites
	 * afterwards, is the new session's. `source`: wh_address_prefix() of its address. Takes
	 * ownership of fd, which does not block, and of channel. */
	void (*accepted)(void *engine, int fd, struct wh_channel *channel, uint64_t source,
			 const struct wh_hello *hello, uint64_t session,
			 const uint8_t key[WH_KEY_SIZE]);
};

/* All pointers last as long as the acceptor. */
struct wh_acceptor_options {
	const struct wh_acceptor_calls *calls;
	void *engine; /* for the calls */
	struct wh_loop *loop;
	const struct wh_config *config;
	const struct wh_log *log;
	/* `socket`, and the capability to meet, are set before the first connection is accepted */
	struct wh_identity *self;
	char *url; /* set likewise: WH_URL_MAX bytes */
	const char *listen; /* the setting of that name; "none": do not listen */
	bool local; /* listen on unix sockets, too, for WH_ROLE_LOCAL */
};

/* Listen, and start accepting on the loop. Not on the loop. 0, or a negative errno with a text:
 * -EINVAL, -EADDRINUSE, -EACCES (beyond loopback without a key), ... *out is NULL on error, and if
 * the engine does not listen; it is set before the first connection is accepted. */
int wh_acceptor_open(const struct wh_acceptor_options *options, struct wh_acceptor **out);
/* Close the data connection that is number `connection` at the initiator of a session, if its
 * handshake is not complete: nothing that follows its PROVE will be read. On the loop. Does nothing
 * for NULL. */
void wh_acceptor_abort(struct wh_acceptor *acceptor, uint64_t session, uint32_t connection);
/* Stop listening, close all connections whose handshake is not complete, and set *acceptor to NULL
 * on the loop. Blocks until it has done so. Does nothing if that is NULL. */
void wh_acceptor_close(struct wh_acceptor **acceptor);

#endif
