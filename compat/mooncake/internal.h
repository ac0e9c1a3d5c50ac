/* SPDX-License-Identifier: Apache-2.0 */
/* The server's parts: server.c listens and answers questions, data.c moves bytes. */
#ifndef WH_COMPAT_MOONCAKE_INTERNAL_H
#define WH_COMPAT_MOONCAKE_INTERNAL_H

#include "compat/mooncake/connection-limit.h"
#include "compat/mooncake/mooncake.h"
#include "compat/mooncake/order.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/listener.h"
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
	/* The loop's thread only. */
	struct wh_mooncake_limit asking; /* control connections, the oldest first */
	/* data connections, the one that has been still for longest first */
	struct wh_mooncake_limit moving;
	struct wh_mooncake_order order; /* of their requests */
	struct wh_task resume; /* requests that need not wait any longer */
	struct wh_timer patience; /* while requests wait */
	uint64_t moved; /* bytes of data connections */
	uint64_t moved_before_turn; /* the same when the data listener began its turn */
};

void wh_mooncake_log(const struct wh_mooncake_server *server, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

void wh_mooncake_data_open(struct wh_mooncake_server *server);
/* A data connection has come. */
void wh_mooncake_data_accepted(struct wh_mooncake_server *server, int fd,
			       const struct sockaddr_storage *from);
/* Close one that can go; false: there is none. */
bool wh_mooncake_data_evict(struct wh_mooncake_server *server);
/* Others are published than before: who is in the middle of what is gone is cut off. */
void wh_mooncake_data_publish(struct wh_mooncake_server *server,
			      const struct wh_mooncake_memory *memories, size_t count);
/* Close those that are too slow in the middle of something; all: every one. */
void wh_mooncake_data_sweep(struct wh_mooncake_server *server, bool all);

#endif
