/* SPDX-License-Identifier: Apache-2.0 */
/* wherry spread: a file to the memory of many. Each receiver reads pieces from those that have them
 * (wherry/weights.h), so the sender's link carries about one copy and not one for each. */
#include "spread/spread.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine.h"
#include "output.h"
#include "plan/plan.h"
#include "service.h"
#include "spread/layout.h"
#include "util/address.h"
#include "util/error.h"

#define PAIRS 20 /* of a plan, shown */

/* ---- the command line ------------------------------------------------------------------------ */

static int receivers_parse(struct spread *spread)
{
	const struct arguments *arguments = spread->arguments;

	spread->count = (uint32_t)arguments->operand_count - 1;
	spread->receivers = calloc(spread->count, sizeof(*spread->receivers));
	if (!spread->receivers)
		return fail(ENOMEM, "out of memory");
	for (uint32_t i = 0; i < spread->count; i++) {
		struct receiver *receiver = &spread->receivers[i];
		const char *wrong;

		receiver->text = arguments->operands[i + 1];
		wrong = url_parse(receiver->text, &receiver->url);
		if (wrong)
			return usage_error("'%s' %s", receiver->text, wrong);
		if (receiver->url.offset)
			return usage_error("'%s': a file goes to the beginning; no offset",
					   receiver->text);
	}
	return 0;
}

static int spread_parse(struct spread *spread)
{
	const struct arguments *arguments = spread->arguments;
	int code = engine_parse_stall(arguments);

	if (!code)
		code = parse_size_option(arguments, "chunk", &spread->chunk);
	if (!code)
		code = parse_size_option(arguments, "piece", &spread->piece);
	if (!code)
		code = parse_rate_option(arguments, "link", &spread->link);
	if (!code && argument(arguments, "require"))
		code = usage_error("--require: the receivers read, and their own settings say by "
				   "what: use wherry serve --require");
	spread->path = arguments->operands[0];
	spread->quiet = argument(arguments, "quiet");
	spread->json = argument(arguments, "json");
	spread->plan = argument(arguments, "plan");
	spread->dry_run = argument(arguments, "dry-run");
	spread->separate = argument(arguments, "separate-hosts");
	return code ? code : receivers_parse(spread);
}

/* ---- the file -------------------------------------------------------------------------------- */

static int file_open(struct spread *spread)
{
	struct stat status;

	spread->file = open(spread->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (spread->file < 0 || fstat(spread->file, &status))
		return fail(errno == ENODEV ? EIO : errno, "cannot read %s: %s", spread->path,
			    strerror(errno));
	if (!S_ISREG(status.st_mode))
		return fail(EINVAL, "%s is no regular file", spread->path);
	if (!status.st_size)
		return fail(EINVAL, "%s is empty", spread->path);
	spread->size = (uint64_t)status.st_size;
	spread->changed = status.st_mtim;
	spread->address = mmap(NULL, spread->size, PROT_READ, MAP_SHARED, spread->file, 0);
	if (spread->address == MAP_FAILED) {
		spread->address = NULL;
		return fail(EIO, "cannot map %s: %s", spread->path, strerror(errno));
	}
	return 0;
}

/* The receivers have read the file while it was another one. */
static int file_check(const struct spread *spread)
{
	struct stat status;

	if (!fstat(spread->file, &status) && (uint64_t)status.st_size == spread->size &&
	    status.st_mtim.tv_sec == spread->changed.tv_sec &&
	    status.st_mtim.tv_nsec == spread->changed.tv_nsec)
		return 0;
	return fail(EIO, "%s was changed meanwhile: what the receivers have may be mixed",
		    spread->path);
}

static void file_close(struct spread *spread)
{
	if (spread->address)
		munmap(spread->address, spread->size);
	if (spread->file >= 0)
		close(spread->file);
}

/* ---- the engine ------------------------------------------------------------------------------ */

/* The address of this host from which it reaches a receiver. False: not known. */
static bool address_to(const struct url *url, struct sockaddr_storage *out)
{
	const char *authority = url->engine + strlen("wherry://");
	const char *port = strrchr(authority, ':');
	struct addrinfo hints = { .ai_socktype = SOCK_DGRAM }, *found;
	socklen_t length = sizeof(*out);
	char host[288];
	bool known;
	int fd;

	if (!port)
		return false;
	snprintf(host, sizeof(host), "%.*s", (int)(port - authority), authority);
	if (host[0] == '[') {
		memmove(host, host + 1, strlen(host));
		host[strcspn(host, "]")] = 0;
	}
	if (getaddrinfo(host, port + 1, &hints, &found))
		return false;
	/* Connecting a datagram socket sends nothing; it only chooses a route. */
	fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	known = fd >= 0 && !connect(fd, found->ai_addr, found->ai_addrlen) &&
		!getsockname(fd, (struct sockaddr *)out, &length);
	if (fd >= 0)
		close(fd);
	freeaddrinfo(found);
	return known;
}

/* Where the receivers reach this engine, if nobody has said: at the address from which this host
 * reaches them. "": there are several, or none is known. */
static void listen_choose(const struct spread *spread, char out[64])
{
	out[0] = 0;
	for (uint32_t i = 0; i < spread->count; i++) {
		struct sockaddr_storage address = { 0 };
		char text[64];

		if (!address_to(&spread->receivers[i].url, &address))
			continue;
		if (address.ss_family == AF_INET)
			((struct sockaddr_in *)&address)->sin_port = 0;
		else
			((struct sockaddr_in6 *)&address)->sin6_port = 0;
		wh_address_format(text, sizeof(text), &address);
		/* A host reaches itself by its other addresses, too. */
		if (!out[0] || !strncmp(out, "127.", 4) || !strncmp(out, "[::1]", 5))
			snprintf(out, 64, "%s", text);
		else if (strcmp(out, text) != 0 && strncmp(text, "127.", 4) != 0 &&
			 strncmp(text, "[::1]", 5) != 0)
			note("receivers are reached from %s and from %s; --listen names the "
			     "address at which all of them reach this host",
			     out, text);
	}
}

static int spread_open(struct spread *spread)
{
	struct engine_setup setup = { .listen = argument(spread->arguments, "listen"),
				      .name = argument(spread->arguments, "name") };
	char address[64];
	int code, error;

	if (!setup.listen && !*engine_setting(spread->arguments, "WHERRY_LISTEN", "listen")) {
		listen_choose(spread, address);
		setup.listen = address[0] ? address : NULL;
	}
	code = engine_open(spread->arguments, &setup, &spread->engine);
	if (code)
		return code;
	if (!*wh_engine_url(spread->engine))
		return usage_error("receivers read from this engine, and it does not listen: use "
				   "--listen ADDR:PORT");
	error = wh_queue_new(spread->engine, &spread->queue);
	return error ? engine_fail(error, "cannot wait for receivers") : 0;
}

/* ---- results --------------------------------------------------------------------------------- */

static int plan_show(const struct spread *spread)
{
	struct wh_layout *layouts[2] = { NULL, NULL };
	struct wh_plan *plan = NULL;
	struct wh_simulation simulation = { 0 };
	struct plan_summary summary = { 0 };
	struct plan_view view = { .simulation = &simulation, .summary = &summary, .most = PAIRS };
	int code = 0, error = spread_plan(&spread->offer, layouts, &plan);

	if (!error)
		error = wh_simulate(plan, &simulation);
	if (!error)
		error = plan_summarize(plan, &simulation, &summary);
	view.plan = plan;
	if (error)
		code = fail(error, "%s", wh_fail_text());
	else if (spread->json)
		code = plan_print_json(&view);
	else
		plan_print_text(&view);
	free(summary.pairs);
	wh_simulation_free(&simulation);
	wh_plan_free(plan);
	wh_layout_free(layouts[0]);
	wh_layout_free(layouts[1]);
	return code;
}

static double rate(uint64_t bytes, double seconds)
{
	return seconds > 0 ? (double)bytes / seconds / 1e9 : 0;
}

/* What this process has sent. */
static uint64_t bytes_sent(const struct spread *spread)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < spread->count; i++)
		for (uint32_t k = 0; k < spread->receivers[i].from_count; k++)
			if (!strcmp(spread->receivers[i].from[k].name,
				    wh_engine_name(spread->engine)))
				bytes += spread->receivers[i].from[k].bytes;
	return bytes;
}

static uint32_t receivers_done(const struct spread *spread)
{
	uint32_t done = 0;

	for (uint32_t i = 0; i < spread->count; i++)
		done += spread->receivers[i].state == RECEIVER_DONE;
	return done;
}

static json_t *receiver_json(const struct spread *spread, const struct receiver *receiver)
{
	bool done = receiver->state == RECEIVER_DONE;
	json_t *from = json_array();

	for (uint32_t i = 0; i < receiver->from_count; i++) {
		const struct spread_item *item = &receiver->from[i];
		char transport[16];

		snprintf(transport, sizeof(transport), "%.*s", (int)strcspn(item->text, ","),
			 item->text);
		json_array_append_new(from, json_pack("{s:s, s:I, s:o, s:o}", "engine", item->name,
						      "size_bytes", (json_int_t)item->bytes,
						      "transport", output_text(transport), "route",
						      output_text(item->text)));
	}
	return json_pack("{s:s, s:o, s:o, s:o, s:b, s:o, s:I, s:o, s:o, s:o}", "url",
			 receiver->text, "engine", output_text(receiver->name), "region",
			 output_text(receiver->region), "host", output_text(receiver->host), "done",
			 done, "error", output_text(receiver->why), "size_bytes",
			 (json_int_t)receiver->received, "duration_seconds",
			 done ? json_real(receiver->seconds) : json_null(), "bandwidth_GBps",
			 done ? json_real(rate(spread->size, receiver->seconds)) : json_null(),
			 "from", from);
}

static int print_json(const struct spread *spread)
{
	json_t *object = output_new(), *list = json_array();

	json_object_set_new(object, "file", output_text(spread->path));
	json_object_set_new(object, "size_bytes", json_integer((json_int_t)spread->size));
	json_object_set_new(object, "moved", json_boolean(!spread->dry_run));
	json_object_set_new(object, "duration_seconds", json_real(spread->seconds));
	json_object_set_new(object, "sent_bytes", json_integer((json_int_t)bytes_sent(spread)));
	json_object_set_new(object, "receivers_done", json_integer(receivers_done(spread)));
	for (uint32_t i = 0; i < spread->count; i++)
		json_array_append_new(list, receiver_json(spread, &spread->receivers[i]));
	json_object_set_new(object, "receivers", list);
	return output_print(object);
}

static void print_receiver(const struct spread *spread, const struct receiver *receiver)
{
	printf("%s: '%s' in %.3f s, %.2f GB/s", receiver->text, receiver->region, receiver->seconds,
	       rate(spread->size, receiver->seconds));
	for (uint32_t i = 0; i < receiver->from_count; i++) {
		const struct spread_item *item = &receiver->from[i];

		printf("%s %llu bytes from %s by %s", i ? "," : ";",
		       (unsigned long long)item->bytes, item->name,
		       item->text[0] ? item->text : "an unknown route");
	}
	putchar('\n');
}

static void print_text(const struct spread *spread)
{
	if (spread->dry_run) {
		for (uint32_t i = 0; i < spread->count; i++)
			if (spread->receivers[i].state == RECEIVER_WILLING)
				printf("%s: engine '%s' on %s would take %llu bytes as '%s'\n",
				       spread->receivers[i].text, spread->receivers[i].name,
				       spread->receivers[i].host, (unsigned long long)spread->size,
				       spread->receivers[i].region);
		return;
	}
	printf("spread %llu bytes to %u of %u receivers in %.3f s; this process sent %llu bytes\n",
	       (unsigned long long)spread->size, receivers_done(spread), spread->count,
	       spread->seconds, (unsigned long long)bytes_sent(spread));
	for (uint32_t i = 0; i < spread->count; i++)
		if (spread->receivers[i].state == RECEIVER_DONE)
			print_receiver(spread, &spread->receivers[i]);
}

static int results_print(const struct spread *spread)
{
	if (spread->json)
		return print_json(spread);
	if (!spread->quiet)
		print_text(spread);
	return 0;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int spread_move(struct spread *spread)
{
	int code = receivers_offer(spread);
	int end;

	if (!code)
		code = receivers_wait(spread);
	receivers_end(spread, spread->interrupted || !spread->started ? -ECANCELED : 0);
	if (!spread->started || spread->interrupted)
		return code;
	end = file_check(spread);
	code = code ? code : end;
	end = results_print(spread);
	return code ? code : end;
}

static int spread_all(struct spread *spread)
{
	int code = spread_open(spread);

	if (!code)
		code = receivers_ask(spread);
	if (!code)
		code = receivers_list(spread);
	if (!code && spread->plan)
		code = plan_show(spread);
	else if (!code && spread->dry_run)
		code = results_print(spread);
	else if (!code)
		code = spread_move(spread);
	return code ? code : spread->code;
}

static int spread_run(const struct arguments *arguments)
{
	struct spread spread = { .arguments = arguments, .file = -1 };
	int code = spread_parse(&spread);

	if (!code)
		code = file_open(&spread);
	if (!code)
		code = getrandom(spread.token, sizeof(spread.token), 0) == sizeof(spread.token) ?
			       0 :
			       fail(EIO, "the system gives no random numbers");
	if (!code) {
		spread.signals = service_signals(); /* before the engine has threads */
		code = spread.signals < 0 ? -spread.signals : spread_all(&spread);
		code = receivers_close(&spread, code);
		if (spread.interrupted)
			note("cancelled: %u of %u receivers have the file", receivers_done(&spread),
			     spread.count);
		if (spread.signals >= 0)
			service_end(spread.signals);
	}
	file_close(&spread);
	free(spread.receivers);
	/* As a program that has not blocked it. */
	if (spread.interrupted)
		raise(spread.interrupted);
	return code;
}

static const struct command_option options[] = {
	{ .name = "plan",
	  .help = "print who would send what to whom, and the expected time; move nothing" },
	{ .name = "dry-run", .letter = 'n', .help = "check everything, and move nothing" },
	{ .name = "listen",
	  .letter = 'l',
	  .argument = "ADDR:PORT",
	  .help = "where receivers reach this process; by default the address from which it "
		  "reaches them" },
	{ .name = "name",
	  .argument = "NAME",
	  .rare = true,
	  .help = "this engine's name for the receivers, as --weights-from has it" },
	{ .name = "separate-hosts",
	  .rare = true,
	  .help = "plan as if each receiver were on a host of its own" },
	{ .name = "link",
	  .argument = "RATE",
	  .help = "each host's link, such as 10Gbit; if not given, 8 NICs of 400Gbit are "
		  "assumed" },
	{ .name = "chunk",
	  .argument = "SIZE",
	  .rare = true,
	  .help = "parts of the file that may take different ways; by default 64MiB" },
	{ .name = "piece",
	  .argument = "SIZE",
	  .rare = true,
	  .help = "what is handed on as soon as it has come; by default 4MiB, or what a slower "
		  "--link moves in 5 ms" },
	STALL_OPTION,
	{ .name = "quiet", .letter = 'q', .help = "print errors only" },
	{ .name = "json", .letter = 'j', .help = "print the result, or the plan, as JSON" },
	ENGINE_OPTIONS,
	{ 0 },
};

const struct command command_spread = {
	.name = "spread",
	.usage = "FILE URL...",
	.summary = "Send a file to the memory of many",
	.details =
		"Each URL is wherry://HOST:PORT of a wherry serve --weights, with /NAME if it "
		"receives several files. Receivers read the pieces of FILE (such as "
		"model.safetensors) from this process and from each other: who has a piece hands "
		"it on, and each host is entered once. So it takes about as long as one copy, "
		"however many there are.\n"
		"\n"
		"Before a byte moves, every receiver that is there has said that it has room and "
		"that it takes files from this engine; one that cannot be reached or does not "
		"answer is left out. A receiver's region NAME is the whole "
		"file as soon as that receiver has it; until then readers find the former file, or "
		"no region.\n"
		"\n"
		"A receiver that dies, or of which nothing has come for --stall-timeout (unless it "
		"only waits for another that stands still), delays nobody: the others go on, one "
		"line says which failed, and the status is not 0. "
		"SIGINT and SIGTERM end it for all; receivers that have the whole file keep it, "
		"the others throw away what they have.\n"
		"\n"
		"The receivers read: by which transports, their own settings say. FILE must not "
		"change meanwhile; if it did, the command says so and fails. The "
		"plan's times are simulated from typical rates (docs/weights.md), or with one link "
		"of --link for each host; nothing is measured for them. Between hosts whose links "
		"are slower than 6 Gbit/s say --link: then the pieces that receivers hand on are "
		"smaller, and the last receiver waits less for its first one.",
	.examples = "wherry spread model.safetensors wherry://node1:7000 wherry://node2:7000\n"
		    "wherry spread model.safetensors wherry://node{1..8}:7000 --link 1Gbit "
		    "--plan\n"
		    "wherry spread model.safetensors wherry://node1:7000/draft --dry-run\n",
	.options = options,
	.least = 2,
	.most = INT_MAX,
	.run = spread_run,
};
