/* SPDX-License-Identifier: Apache-2.0 */
/* server.h: real registry servers, each on a free port of the loopback with its own files */
#ifndef TESTS_INTEGRATION_LIB_SERVER_H
#define TESTS_INTEGRATION_LIB_SERVER_H

#include "harness.h"

/* States of tests: TEST_ON(function, etcd). */
extern const struct route server_wherry; /* wherry registry */
extern const struct route server_plain; /* plain.py: only GET, PUT and DELETE */
extern const struct route server_redis;
extern const struct route server_etcd;
extern const struct route server_etcd_jwt; /* tokens of some 500 bytes */
extern const struct route server_redis_tls; /* mutual TLS, as the next */
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
	unsigned slot; /* index within a cluster; else 0 */
	int port;
	char directory[40];
	char secret[64]; /* USER:PASSWORD, or "" */
	char url[288]; /* including the secret and the certificates */
	char setting[304]; /* registry=URL */
};

/* Start the server and wait until it answers. `secret`: what clients must present, or NULL. */
void server_start(struct server *server, const struct route *kind, const char *secret);
void server_kill(struct server *server); /* SIGKILL */
void server_again(struct server *server); /* restart it on the same port with the same files */
void server_stop(struct server *server); /* end it and remove its files */
int server_end(void **state); /* ends what a failed test has left */

#define SERVER_MEMBERS 3
/* Start an etcd cluster whose members all answer. Members notice within half a second that their
 * leader is gone. */
void server_start_cluster(struct server member[SERVER_MEMBERS]);

#endif
