/* SPDX-License-Identifier: Apache-2.0 */
/* The listeners of an engine, and the handshake of every incoming connection. */
#ifndef WH_NET_ACCEPTOR_H
#define WH_NET_ACCEPTOR_H

struct wh_engine;

/* Listen on the address `listen` (the setting of that name; "none": do not listen), set
 * engine->url, and start accepting on loop 0. Not on loop 0. 0, or a negative errno with a text:
 * -EINVAL, -EADDRINUSE, -EACCES (beyond loopback without a key), ... */
int wh_acceptor_open(struct wh_engine *engine, const char *listen);
/* Stop listening, and close all connections whose handshake is not complete. Blocks until loop 0
 * has done it. Does nothing if the engine does not listen. */
void wh_acceptor_close(struct wh_engine *engine);

#endif
