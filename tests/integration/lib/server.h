/* SPDX-License-Identifier: Apache-2.0 */
/* Servers of registries, real ones, each on a free port of the loopback and with files of its own.
 */
#ifndef TESTS_INTEGRATION_LIB_SERVER_H
#define TESTS_INTEGRATION_LIB_SERVER_H

#include "harness.h"

/* As the state of a test: TEST_ON(function, etcd). */
extern const struct route server_wherry; /* wherry registry */
extern const struct route server_plain; /* a server that knows three verbs and nothing else */
extern const struct route server_redis;
extern const struct route server_etcd;
extern const struct route server_etcd_jwt; /* with tokens of some 500 bytes */
extern const struct route server_redis_tls; /* these two ask for a certificate, and show one */
extern const struct route server_etcd_tls;
#define TEST_ON(function, kind)                                                                    \
	{                                                                                          \
#function "__" #kind, function, harness_begin, server_end, (void *)&server_##kind  \
	}
#define TEST_EVERY_SERVER(function)                                                                \
	TEST_ON(function, wherry), TEST_ON(function, plain), TEST_ON(function, redis),             \
		TEST_ON(function, etcd)

struct server {
	const struct route *kind;
	pid_t pid;
	unsigned slot; /* in a cluster; else 0 */
	int port;
	char directory[40];
	char secret[64]; /* USER:PASSWORD, or "" */
	char url[288]; /* with the secret, and the certificates */
	char setting[304]; /* registry=URL */
};

/* Start it and wait until it answers. `secret`: what clients must know; or NULL. */
void server_start(struct server *server, const struct route *kind, const char *secret);
void server_kill(struct server *server); /* kill -9 */
void server_again(struct server *server); /* on the same port, with the same files */
void server_stop(struct server *server); /* and take its files away */
int server_end(void **state); /* what a test that failed has left */

#define SERVER_MEMBERS 3
/* Members of one etcd, each of which answers. They notice within half a second that their leader is
 * gone. */
void server_start_cluster(struct server member[SERVER_MEMBERS]);

#endif
