/* SPDX-License-Identifier: Apache-2.0 */
/* The listeners, and the handshake of every connection that comes in. */
#ifndef WH_NET_ACCEPTOR_H
#define WH_NET_ACCEPTOR_H

struct wh_engine;

int wh_acceptor_open(struct wh_engine *engine, const char *listen);
void wh_acceptor_close(struct wh_engine *engine);

#endif
