/* SPDX-License-Identifier: Apache-2.0 */
/* An HTTP server: libmicrohttpd on a thread of its own, with limits that it does not have.
 *
 * A client that sends a request byte by byte, or does not read the answer, is shut down at a
 * deadline for each part, not only when it is silent. Such clients cannot keep others out: where
 * there would be too many connections, in all or from one source (an IPv4 address or an IPv6
 * network), the server closes the one that has gone longest without a request, or else the one
 * whose answer has taken longest. */
#ifndef TOOLS_HTTP_H
#define TOOLS_HTTP_H

#include <stdint.h>

#include <microhttpd.h>

struct http_options {
	/* Answers requests, all on the server's thread; libmicrohttpd's interface. */
	MHD_AccessHandlerCallback handle;
	MHD_RequestCompletedCallback done; /* NULL: none */
	/* Called every `every` ns on the same thread. NULL: no calls. */
	void (*tick)(void *arg);
	int64_t every;
	void *arg; /* passed to handle, done and tick */
	unsigned connections, of_address; /* limits: in all, from one source */
	size_t memory; /* bytes for the heads of a connection's request and answer */
	/* unread bytes of an answer that the kernel keeps, about; 0: the kernel decides */
	int unread;
	/* ns from the connection, or from the last answer, to the complete head of a request */
	int64_t head;
	int64_t rest; /* ns after that for the body, and then for the client to read the answer */
};

struct http_server;

/* Serve connections to `listener`, a listening non-blocking socket. The server owns it from now on,
 * even on failure. 0, or a negative errno. */
int http_start(const struct http_options *options, int listener, struct http_server **out);
/* End the thread and close all connections. */
void http_stop(struct http_server *server);

#endif
