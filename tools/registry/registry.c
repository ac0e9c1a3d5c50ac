/* SPDX-License-Identifier: Apache-2.0 */
/* wherry registry: a name registry for engines, over HTTP. This file answers requests. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "command.h"
#include "http.h"
#include "progress.h"
#include "registry/registry.h"
#include "rendezvous/rendezvous.h"
#include "secret.h"
#include "service.h"
#include "util/clock.h"
#include "util/error.h"

#define LISTEN "127.0.0.1:7077"
#define LIMIT (256ULL << 20)
#define CONNECTIONS 4096
#define CONNECTION_MEMORY (16 << 10)
#define UNREAD (128 << 10) /* bytes of unread answers in the kernel, for each connection */
#define IDLE (300 * WH_SECOND)
#define PATIENCE (60 * WH_SECOND) /* to receive a body, and to send an answer */
/* Requests and answers of engines are small and always accepted; the number of connections bounds
 * them. Larger ones share the limits below, so that stalled clients cannot keep an engine from
 * renewing its lease. */
#define SMALL (4 << 10)
#define BODIES_MOST (64 << 20) /* bytes of all requests being received */
#define ANSWERS_MOST (64 << 20) /* bytes of all answers being sent */
#define LISTS_MOST 64 /* being sent */
#define LIST_PIECE (4 << 10)
#define SWEEP (200 * WH_MS)
#define SECRET_MAX 256

/* Only the HTTP server's thread uses it. */
struct server {
	struct store store;
	size_t bodies, answers; /* bytes */
	unsigned lists;
	char secret[SECRET_MAX]; /* "USER:PASSWORD"; "": no authentication */
	size_t secret_length;
};

/* A request, from its head to the end of its answer. */
struct request {
	char *body;
	size_t length;
	size_t answer; /* bytes charged to server.answers */
	bool too_long, over_limit;
};

/* ---- answers --------------------------------------------------------------------------------- */

static enum MHD_Result registry_answer(struct MHD_Connection *connection, unsigned status,
				       const char *type, const void *body, size_t length)
{
	struct MHD_Response *response =
		MHD_create_response_from_buffer(length, (void *)body, MHD_RESPMEM_MUST_COPY);
	enum MHD_Result result = MHD_NO;

	if (!response)
		return MHD_NO;
	MHD_add_response_header(response, "Wherry-Registry", "1");
	MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	if (status == MHD_HTTP_SERVICE_UNAVAILABLE)
		MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, "1");
	if (status == MHD_HTTP_UNAUTHORIZED)
		result =
			MHD_queue_basic_auth_fail_response(connection, "wherry registry", response);
	else
		result = MHD_queue_response(connection, status, response);
	MHD_destroy_response(response);
	return result;
}

static enum MHD_Result registry_say(struct MHD_Connection *connection, unsigned status,
				    const char *line)
{
	char text[256];
	int length = snprintf(text, sizeof(text), "%s\n", line);

	return registry_answer(connection, status, "text/plain", text, (size_t)length);
}

static enum MHD_Result registry_say_error(struct MHD_Connection *connection, int error)
{
	if (error == -ENOENT)
		return registry_say(connection, MHD_HTTP_NOT_FOUND, "no such key");
	if (error == -EEXIST)
		return registry_say(connection, MHD_HTTP_CONFLICT,
				    "the key belongs to another owner");
	if (error == -ENOSPC)
		return registry_say(connection, MHD_HTTP_INSUFFICIENT_STORAGE,
				    "the registry is full");
	return registry_say(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, strerror(-error));
}

/* A parameter of the query; NULL: missing. Sets *wrong if it is too long or has a NUL. */
static const char *request_parameter(struct MHD_Connection *connection, const char *name,
				     size_t most, bool *wrong)
{
	const char *value = NULL;
	size_t length = 0;

	if (!MHD_lookup_connection_value_n(connection, MHD_GET_ARGUMENT_KIND, name, strlen(name),
					   &value, &length) ||
	    !value)
		return NULL;
	if (length > most || strlen(value) != length)
		*wrong = true;
	return value;
}

/* Answer with a value, and charge it if it is large. */
static enum MHD_Result registry_answer_value(struct server *server,
					     struct MHD_Connection *connection,
					     struct request *request, unsigned status,
					     const struct store_record *record)
{
	if (record->value_length > SMALL) {
		if (record->value_length > ANSWERS_MOST - server->answers)
			return registry_say(
				connection, MHD_HTTP_SERVICE_UNAVAILABLE,
				"too many large answers are being sent; try again later");
		request->answer = record->value_length;
		server->answers += request->answer;
	}
	return registry_answer(connection, status, "application/json", record->value,
			       record->value_length);
}

/* ---- GET, PUT, DELETE ----------------------------------------------------------------------- */

struct listing {
	struct server *server;
	struct registry_list *list;
};

static ssize_t registry_read_piece(void *arg, uint64_t position, char *out, size_t most)
{
	struct listing *listing = arg;
	ssize_t length = registry_list_read(listing->list, out, most);

	(void)position;
	return length > 0 ? length :
	       length     ? MHD_CONTENT_READER_END_WITH_ERROR :
			    MHD_CONTENT_READER_END_OF_STREAM;
}

static void registry_end_list(void *arg)
{
	struct listing *listing = arg;

	listing->server->lists--;
	registry_list_free(listing->list);
	free(listing);
}

static enum MHD_Result registry_list_keys(struct server *server, struct MHD_Connection *connection,
					  const char *prefix)
{
	struct listing *listing;
	struct MHD_Response *response;
	enum MHD_Result result;

	if (server->lists == LISTS_MOST)
		return registry_say(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
				    "too many lists are being sent; try again later");
	listing = calloc(1, sizeof(*listing));
	if (!listing)
		return registry_say_error(connection, -ENOMEM);
	*listing = (struct listing){ server, registry_list_new(&server->store, prefix) };
	server->lists++;
	response = !listing->list ? NULL :
				    MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, LIST_PIECE,
								      registry_read_piece, listing,
								      registry_end_list);
	if (!response) {
		registry_end_list(listing);
		return registry_say_error(connection, -ENOMEM);
	}
	MHD_add_response_header(response, "Wherry-Registry", "1");
	MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, "application/json");
	result = MHD_queue_response(connection, MHD_HTTP_OK, response);
	MHD_destroy_response(response);
	return result;
}

static enum MHD_Result registry_get(struct server *server, struct MHD_Connection *connection,
				    const char *key, struct request *request)
{
	const struct store_record *record = store_get(&server->store, key);

	if (!record)
		return registry_say_error(connection, -ENOENT);
	return registry_answer_value(server, connection, request, MHD_HTTP_OK, record);
}

static enum MHD_Result registry_put(struct server *server, struct MHD_Connection *connection,
				    const char *key, const char *owner, struct request *request)
{
	const struct store_record *holder;
	bool wrong = false;
	const char *lease = request_parameter(connection, "lease", 7, &wrong);
	size_t digits = lease ? strspn(lease, "0123456789") : 0;
	unsigned long ms = lease && !wrong ? strtoul(lease, NULL, 10) : 0;
	int error;

	if (lease && (wrong || !digits || lease[digits] || !ms || ms > REGISTRY_LEASE_MOST))
		return registry_say(connection, MHD_HTTP_BAD_REQUEST,
				    "lease= must be 1 to 3600000 milliseconds");
	error = store_put(&server->store, key, owner ? owner : "", (uint32_t)ms,
			  request->body ? request->body : "", request->length, &holder);
	if (error == -EEXIST)
		return registry_answer_value(server, connection, request, MHD_HTTP_CONFLICT,
					     holder);
	return error ? registry_say_error(connection, error) :
		       registry_say(connection, MHD_HTTP_OK, "ok");
}

static enum MHD_Result registry_serve(struct server *server, struct MHD_Connection *connection,
				      const char *method, struct request *request)
{
	bool wrong = false;
	const char *key = request_parameter(connection, "key", REGISTRY_KEY_MAX, &wrong);
	const char *prefix = request_parameter(connection, "prefix", REGISTRY_KEY_MAX, &wrong);
	const char *owner = request_parameter(connection, "owner", REGISTRY_OWNER_MAX, &wrong);
	int error;

	if (wrong)
		return registry_say(connection, MHD_HTTP_BAD_REQUEST,
				    "a key or prefix is longer than 512 bytes, an owner is longer "
				    "than 64 bytes, or one has a NUL");
	if (!strcmp(method, "GET") && prefix && !key)
		return registry_list_keys(server, connection, prefix);
	if (!key || !*key)
		return registry_say(
			connection, MHD_HTTP_BAD_REQUEST,
			"the key is missing: use ?key=KEY, or ?prefix=PREFIX for a list");
	if (!strcmp(method, "GET"))
		return registry_get(server, connection, key, request);
	if (!strcmp(method, "PUT"))
		return registry_put(server, connection, key, owner, request);
	error = store_delete(&server->store, key, owner);
	return error ? registry_say_error(connection, error) :
		       registry_say(connection, MHD_HTTP_OK, "ok");
}

/* ---- requests -------------------------------------------------------------------------------- */

static bool server_authenticate(const struct server *server, struct MHD_Connection *connection)
{
	char *password = NULL, *user, given[2 * SECRET_MAX];
	size_t length;
	bool same;

	if (!server->secret_length)
		return true;
	user = MHD_basic_auth_get_username_password(connection, &password);
	length = (size_t)snprintf(given, sizeof(given), "%s:%s", user ? user : "",
				  password ? password : "");
	same = user && password && length == server->secret_length &&
	       !CRYPTO_memcmp(given, server->secret, length);
	OPENSSL_cleanse(given, sizeof(given));
	MHD_free(user);
	MHD_free(password);
	return same;
}

static enum MHD_Result request_begin(struct server *server, struct MHD_Connection *connection,
				     const char *path, const char *method, void **state)
{
	if (!server_authenticate(server, connection))
		return registry_say(connection, MHD_HTTP_UNAUTHORIZED,
				    "this registry requires a user and a password");
	if (strcmp(path, "/") && strcmp(path, "/metadata"))
		return registry_say(connection, MHD_HTTP_NOT_FOUND,
				    "not found: the path is / or /metadata");
	if (strcmp(method, "GET") && strcmp(method, "PUT") && strcmp(method, "DELETE"))
		return registry_say(connection, MHD_HTTP_METHOD_NOT_ALLOWED,
				    "only GET, PUT and DELETE are supported");
	*state = calloc(1, sizeof(struct request));
	return *state ? MHD_YES : MHD_NO;
}

static void request_receive(struct server *server, struct request *request, const char *data,
			    size_t length)
{
	char *more;

	request->too_long |= length > REGISTRY_VALUE_MAX - request->length;
	request->over_limit |=
		request->length + length > SMALL &&
		(server->bodies > BODIES_MOST || length > BODIES_MOST - server->bodies);
	/* Read a refused body, too: otherwise the client would not read the answer. */
	if (request->too_long || request->over_limit)
		return;
	more = realloc(request->body, request->length + length);
	if (!more) {
		request->over_limit = true;
		return;
	}
	memcpy(more + request->length, data, length);
	request->body = more;
	request->length += length;
	server->bodies += length;
}

static enum MHD_Result request_handle(void *argument, struct MHD_Connection *connection,
				      const char *path, const char *method, const char *version,
				      const char *data, size_t *length, void **state)
{
	struct server *server = argument;
	struct request *request = *state;

	(void)version;
	if (!request)
		return request_begin(server, connection, path, method, state);
	if (*length) {
		request_receive(server, request, data, *length);
		*length = 0;
		return MHD_YES;
	}
	if (request->too_long)
		return registry_say(connection, MHD_HTTP_CONTENT_TOO_LARGE,
				    "a value has at most 1 MiB");
	if (request->over_limit)
		return registry_say(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
				    "too many large requests at once; try again later");
	return registry_serve(server, connection, method, request);
}

static void request_done(void *argument, struct MHD_Connection *connection, void **state,
			 enum MHD_RequestTerminationCode code)
{
	struct server *server = argument;
	struct request *request = *state;

	(void)connection, (void)code;
	if (!request)
		return;
	server->bodies -= request->length;
	server->answers -= request->answer;
	free(request->body);
	free(request);
	*state = NULL;
}

/* ---- starting -------------------------------------------------------------------------------- */

/* Read --auth: one line, USER:PASSWORD, in a file of mode 0600. */
static int server_read_secret(struct server *server, const char *path)
{
	int code = secret_read("--auth", path, server->secret, sizeof(server->secret) - 2);

	server->secret_length = code ? 0 : strlen(server->secret);
	if (!code && (server->secret_length < 3 || !strchr(server->secret, ':')))
		code = fail(EINVAL, "--auth %s: must have one line, USER:PASSWORD", path);
	return code;
}

/* Listen. The descriptor, and the address as a URL; or minus an exit code. */
static int server_open_listener(const char *where, char *url, size_t size)
{
	struct sockaddr_storage address[WH_RENDEZVOUS_MOST], bound;
	unsigned count = WH_RENDEZVOUS_MOST;
	socklen_t length = sizeof(bound);
	int error = wh_rendezvous_resolve(where, WH_RESOLVE_LISTENING, address, &count);
	int fd, one = 1;
	char text[64];

	if (error)
		return -usage_error("--listen: %s", wh_fail_text());
	fd = socket(address[0].ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (fd < 0 ||
	    bind(fd, (struct sockaddr *)&address[0],
		 address[0].ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) :
						    sizeof(struct sockaddr_in)) ||
	    listen(fd, 1024) || getsockname(fd, (struct sockaddr *)&bound, &length)) {
		error = errno;
		if (fd >= 0)
			close(fd);
		return -fail(error, "cannot listen on %s: %s", where, strerror(error));
	}
	wh_address_format(text, sizeof(text), &bound);
	snprintf(url, size, "http://%s", text);
	return fd;
}

static unsigned server_connections(void)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files))
		return 64;
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	if (getrlimit(RLIMIT_NOFILE, &files) || files.rlim_cur < 256)
		return 64;
	/* Keep some descriptors for the log, and for connections that are closing. */
	return files.rlim_cur - 128 < CONNECTIONS ? (unsigned)files.rlim_cur - 128 : CONNECTIONS;
}

static void registry_expire(void *arg)
{
	struct server *server = arg;

	store_expire(&server->store);
}

static int server_wait(int signals, const char *url)
{
	struct signalfd_siginfo signal;
	int code = service_print(url);

	if (!code)
		code = service_ready(url);
	if (code)
		return code;
	if (read(signals, &signal, sizeof(signal)) != sizeof(signal))
		return fail(errno, "signalfd: %s", strerror(errno));
	return EXIT_PASS;
}

static int server_run(struct server *server, int listener, const char *url)
{
	struct http_options http_options = {
		.handle = request_handle,
		.done = request_done,
		.tick = registry_expire,
		.every = SWEEP,
		.arg = server,
		.connections = server_connections(),
		.memory = CONNECTION_MEMORY,
		.unread = UNREAD,
		.head = IDLE,
		.rest = PATIENCE,
	};
	struct http_server *http;
	int signals, code;

	http_options.of_address = http_options.connections / 2;
	signals = service_signals(); /* before there are threads */
	if (signals < 0) {
		close(listener);
		return -signals;
	}
	code = http_start(&http_options, listener, &http);
	if (code) {
		service_end(signals);
		return fail(-code, "cannot serve at %s: %s", url, strerror(-code));
	}
	code = server_wait(signals, url);
	service_end(signals);
	http_stop(http);
	return code;
}

static void progress_log_moved(void *arg, uint64_t bytes, uint64_t all)
{
	struct progress *progress = arg;

	progress->total = all;
	progress_move(progress, bytes);
}

static int server_open_store(struct server *server, const char *path, uint64_t limit)
{
	struct progress progress;
	struct log_watch watch = { progress_log_moved, &progress };
	uint64_t lost;
	int error;

	progress_start(&progress, "reading the log", 0, false);
	error = store_open(&server->store, path, limit, &watch, &lost);
	progress_end(&progress);
	if (error == -EWOULDBLOCK)
		return fail(EBUSY, "--file %s: another registry uses it", path);
	if (error == -EINVAL)
		return fail(EINVAL, "--file %s: not the log of a registry", path);
	if (error)
		return fail(error, "--file %s: %s", path ? path : "", strerror(-error));
	if (lost)
		note("warning: %s was damaged at its end, as after a power cut: %" PRIu64
		     " bytes were moved to %s.damaged",
		     path, lost, path);
	return 0;
}

static int registry_run(const struct arguments *arguments)
{
	const char *where = argument(arguments, "listen"), *limit = argument(arguments, "limit");
	const char *auth = argument(arguments, "auth");
	struct server server = { .lists = 0 };
	uint64_t most = LIMIT;
	char url[96];
	int listener, code = 0;

	if (limit && parse_size(limit, "--limit", &most))
		return EXIT_USAGE;
	if (most < 4096)
		return usage_error("--limit: %s is less than 4 KiB", limit);
	if (auth)
		code = server_read_secret(&server, auth);
	if (!code)
		code = server_open_store(&server, argument(arguments, "file"), most);
	if (code)
		goto end;
	listener = server_open_listener(where ? where : LISTEN, url, sizeof(url));
	if (listener < 0) {
		code = -listener;
	} else {
		if (!auth && strncmp(url, "http://127.", 11) != 0 &&
		    strncmp(url, "http://[::1]", 12) != 0)
			note("warning: anybody who reaches %s can change registrations; --auth "
			     "requires a password",
			     url);
		code = server_run(&server, listener, url);
	}
	store_close(&server.store);
end:
	OPENSSL_cleanse(server.secret, sizeof(server.secret));
	return code;
}

static const struct command_option options[] = {
	{ .name = "listen",
	  .letter = 'l',
	  .argument = "ADDR:PORT",
	  .help = "where to listen; default " LISTEN },
	{ .name = "file",
	  .letter = 'f',
	  .argument = "FILE",
	  .complete = "file",
	  .help = "keep registrations in this log; default: in memory only" },
	{ .name = "limit",
	  .argument = "SIZE",
	  .help = "limit of all keys and values; default 256 MiB" },
	{ .name = "auth",
	  .argument = "FILE",
	  .complete = "file",
	  .help = "file (mode 0600) with USER:PASSWORD, which clients must send" },
	{ 0 },
};

const struct command command_registry = {
	.name = "registry",
	.usage = "",
	.summary = "Run a name registry",
	.details = "Prints one line, http://ADDR:PORT, when it is ready, and runs until SIGINT or "
		   "SIGTERM. Engines with this URL in the setting registry (or in WHERRY_REGISTRY) "
		   "register their names here and reach each other as wherry://NAME.\n\n"
		   "A name stays as long as its engine renews its lease. With --file every change "
		   "is on disk before it is confirmed, and survives a crash; the file is compacted "
		   "automatically.\n\n"
		   "Requests are GET, PUT and DELETE of /?key=KEY or /metadata?key=KEY. PUT takes "
		   "&lease=MS and &owner=NAME: while the lease runs, a PUT of another owner fails "
		   "with 409. GET /?prefix=PREFIX lists keys as JSON. A key has at most 512 bytes, "
		   "a value at most 1 MiB.",
	.examples = "wherry registry --file /var/lib/wherry/registry.log\n"
		    "wherry serve -m host:1GiB -n node7 -c registry=http://127.0.0.1:7077\n"
		    "wherry copy FILE wherry://node7/host -c registry=http://127.0.0.1:7077\n",
	.options = options,
	.least = 0,
	.most = 0,
	.run = registry_run,
};
