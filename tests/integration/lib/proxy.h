/* SPDX-License-Identifier: Apache-2.0 */
/* proxy.h: a TCP proxy between two engines, in a thread of the test
 *
 * It counts bytes, freezes (as a network that has gone away does), limits the rate, cuts
 * connections, and damages bytes. All functions may be called from any thread. */
#ifndef TESTS_INTEGRATION_LIB_PROXY_H
#define TESTS_INTEGRATION_LIB_PROXY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct proxy;

/* Listen on a free port of 127.0.0.1 and forward connections to `url` ("wherry://127.0.0.1:PORT").
 * NULL on error. */
struct proxy *proxy_start(const char *url);
void proxy_stop(struct proxy *proxy);

/* "wherry://127.0.0.1:PORT"; owned by the proxy. */
const char *proxy_url(const struct proxy *proxy);

/* Roles as in HELLO (enum wh_role). 0: any role. */
#define PROXY_CONTROL 1
#define PROXY_DATA 2

/* The number of open connections of a role; of all connections accepted so far. */
unsigned int proxy_connections(struct proxy *proxy, unsigned int role);
unsigned int proxy_accepted(struct proxy *proxy);

/* Bytes forwarded so far, both directions together. */
uint64_t proxy_bytes(struct proxy *proxy);

/* Wait until proxy_bytes() is `total` or more. False: it was less for as long as PATIENCE. */
bool proxy_await_bytes(struct proxy *proxy, uint64_t total);

/* Stop forwarding but keep all connections open, new ones too; or resume. */
void proxy_freeze(struct proxy *proxy, bool frozen);

/* Limit each direction of each connection to this rate; 0: no limit. */
void proxy_slow(struct proxy *proxy, uint64_t bytes_per_second);

/* Reset the connections of a role; returns their number. */
unsigned int proxy_cut(struct proxy *proxy, unsigned int role);

enum proxy_harm {
	PROXY_FLIP, /* one bit */
	PROXY_DROP, /* `length` bytes */
	PROXY_REPEAT, /* `length` bytes, at once behind themselves */
	PROXY_HARMS,
};

/* Damage to do once. */
struct proxy_damage {
	enum proxy_harm harm;
	unsigned int role;
	int side; /* 0: of the bytes that go to the server; 1: to the client */
	/* how many bytes go that way, on all connections of the role together, before */
	uint64_t after;
	size_t length; /* at most PROXY_DAMAGE_MAX; less if there are no more bytes at hand */
	unsigned int bit; /* of the byte: 0 to 7 */
};
#define PROXY_DAMAGE_MAX 256

/* Do this damage from now on; NULL: none. */
void proxy_damage(struct proxy *proxy, const struct proxy_damage *damage);
/* Has it been done? */
bool proxy_damaged(struct proxy *proxy);

/* Reset the client's half of one connection of a role, and keep the bytes that its server has not
 * got. Returns their number; 0: there were none, and nothing is reset. One connection at a time. */
size_t proxy_strand(struct proxy *proxy, unsigned int role);

/* Send the kept bytes to the server, then the end of the stream. Returns when the server has closed
 * the connection. True: it had not closed it before, and may have used the bytes. */
bool proxy_deliver(struct proxy *proxy);

#endif
