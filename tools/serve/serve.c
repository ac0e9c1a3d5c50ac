/* SPDX-License-Identifier: Apache-2.0 */
/* wherry serve: offer memory for others to read and write, until a signal arrives. */
#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "dir/message.h"
#include "engine.h"
#include "exporter/metrics.h"
#include "memory.h"
#include "progress.h"
#include "serve/dir.h"
#include "serve/file.h"
#include "serve/mooncake.h"
#include "serve/room.h"
#include "serve/weights.h"
#include "serve/withdraw.h"
#include "service.h"
#include "spread/message.h"

/* Peers have so long, all together, to let go of what was offered when the server ends. One that
 * never does is disconnected before, unless the setting `timeout` is raised. */
#define WITHDRAWN_MOST (30 * WH_SECOND)

/* One --memory MEM:SIZE[:NAME], or --weights. */
struct served {
	struct memory memory;
	uint64_t size;
	char name[64];
	void *address;
	struct wh_region *region;
};

struct server {
	const struct arguments *arguments;
	struct wh_engine *engine;
	struct served *memories;
	size_t count;
	struct served_file *files;
	size_t file_count;
	struct served_file *dirs;
	size_t dir_count;
	struct dir_server *dir_server;
	struct served *weights; /* only what was said: their memory comes later */
	size_t weights_count;
	struct weights_server *weights_server;
	struct mooncake_offer *offers; /* the same memory, for Mooncake */
	struct mooncake *mooncake;
};

/* ---- the command line ------------------------------------------------------------------------ */

static int parse_memory(const char *option, const char *text, struct served *out)
{
	const char *size, *name, *wrong = memory_parse(text, &out->memory, &size);
	char number[32];

	if (wrong)
		return usage_error("%s: '%s' %s", option, text, wrong);
	if (!*size)
		return usage_error(
			"%s: '%s' has no size; write MEM:SIZE, such as host:1GiB or cuda:0:1GiB",
			option, text);
	snprintf(number, sizeof(number), "%.*s", (int)strcspn(size, ":"), size);
	if (parse_size(number, option, &out->size))
		return EXIT_USAGE;
	if (!out->size)
		return usage_error("%s: '%s' has a size of 0", option, text);
	name = strchr(size, ':');
	if (!name)
		return 0;
	name++;
	if (!*name || strlen(name) >= sizeof(out->name))
		return usage_error("%s: '%s': a name must have 1 to 63 bytes", option, text);
	for (const char *c = name; *c; c++)
		if (!isalnum((unsigned char)*c) && !strchr("._-", *c))
			return usage_error("%s: the name '%s' has other characters than A-Z "
					   "a-z 0-9 . _ -",
					   option, name);
	snprintf(out->name, sizeof(out->name), "%s", name);
	return 0;
}

static bool is_taken(const struct server *server, const char *name, const struct served *except)
{
	for (size_t i = 0; i < server->count; i++)
		if (&server->memories[i] != except && strcmp(server->memories[i].name, name) == 0)
			return true;
	for (size_t i = 0; i < server->file_count; i++)
		if (strcmp(server->files[i].name, name) == 0)
			return true;
	for (size_t i = 0; i < server->dir_count; i++)
		if (strcmp(server->dirs[i].name, name) == 0)
			return true;
	for (size_t i = 0; i < server->weights_count; i++)
		if (&server->weights[i] != except && strcmp(server->weights[i].name, name) == 0)
			return true;
	return false;
}

/* The name of a region that was given none: its memory, with '-' for each colon. */
static void usual_name(const struct served *served, char *out, size_t size)
{
	snprintf(out, size, "%.*s", (int)size - 1, served->memory.name);
	for (char *c = out; *c; c++)
		if (*c == ':')
			*c = '-';
}

/* The name of file `i`, or of a directory behind the last file. */
static const char *path_name(const struct server *server, size_t i)
{
	return i < server->file_count ? server->files[i].name :
					server->dirs[i - server->file_count].name;
}

/* Name the unnamed: the memory, then the memory with a number. */
static int name_memories(struct server *server)
{
	for (size_t i = 0; i < server->count; i++) {
		struct served *memory = &server->memories[i];

		if (memory->name[0] && is_taken(server, memory->name, memory))
			return usage_error("--memory: two regions are named '%s'", memory->name);
	}
	for (size_t i = 0; i < server->file_count + server->dir_count; i++)
		for (size_t k = 0; k < i; k++)
			if (strcmp(path_name(server, i), path_name(server, k)) == 0)
				return usage_error("%s: two regions are named '%s'; add :name=NAME",
						   i < server->file_count ? "--file" : "--dir",
						   path_name(server, i));
	for (size_t i = 0; i < server->weights_count; i++)
		if (is_taken(server, server->weights[i].name, &server->weights[i]))
			return usage_error("--weights: two regions are named '%s'",
					   server->weights[i].name);
	for (size_t i = 0; i < server->count; i++) {
		struct served *memory = &server->memories[i];

		char usual[48];

		if (memory->name[0])
			continue;
		usual_name(memory, usual, sizeof(usual));
		snprintf(memory->name, sizeof(memory->name), "%s", usual);
		for (unsigned n = 1; is_taken(server, memory->name, memory); n++)
			snprintf(memory->name, sizeof(memory->name), "%s%s%u", usual,
				 isdigit((unsigned char)usual[strlen(usual) - 1]) ? "." : "", n);
	}
	return 0;
}

/* Check the sum before touching any of it: pages are taken when touched, and then it would be too
 * late. */
static int check_room(const struct server *server)
{
	uint64_t bytes = 0;
	bool locked = false;
	char text[MEMORY_TEXT];

	for (size_t i = 0; i < server->count; i++) {
		const struct served *served = &server->memories[i];

		if (memory_on_gpu(served->memory.kind))
			continue;
		locked = locked || memory_needs_gpu(served->memory.kind);
		if (__builtin_add_overflow(bytes, served->size, &bytes))
			bytes = UINT64_MAX;
	}
	if (memory_fits("", bytes, locked, text))
		return 0;
	return fail(ENOMEM, "cannot serve that much: %s", text);
}

static int parse_files(struct server *server)
{
	bool read_only = argument(server->arguments, "read-only");
	const char *text;
	int cursor = 0, error = 0;

	server->files = calloc((size_t)server->arguments->all_count + 1, sizeof(*server->files));
	if (!server->files)
		return fail(ENOMEM, "out of memory");
	while (!error && (text = argument_next(server->arguments, "file", &cursor)))
		error = served_file_parse("--file", text, read_only,
					  &server->files[server->file_count++]);
	server->dirs = calloc((size_t)server->arguments->all_count + 1, sizeof(*server->dirs));
	if (!server->dirs)
		return fail(ENOMEM, "out of memory");
	cursor = 0;
	while (!error && (text = argument_next(server->arguments, "dir", &cursor)))
		error = served_dir_parse(text, read_only, &server->dirs[server->dir_count++]);
	return error;
}

static int parse_weights(struct server *server)
{
	const char *text;
	int cursor = 0, error;

	server->weights =
		calloc((size_t)server->arguments->all_count + 1, sizeof(*server->weights));
	if (!server->weights)
		return fail(ENOMEM, "out of memory");
	while ((text = argument_next(server->arguments, "weights", &cursor))) {
		struct served *weights = &server->weights[server->weights_count];

		error = parse_memory("--weights", text, weights);
		if (error)
			return error;
		if (!weights->name[0])
			snprintf(weights->name, sizeof(weights->name), "weights");
		server->weights_count++;
	}
	if (server->weights_count && argument(server->arguments, "read-only"))
		return usage_error("--weights: they are received, and --read-only forbids it");
	if (!server->weights_count && argument_next(server->arguments, "weights-from", &(int){ 0 }))
		return usage_error("--weights-from says who may send, and there is no --weights");
	return 0;
}

static int serve_parse(struct server *server)
{
	const char *listen = argument(server->arguments, "listen"), *text;
	int cursor = 0, error;

	error = mooncake_check(server->arguments);
	if (error)
		return error;
	if (listen && (!*listen || strcmp(listen, "none") == 0))
		return usage_error("--listen: a server must listen; write ADDR:PORT");
	server->memories =
		calloc((size_t)server->arguments->all_count + 1, sizeof(*server->memories));
	if (!server->memories)
		return fail(ENOMEM, "out of memory");
	while ((text = argument_next(server->arguments, "memory", &cursor))) {
		error = parse_memory("--memory", text, &server->memories[server->count]);
		if (error)
			return error;
		server->count++;
	}
	error = parse_weights(server);
	if (!error)
		error = parse_files(server);
	if (error)
		return error;
	if (!server->count && !server->file_count && !server->dir_count && !server->weights_count)
		return usage_error("nothing to serve; use --memory host:1GiB");
	if (!server->count && mooncake_wanted(server->arguments))
		return usage_error("--mooncake offers memory, and there is none: use --memory");
	error = name_memories(server);
	return error ? error : check_room(server);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int publish_one(struct server *server, struct served *memory)
{
	bool read_only = argument(server->arguments, "read-only");

	struct wh_region_options region = {
		.size = sizeof(region),
		.name = memory->name,
		.access = WH_ACCESS_READ | (read_only ? 0 : WH_ACCESS_WRITE) | WH_ACCESS_LIST,
	};
	char what[160], size[32];
	int error;

	format_size(size, sizeof(size), memory->size);
	snprintf(what, sizeof(what), "cannot serve %s of %s memory", size, memory->memory.name);
	error = memory_alloc(server->engine, &memory->memory, memory->size, &memory->address);
	if (!error)
		error = wh_region_register(server->engine, memory->address, memory->size, &region,
					   &memory->region);
	return error ? engine_fail(error, what) : 0;
}

static int start_weights(struct server *server)
{
	struct weights_offer *offers = calloc(server->weights_count + 1, sizeof(*offers));
	int code;

	if (!offers)
		return fail(ENOMEM, "out of memory");
	for (size_t i = 0; i < server->weights_count; i++)
		offers[i] = (struct weights_offer){ .memory = server->weights[i].memory,
						    .limit = server->weights[i].size,
						    .name = server->weights[i].name };
	code = weights_server_start(server->engine, server->arguments, offers,
				    server->weights_count, &server->weights_server);
	free(offers);
	return code;
}

/* Have the descriptors that open files need, as far as the hard limit allows, which is usually far
 * above the soft one. Returns how many this process may have. */
static uint64_t descriptors_raise(void)
{
	struct rlimit limit, more;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return 0;
	more = limit;
	more.rlim_cur = limit.rlim_max < ROOM_DESCRIPTORS ? limit.rlim_max : ROOM_DESCRIPTORS;
	return limit.rlim_cur < more.rlim_cur && !setrlimit(RLIMIT_NOFILE, &more) ? more.rlim_cur :
										    limit.rlim_cur;
}

/* Pinning takes a while, and so does the first call of a GPU's driver. */
static int serve_publish(struct server *server)
{
	struct progress progress;
	int code = 0;

	progress_start_steps(&progress, "allocating memory", server->count, false);
	progress_watch(&progress);
	for (size_t i = 0; !code && i < server->count; i++) {
		code = publish_one(server, &server->memories[i]);
		progress_move(&progress, i + 1);
	}
	progress_end(&progress);
	for (size_t i = 0; !code && i < server->file_count; i++)
		code = served_file_publish(server->engine, &server->files[i]);
	if (!code)
		code = dir_server_start(server->engine, server->dirs, server->dir_count,
					server->dir_count ? descriptors_raise() : 0,
					&server->dir_server);
	if (!code && server->weights_count)
		code = start_weights(server);
	return code;
}

/* All peers are asked before any is waited for. */
static int serve_withdraw(struct server *server, int code)
{
	int64_t until = wh_now() + WITHDRAWN_MOST;
	int error;

	dir_server_end(server->dir_server);
	weights_server_end(server->weights_server);
	for (size_t i = 0; i < server->count; i++)
		if (!region_withdraw(server->memories[i].region, 0))
			server->memories[i].region = NULL;
	for (size_t i = 0; i < server->file_count; i++)
		if (!region_withdraw(server->files[i].region, 0))
			server->files[i].region = NULL;
	code = dir_server_stop(server->dir_server, until, code);
	code = weights_server_stop(server->weights_server, until, code);
	for (size_t i = 0; i < server->count; i++) {
		struct served *memory = &server->memories[i];

		error = region_withdraw(memory->region, until);
		if (!error && memory->address)
			error = wh_memory_free(server->engine, memory->address);
		code = engine_undo(code, error, "cannot withdraw the memory");
	}
	for (size_t i = 0; i < server->file_count; i++) {
		error = region_withdraw(server->files[i].region, until);
		code = engine_undo(code, error, "cannot withdraw a file");
	}
	return code;
}

/* ---- metrics --------------------------------------------------------------------------------- */

/* Of this engine alone; on the thread that answers the request. */
static void make_metrics(void *arg, struct metrics *metrics)
{
	struct server *server = arg;
	struct wh_observation observation;
	size_t length = WH_OBSERVED_MAX;
	uint8_t *bytes = malloc(length);

	if (!bytes || wh_engine_observe(server->engine, bytes, &length) ||
	    wh_observation_parse(bytes, length, &observation)) {
		metrics->failed = true;
	} else {
		observe_merge(&observation);
		metrics_engines(metrics, &observation, 1);
		wh_observation_free(&observation);
	}
	free(bytes);
}

static int start_metrics(struct server *server, struct metrics_server **out)
{
	const char *where = argument(server->arguments, "metrics");
	char address[160];
	int code;

	if (!where)
		return 0;
	code = metrics_serve(where, make_metrics, server, address, sizeof(address), out);
	if (!code)
		note("metrics at %s", address);
	return code;
}

/* ---- serving --------------------------------------------------------------------------------- */

/* Printable ASCII as it is, \xNN for everything else; in a `word` for spaces as well. */
static void print_escaped(const char *bytes, uint64_t length, bool word)
{
	for (uint64_t i = 0; i < length; i++) {
		unsigned char c = (unsigned char)bytes[i];

		if (c == '\\')
			fputs("\\\\", stdout);
		else if (c < 0x7f && (word ? c > ' ' : c >= ' '))
			putchar(c);
		else
			printf("\\x%02x", c);
	}
}

/* Print one notification in one line, whatever its bytes and sender: SENDER is one word that no
 * other sender can imitate. */
static void print_notification(const char *sender, uint64_t tag, const unsigned char *data,
			       uint64_t length)
{
	flockfile(stdout);
	if (!*sender)
		putchar('-');
	else if (!strcmp(sender, "-"))
		fputs("\\x2d", stdout);
	else
		print_escaped(sender, strlen(sender), true);
	printf(" 0x%llx %llu ", (unsigned long long)tag, (unsigned long long)length);
	print_escaped((const char *)data, length, false);
	putchar('\n');
	fflush(stdout);
	funlockfile(stdout);
}

/* ms between two looks while a hello of weights that are not open yet keeps the engine's descriptor
 * readable. */
#define HELLO_PAUSE 5

/* Take any notification but hellos of weights, which the library takes itself: those whose tags
 * differ from theirs first in one bit of the upper half, bit by bit. */
static int take_one(struct server *server, struct wh_notification *notification)
{
	struct wh_notification_filter filter = { .size = sizeof(filter) };
	int error = -EAGAIN;

	if (!server->weights_count)
		return wh_engine_notification(server->engine, NULL, notification, 0);
	for (int bit = 63; bit >= 32 && error == -EAGAIN; bit--) {
		filter.tag = WH_WEIGHTS_TAG ^ UINT64_C(1) << bit;
		filter.tag_mask = UINT64_MAX << bit;
		error = wh_engine_notification(server->engine, &filter, notification, 0);
	}
	return error;
}

/* Also without --weights: then the answer is that it takes none. */
static int take_spread(struct server *server, const struct wh_notification *notification)
{
	int code = server->weights_server ? 0 : start_weights(server);

	if (!code)
		weights_server_take(server->weights_server, notification);
	return code;
}

/* Receive notifications even if they are not shown: otherwise senders would wait for ever. `taken`:
 * some were there. */
static int take_notifications(struct server *server, bool *taken)
{
	bool show = argument(server->arguments, "notifications");
	static unsigned char bytes[WH_NOTIFICATION_MAX];
	struct wh_notification notification = { .size = sizeof(notification),
						.buffer = bytes,
						.capacity = sizeof(bytes) };
	int error, code = 0;

	*taken = false;
	while (!code && !(error = take_one(server, &notification))) {
		*taken = true;
		if (notification.tag == SPREAD_TAG)
			code = take_spread(server, &notification);
		else if (notification.tag == DIR_TAG && server->dir_server)
			dir_server_take(server->dir_server, &notification);
		else if (show)
			print_notification(notification.sender, notification.tag, bytes,
					   notification.length);
	}
	if (code)
		return code;
	return error == -EAGAIN ? 0 : engine_fail(error, "cannot receive notifications");
}

static void print_mooncake(void *arg, const char *name, const char *message)
{
	(void)arg;
	print_notification(*name ? name : "mooncake", 0, (const unsigned char *)message,
			   strlen(message));
}

static int start_mooncake(struct server *server)
{
	struct mooncake_setup setup = {
		.arguments = server->arguments,
		.engine = server->engine,
		.count = server->count,
		.writable = !argument(server->arguments, "read-only"),
		.notified = argument(server->arguments, "notifications") ? print_mooncake : NULL,
	};

	if (!mooncake_wanted(server->arguments))
		return 0;
	server->offers = calloc(server->count, sizeof(*server->offers));
	if (!server->offers)
		return fail(ENOMEM, "out of memory");
	for (size_t i = 0; i < server->count; i++) {
		const struct served *memory = &server->memories[i];

		server->offers[i] = (struct mooncake_offer){
			.name = memory->name,
			.address = memory->address,
			.size = memory->size,
			.region = memory->region,
			.on_gpu = memory_on_gpu(memory->memory.kind),
		};
	}
	setup.offers = server->offers;
	return mooncake_start(&setup, &server->mooncake);
}

static int serve_loop(struct server *server, int signals)
{
	struct pollfd fds[] = {
		{ .fd = signals, .events = POLLIN },
		{ .fd = wh_engine_notification_fd(server->engine), .events = POLLIN },
	};
	struct signalfd_siginfo signal;
	bool looks = true; /* at the second one, too */
	int code;

	code = service_print(wh_engine_url(server->engine));
	if (!code)
		code = start_mooncake(server);
	if (!code)
		code = service_ready(wh_engine_url(server->engine));
	if (code)
		return code;
	for (;;) {
		fds[1].revents = 0;
		if (poll(fds, looks ? 2 : 1, looks ? -1 : HELLO_PAUSE) < 0 && errno != EINTR)
			return fail(errno, "poll: %s", strerror(errno));
		if (fds[0].revents)
			return read(signals, &signal, sizeof(signal)) > 0 ? EXIT_PASS : EXIT_FAIL;
		looks = true;
		if (fds[1].revents)
			code = take_notifications(server, &looks);
		if (code)
			return code;
	}
}

static bool is_encrypted(const struct arguments *arguments)
{
	const char *value = engine_setting(arguments, "WHERRY_TLS", "tls");

	return strcmp(value, "1") == 0 || strcmp(value, "yes") == 0 || strcmp(value, "on") == 0 ||
	       strcmp(value, "true") == 0;
}

static void warn_if_open(const struct wh_engine *engine, const struct arguments *arguments)
{
	const char *host = wh_engine_url(engine) + strlen("wherry://");
	bool encrypted = is_encrypted(arguments);

	if (strncmp(host, "127.", 4) != 0 && strncmp(host, "[::1]", 5) != 0)
		note("%s is open to everybody who has %s; transfers are %sencrypted", host,
		     encrypted && *engine_setting(arguments, "WHERRY_TLS_CERT", "tls_cert") ?
			     "a certificate of tls_ca" :
			     "the key",
		     encrypted ? "" : "not ");
}

static int serve_run(const struct arguments *arguments)
{
	struct server server = { .arguments = arguments };
	struct engine_setup setup = { 0 };
	struct metrics_server *metrics = NULL;
	int signals, code = serve_parse(&server);

	if (code)
		goto end;
	signals = service_signals(); /* before the engine has threads */
	if (signals < 0) {
		code = -signals;
		goto end;
	}
	setup.listen = argument(arguments, "listen");
	setup.name = argument(arguments, "name");
	code = engine_open(arguments, &setup, &server.engine);
	if (code) {
		service_end(signals);
		goto end;
	}
	if (*wh_engine_url(server.engine))
		code = serve_publish(&server);
	else
		code = usage_error("the setting listen is none: use --listen ADDR:PORT");
	if (!code)
		code = start_metrics(&server, &metrics);
	if (!code) {
		warn_if_open(server.engine, arguments);
		code = serve_loop(&server, signals);
	}
	/* Withdrawing the memory may wait for peers. */
	service_end(signals);
	metrics_stop(metrics);
	code = mooncake_stop(server.mooncake, code);
	code = serve_withdraw(&server, code);
	code = engine_close(server.engine, code);
end:
	free(server.memories);
	free(server.weights);
	free(server.files);
	free(server.dirs);
	free(server.offers);
	return code;
}

static const struct command_option options[] = {
	{ .name = "memory",
	  .letter = 'm',
	  .argument = "MEM:SIZE[:NAME]",
	  .many = true,
	  .help = "host, pinned, pageable, cuda:0 ..." },
	{ .name = "file",
	  .letter = 'f',
	  .argument = "PATH[:rw][:grow=MAX]",
	  .many = true,
	  .help = "a regular file, as a region of its name" },
	{ .name = "dir",
	  .letter = 'd',
	  .argument = "PATH[:rw]",
	  .many = true,
	  .help = "a directory, for wherry copy" },
	{ .name = "weights",
	  .letter = 'w',
	  .argument = "MEM:SIZE[:NAME]",
	  .many = true,
	  .help = "receive files of up to SIZE from wherry spread" },
	{ .name = "weights-from",
	  .argument = "NAME",
	  .many = true,
	  .rare = true,
	  .help = "take such files from the engine NAME only; by default from all who have the "
		  "key" },
	{ .name = "listen",
	  .letter = 'l',
	  .argument = "ADDR:PORT",
	  .help = "by default 127.0.0.1:0, a free port" },
	{ .name = "name",
	  .letter = 'n',
	  .argument = "NAME",
	  .help = "the engine's name for its peers" },
	{ .name = "read-only", .letter = 'r', .help = "peers may read but not write" },
	{ .name = "notifications", .help = "print notifications: SENDER TAG LENGTH BYTES" },
	{ .name = "metrics",
	  .argument = "ADDR:PORT",
	  .rare = true,
	  .help = "counters for Prometheus, at /metrics" },
	{ .name = "mooncake", .rare = true, .help = "also offer the memory to Mooncake engines" },
	{ .name = "mooncake-listen",
	  .argument = "ADDR:PORT",
	  .rare = true,
	  .help = "where to listen for Mooncake engines; by default 127.0.0.1:0, a free port. "
		  "Anybody who reaches it can use the memory" },
	{ .name = "mooncake-metadata",
	  .argument = "URL",
	  .rare = true,
	  .help = "where Mooncake engines find each other, if not by address: "
		  "http://HOST:PORT/PATH (such as metadata) or etcd://HOST:PORT; @FILE: a file "
		  "of mode 0600 with the URL, which has a user and a password" },
	{ .name = "mooncake-name",
	  .argument = "NAME",
	  .rare = true,
	  .help = "the segment's name there; by default the address ADDR:PORT" },
	ENGINE_OPTIONS,
	{ 0 },
};

const struct command command_serve = {
	.name = "serve",
	.usage = "",
	.summary = "Offer memory for others to read and write",
	.details = "Prints one line, wherry://ADDR:PORT, when it is ready, and runs until "
		   "SIGINT or SIGTERM.\n"
		   "\n"
		   "Every peer has to prove a key. On this host Wherry makes a key for each "
		   "user. Between hosts the setting keyfile names the key's file on both sides; "
		   "a listener on any address but loopback needs one.\n"
		   "\n" MEMORY_HELP "\n"
		   "\n"
		   "Each --memory is one region. A region without a NAME is named after its "
		   "memory: host, then host1, host2; cuda-0, then cuda-0.1. Engines on the same "
		   "host map host memory and GPU memory. Pages of host memory are taken when "
		   "they are first touched.\n"
		   "\n"
		   "Each --file is one region, too, named after the file. Peers may read it, and "
		   "with :rw write it; this server alone reads and writes it. With :grow=MAX, "
		   "such as :grow=10GiB, writes make it longer, up to that, and it is created if "
		   "it is not there. :durable=data, or all, answers a write when its bytes "
		   "survive a crash of this machine. :name=NAME names the region. Symbolic links "
		   "are refused.\n"
		   "\n"
		   "Each --dir offers the regular files below a directory to wherry copy, as "
		   "wherry://ADDR:PORT/NAME/PATH; NAME is the directory's, or :name=NAME. With :rw "
		   "files and directories can be created and replaced, too; none is removed. Names "
		   "that are absolute or contain .., and symbolic links, are refused. A file that "
		   "is being written is .NAME.wherry-part, and gets its name once it is complete "
		   "and on the disk.\n"
		   "\n"
		   "Each --weights receives the files that wherry spread brings, one after the "
		   "other, as the region NAME (by default weights), which peers may read. The "
		   "region is there once a file is complete, and has that file's size; readers "
		   "find the former file or the new one, never both mixed. SIZE is the most that "
		   "a file may have. Memory is taken when a file comes: while one replaces "
		   "another, there are both. Anybody who has the key may send, or with "
		   "--weights-from the engines that it names.\n"
		   "\n"
		   "With --notifications each notification is one line, SENDER TAG LENGTH BYTES. "
		   "Bytes that are not printable ASCII are \\xNN, and a backslash is \\\\. "
		   "SENDER is one word with \\x20 for spaces; a sender without a name is a "
		   "single -.\n"
		   "\n"
		   "With --mooncake a further line for each region says how programs made for "
		   "Mooncake's transfer engine reach it: mooncake://ADDR:PORT/ADDRESS, its "
		   "bytes, its name. They use ADDR:PORT as the segment's name (metadata "
		   "P2PHANDSHAKE, protocol tcp) and ADDRESS as the target's offset. Every "
		   "request is checked, but Mooncake's protocol has no keys: anybody who "
		   "reaches the port can do what the regions allow.",
	.examples = "wherry serve -m cuda:0:8GiB:weights -m host:1GiB:cache --read-only\n"
		    "wherry serve --dir models --file cache.bin:rw:grow=10GiB\n"
		    "wherry serve -w host:20GiB:model -l 0.0.0.0:7000 -c "
		    "keyfile=/etc/wherry.key\n",
	.options = options,
	.least = 0,
	.most = 0,
	.run = serve_run,
};
