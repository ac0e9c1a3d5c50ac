/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A TCP proxy in a thread of the test, to stand between two engines: it counts what passes, stops
 * passing it on (as a network that has gone away does), slows it down, and cuts connections.
 */
#ifndef TESTS_INTEGRATION_LIB_PROXY_H
#define TESTS_INTEGRATION_LIB_PROXY_H

#include <stdbool.h>
#include <stdint.h>

struct proxy;

/* Listen on a free port of 127.0.0.1 and pass connections on to `url` ("wherry://127.0.0.1:PORT").
 * NULL if that cannot be. */
struct proxy *proxy_start(const char *url);
void proxy_stop(struct proxy *proxy);

/* "wherry://127.0.0.1:PORT"; good as long as the proxy. */
const char *proxy_url(const struct proxy *proxy);

/* Roles as in HELLO: enum wh_role. 0: any. */
#define PROXY_CONTROL 1
#define PROXY_DATA 2

/* How many connections it has now, and has taken in all. */
unsigned int proxy_connections(struct proxy *proxy, unsigned int role);
unsigned int proxy_accepted(struct proxy *proxy);

/* Bytes passed so far, both directions together. */
uint64_t proxy_bytes(struct proxy *proxy);

/* Pass nothing on any more, keep the connections (also new ones) open; and go on. */
void proxy_freeze(struct proxy *proxy, bool frozen);

/* Pass at most so many bytes a second in each direction of each connection; 0: no limit. */
void proxy_slow(struct proxy *proxy, uint64_t bytes_per_second);

/* Reset the connections of a role; how many. */
unsigned int proxy_cut(struct proxy *proxy, unsigned int role);

#endif
