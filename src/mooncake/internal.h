/* SPDX-License-Identifier: Apache-2.0 */
/* The server's parts: server.c listens and answers questions, data.c moves bytes. */
#ifndef WH_MOONCAKE_INTERNAL_H
#define WH_MOONCAKE_INTERNAL_H

#include "mooncake/mooncake.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/loop.h"

struct wh_mooncake_listener {
	struct wh_source source;
	struct wh_mooncake_server *server;
	void (*accepted)(struct wh_mooncake_server *server, int fd);
	char address[64];
};

struct wh_mooncake_server {
	struct wh_mooncake_server_options options;
	char name[WH_MOONCAKE_NAME_MAX]; /* "": none */
	char wherry[WH_MOONCAKE_URL_MAX];
	struct wh_loop loop;
	struct wh_mooncake_listener control, data;
	struct wh_timer sweep;
	/* The loop's thread only. */
	struct wh_list asking; /* control connections, the oldest first */
	size_t asking_count;
	struct wh_list moving; /* data connections, the one that has been still for longest first */
	size_t moving_count;
};

void wh_mooncake_log(const struct wh_mooncake_server *server, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* A data connection has come. */
void wh_mooncake_data_accepted(struct wh_mooncake_server *server, int fd);
/* Others are published than before: who is in the middle of what is gone is cut off. */
void wh_mooncake_data_publish(struct wh_mooncake_server *server, const struct wh_mooncake_memory *memories,
			      size_t count);
/* Close those that have been still in the middle of something for too long; all: every one. */
void wh_mooncake_data_sweep(struct wh_mooncake_server *server, bool all);

#endif
