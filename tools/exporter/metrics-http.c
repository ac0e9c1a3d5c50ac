/* SPDX-License-Identifier: Apache-2.0 */
/* GET /metrics, with libmicrohttpd. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "command.h"
#include "exporter/metrics.h"
#include "http.h"
#include "util/clock.h"

#define CONNECTIONS 32
#define CONNECTIONS_ADDRESS 8
#define CONNECTION_MEMORY (32 << 10)
#define PATIENCE (10 * WH_SECOND)

struct metrics_server {
	struct http_server *http;
	void (*make)(void *arg, struct metrics *metrics);
	void *arg;
};

static enum MHD_Result http_answer(struct MHD_Connection *connection, unsigned status, char *text,
				   size_t length, enum MHD_ResponseMemoryMode mode,
				   const char *type)
{
	struct MHD_Response *response = MHD_create_response_from_buffer(length, text, mode);
	enum MHD_Result result;

	if (!response)
		return MHD_NO;
	MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
		MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
	result = MHD_queue_response(connection, status, response);
	MHD_destroy_response(response);
	return result;
}

static enum MHD_Result http_say(struct MHD_Connection *connection, unsigned status,
				const char *text)
{
	return http_answer(connection, status, (char *)(uintptr_t)text, strlen(text),
			   MHD_RESPMEM_PERSISTENT, "text/plain; charset=utf-8");
}

static enum MHD_Result http_request(void *arg, struct MHD_Connection *connection, const char *url,
				    const char *method, const char *version, const char *upload,
				    size_t *upload_size, void **state)
{
	static int known;
	struct metrics_server *server = arg;
	struct metrics metrics = { 0 };

	(void)version;
	(void)upload;
	/* The first call has the head only; a body is ignored. */
	if (!*state) {
		*state = &known;
		return MHD_YES;
	}
	if (*upload_size) {
		*upload_size = 0;
		return MHD_YES;
	}
	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
		return http_say(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET only\n");
	if (strcmp(url, "/") == 0)
		return http_say(connection, MHD_HTTP_OK, "Wherry serves its metrics at /metrics\n");
	if (strcmp(url, "/metrics") != 0)
		return http_say(connection, MHD_HTTP_NOT_FOUND,
				"not found: only /metrics is here\n");
	server->make(server->arg, &metrics);
	if (metrics.failed || !metrics.text) {
		free(metrics.text);
		return http_say(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, "out of memory\n");
	}
	return http_answer(connection, MHD_HTTP_OK, metrics.text, metrics.length,
			   MHD_RESPMEM_MUST_FREE, "text/plain; version=0.0.4; charset=utf-8");
}

/* Parse "127.0.0.1:9411" or "[::1]:9411". 0, or an exit code. */
static int http_resolve(const char *where, struct sockaddr_storage *out, socklen_t *length)
{
	struct addrinfo hints = { .ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV,
				  .ai_socktype = SOCK_STREAM },
			*found;
	const char *colon = strrchr(where, ':');
	char host[64];
	size_t size = colon ? (size_t)(colon - where) : 0;

	if (size > 2 && where[0] == '[' && where[size - 1] == ']') {
		where++;
		size -= 2;
	}
	if (!colon || !size || size >= sizeof(host) || !colon[1])
		return usage_error("--metrics: '%s' is not ADDR:PORT, such as 127.0.0.1:9411",
				   where);
	snprintf(host, sizeof(host), "%.*s", (int)size, where);
	/* getaddrinfo() takes the lower bits of a port that is too large. */
	if (strlen(colon + 1) > 5 || strtoul(colon + 1, NULL, 10) > UINT16_MAX ||
	    getaddrinfo(host, colon + 1, &hints, &found))
		return usage_error("--metrics: '%s' is not an address and a port, such as "
				   "127.0.0.1:9411",
				   where);
	memcpy(out, found->ai_addr, found->ai_addrlen);
	*length = found->ai_addrlen;
	freeaddrinfo(found);
	return 0;
}

/* A listening socket; made here, because libmicrohttpd does not report the errno. */
static int http_listen(const struct sockaddr_storage *address, socklen_t length)
{
	int one = 1, error,
	    fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (!bind(fd, (const struct sockaddr *)address, length) && !listen(fd, CONNECTIONS))
		return fd;
	error = -errno;
	close(fd);
	return error;
}

static void http_address(int fd, char *out, size_t size)
{
	struct sockaddr_storage bound;
	socklen_t length = sizeof(bound);
	char host[64] = "", port[16] = "";

	if (!getsockname(fd, (struct sockaddr *)&bound, &length))
		getnameinfo((struct sockaddr *)&bound, length, host, sizeof(host), port,
			    sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
	snprintf(out, size,
		 bound.ss_family == AF_INET6 ? "http://[%s]:%s/metrics" : "http://%s:%s/metrics",
		 host, port);
}

int metrics_serve(const char *where, void (*make)(void *arg, struct metrics *metrics), void *arg,
		  char *address, size_t size, struct metrics_server **out)
{
	struct http_options options = {
		.handle = http_request,
		.connections = CONNECTIONS,
		.of_address = CONNECTIONS_ADDRESS,
		.memory = CONNECTION_MEMORY,
		.head = PATIENCE,
		.rest = PATIENCE,
	};
	struct sockaddr_storage wanted = { 0 };
	struct metrics_server *server;
	socklen_t length = 0;
	int fd, error, code = http_resolve(where, &wanted, &length);

	if (code)
		return code;
	fd = http_listen(&wanted, length);
	if (fd < 0)
		return fail(-fd, "cannot listen on %s: %s%s", where, strerror(-fd),
			    fd == -EADDRINUSE ? "; choose another port, or 0 for a free one" : "");
	server = calloc(1, sizeof(*server));
	if (!server) {
		close(fd);
		return fail(ENOMEM, "out of memory");
	}
	server->make = make;
	server->arg = arg;
	http_address(fd, address, size);
	options.arg = server;
	error = http_start(&options, fd, &server->http);
	if (error) {
		free(server);
		return fail(-error, "cannot serve metrics at %s: %s", where, strerror(-error));
	}
	*out = server;
	return 0;
}

void metrics_stop(struct metrics_server *server)
{
	if (!server)
		return;
	http_stop(server->http);
	free(server);
}
