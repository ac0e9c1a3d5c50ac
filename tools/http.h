/* SPDX-License-Identifier: Apache-2.0 */
/* An HTTP server: libmicrohttpd on a thread of its own, with limits that it does not have.
 *
 * Who sends a request byte by byte, or does not read the answer, is cut off by a deadline for each
 * part of it, not for silence alone. Nor do such connections keep others out: where there would be
 * too many, of all or of one address (an IPv4 address, or an IPv6 network), the one that has asked
 * nothing for the longest time is closed, else the one whose answer has taken the longest. */
#ifndef TOOLS_HTTP_H
#define TOOLS_HTTP_H

#include <stdint.h>

#include <microhttpd.h>

struct http_options {
	/* Requests, all of them on the server's thread, as libmicrohttpd has it. */
	MHD_AccessHandlerCallback handle;
	MHD_RequestCompletedCallback done; /* NULL: nothing is to be done */
	/* Called every `every` ns, on the same thread. NULL: nothing is. */
	void (*tick)(void *arg);
	int64_t every;
	void *arg; /* of these */
	unsigned connections, of_address; /* at the most */
	size_t memory; /* bytes for the heads of a connection's request and answer */
	/* bytes of an answer that the kernel keeps until they are read, about; 0: as many as it
	 * likes */
	int unread;
	/* ns from the connection, or the last answer, until the head of a request has come */
	int64_t head;
	int64_t rest; /* ns after that for its body, and then for the answer to be read */
};

struct http_server;

/* Serve what connects to `listener`, a listening socket that does not block. It belongs to the
 * server afterwards, on failure as well. 0, or a negative errno. */
int http_start(const struct http_options *options, int listener, struct http_server **out);
/* Ends the thread and closes all connections. */
void http_stop(struct http_server *server);

#endif
