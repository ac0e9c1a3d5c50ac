/* SPDX-License-Identifier: Apache-2.0 */
/* The server's state, shared by server.c (listens, answers control requests) and data.c (moves
 * bytes). */
#ifndef WH_COMPAT_MOONCAKE_INTERNAL_H
#define WH_COMPAT_MOONCAKE_INTERNAL_H

#include "compat/mooncake/connection-limit.h"
#include "compat/mooncake/mooncake.h"
#include "compat/mooncake/order.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/listener.h"
#include "util/log.h"
#include "util/loop.h"

/* A port that the server listens on. */
struct wh_mooncake_port {
	struct wh_mooncake_server *server;
	int fd; /* -1: not open */
	char address[64]; /* "127.0.0.1:40123" */
	struct wh_listener listener;
};

struct wh_mooncake_server {
	struct wh_mooncake_server_options options;
	char name[WH_MOONCAKE_NAME_MAX]; /* "": none */
	char wherry[WH_MOONCAKE_URL_MAX];
	struct wh_loop loop;
	struct wh_mooncake_port control, data;
	struct wh_timer sweep;
	struct wh_log_limit log_limit;
	/* The loop's thread only. */
	struct wh_mooncake_limit controls; /* control connections, the oldest first */
	struct wh_mooncake_limit
		transfers; /* data connections; last moved bytes longest ago first */
	struct wh_mooncake_order order; /* of the requests on data connections */
	struct wh_task resume; /* starts requests that no longer wait */
	struct wh_timer patience; /* set while requests wait */
	uint64_t moved; /* bytes, by all data connections so far */
	uint64_t moved_before_turn; /* `moved` when the data listener's turn began */
};

/* Log what a client causes, if that is not too much: `who` is the prefix of its address; 0: it is
 * no client's. */
void wh_mooncake_log(struct wh_mooncake_server *server, uint64_t who, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

void wh_mooncake_data_open(struct wh_mooncake_server *server);
/* Serve a new data connection; `fd` belongs to the callee. */
void wh_mooncake_data_accepted(struct wh_mooncake_server *server, int fd,
			       const struct sockaddr_storage *from);
/* Close the data connection of the lowest rank. False: none may be closed. */
bool wh_mooncake_data_evict(struct wh_mooncake_server *server);
/* The published memory changes: close connections whose current request uses memory that is gone.
 */
void wh_mooncake_data_publish(struct wh_mooncake_server *server,
			      const struct wh_mooncake_memory *memories, size_t count);
/* Close connections that are too slow in the middle of a request; `all`: close every one. */
void wh_mooncake_data_sweep(struct wh_mooncake_server *server, bool all);

#endif
