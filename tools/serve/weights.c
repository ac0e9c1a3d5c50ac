/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wherry serve --weights: files that wherry spread brings.
 *
 * A thread answers the sender's messages, and looks after what is being received: the library's
 * weights (wherry/weights.h) move the bytes, into memory of their own. When all are there, that
 * memory becomes the region of the name, and the memory of the file before is freed, on a thread of
 * its own, because it waits for its readers; so does leaving a spread. So a reader finds one file
 * or the other, whole.
 */
#include "serve/weights.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine.h"
#include "platform/machine.h"
#include "serve/reply.h"
#include "serve/requests.h"
#include "serve/senders.h"
#include "serve/withdraw.h"
#include "spread/layout.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/text.h"

#define REQUESTS_MAX 64 /* that wait for the thread */
#define TICK_BUSY (10 * WH_MS)
#define TICK_IDLE WH_SECOND
#define LOST (5 * WH_SECOND) /* without a connection to the sender */
#define SEND (10 * WH_SECOND)
#define FROM_MOST 32 /* members in a report */
#define RETIRE_STEP (100 * WH_MS) /* until it is seen that the server ends */

/* A message on its way. */
struct outgoing {
	struct outgoing *next;
	struct wh_peer *peer;
	struct wh_batch *batch;
	bool last; /* the peer is for this one only */
	int64_t until;
};

struct copy {
	void *address;
	uint64_t bytes;
	struct wh_region *region;
};

struct weights_set {
	struct weights_server *server;
	struct weights_offer offer;
	struct copy current; /* what readers get */
	struct copy former; /* `retiring` frees it */
	pthread_t retiring;
	bool has_former;
	_Atomic bool retired; /* `retiring` has ended */

	/* What is being received. */
	struct wh_weights *weights; /* NULL: nothing */
	struct wh_peer *sender;
	char sender_name[64];
	uint8_t token[SPREAD_TOKEN];
	struct copy coming; /* its address is NULL once it is published */
	bool leaving, reported;
	pthread_t leaver; /* closes `weights`, if `leaving` */
	_Atomic bool left; /* `leaver` has ended */
	int left_error;
	int64_t lost; /* since when; 0: it is connected */
};

struct weights_server {
	struct wh_engine *engine;
	const struct arguments *arguments;
	struct weights_set *sets;
	size_t count;
	char machine[2 * WH_MACHINE_SIZE + 1];
	struct senders senders;
	struct outgoing *outgoing;
	_Atomic bool ending;
	struct requests requests;
	struct wh_log_limit notes;
};

/* One line about a file that comes; a sender can have as many as it likes begin and end. */
#define spread_note(server, ...)                                                                   \
	do {                                                                                       \
		enum wh_log_turn turn = wh_log_limit_take(&(server)->notes, 0);                    \
                                                                                                   \
		if (turn != WH_LOG_NOT)                                                            \
			note(__VA_ARGS__);                                                         \
		if (turn == WH_LOG_LAST)                                                           \
			note("what else there is about files is left out for some seconds");       \
	} while (false)

/* ---- telling the sender ---------------------------------------------------------------------- */

static void outgoing_free(struct outgoing **link)
{
	struct outgoing *outgoing = *link;

	*link = outgoing->next;
	if (outgoing->batch && wh_batch_test(outgoing->batch) == -EAGAIN)
		wh_batch_cancel(outgoing->batch);
	wh_batch_free(outgoing->batch);
	if (outgoing->last)
		wh_peer_close(outgoing->peer);
	free(outgoing);
}

/* Let go of what has been sent, or takes too long; all of it, of `peer`. */
static void outgoing_tick(struct weights_server *server, const struct wh_peer *peer)
{
	struct outgoing **link = &server->outgoing;
	int64_t now = wh_now();

	while (*link)
		if ((*link)->peer == peer || now >= (*link)->until ||
		    wh_batch_test((*link)->batch) != -EAGAIN)
			outgoing_free(link);
		else
			link = &(*link)->next;
}

/* Send it, without waiting; what becomes of it nobody asks. `last`: close the peer then. */
static void send_message(struct weights_server *server, struct wh_peer *peer,
			 const struct spread_message *message, bool last)
{
	uint8_t *bytes = malloc(WH_NOTIFICATION_MAX);
	struct outgoing *outgoing = calloc(1, sizeof(*outgoing));
	size_t length = bytes ? spread_message_encode(message, bytes, WH_NOTIFICATION_MAX) : 0;
	int error = length && outgoing ? wh_batch_new(peer, NULL, &outgoing->batch) : -ENOMEM;

	if (!error)
		error = wh_batch_notify(outgoing->batch, SPREAD_TAG, bytes, length);
	if (!error)
		error = wh_batch_submit(outgoing->batch);
	free(bytes);
	if (!outgoing) {
		if (last)
			wh_peer_close(peer);
		return;
	}
	outgoing->peer = peer;
	outgoing->last = last;
	outgoing->until = wh_now() + (error ? 0 : SEND);
	outgoing->next = server->outgoing;
	server->outgoing = outgoing;
	if (error)
		outgoing_free(&server->outgoing);
}

/* Others may still hold the memory. */
static void *leave(void *arg)
{
	struct weights_set *set = arg;

	do {
		set->left_error = wh_weights_close(set->weights);
	} while (set->left_error == -EBUSY && !set->server->ending);
	set->left = true;
	return NULL;
}

/* Leave the spread. To be called again until it has no weights. */
static void set_leave(struct weights_set *set)
{
	if (!set->leaving) {
		set->left = false;
		set->leaving = !pthread_create(&set->leaver, NULL, leave, set);
	}
	if (!set->leaving || !set->left)
		return;
	pthread_join(set->leaver, NULL);
	set->leaving = false;
	if (set->left_error)
		return;
	set->weights = NULL;
	if (set->coming.address)
		wh_memory_free(set->server->engine, set->coming.address);
	set->coming = (struct copy){ 0 };
	outgoing_tick(set->server, set->sender);
	wh_peer_close(set->sender);
	set->sender = NULL;
}

/* ---- may it come? ---------------------------------------------------------------------------- */

/* Why not, for the sender. */
struct refusal {
	int error;
	char text[sizeof(((struct spread_item *)NULL)->text)];
};

__attribute__((format(printf, 3, 4))) static bool refuse(struct refusal *out, int error,
							 const char *format, ...)
{
	va_list arguments;

	out->error = error;
	va_start(arguments, format);
	vsnprintf(out->text, sizeof(out->text), format, arguments);
	va_end(arguments);
	return false;
}

static bool sender_may(const struct weights_server *server, const char *sender)
{
	const char *name = argument_next(server->arguments, "weights-from", &(int){ 0 });
	int cursor = 0;

	if (!name)
		return true;
	while ((name = argument_next(server->arguments, "weights-from", &cursor)))
		if (strcmp(name, sender) == 0)
			return true;
	return false;
}

static struct weights_set *set_find(struct weights_server *server, const char *name,
				    struct refusal *why)
{
	char names[160] = "";
	size_t used = 0;

	for (size_t i = 0; i < server->count; i++) {
		if (strcmp(server->sets[i].offer.name, name) == 0 || (!*name && server->count == 1))
			return &server->sets[i];
		if (used < sizeof(names) - 1)
			used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s",
						 i ? ", " : "", server->sets[i].offer.name);
	}
	if (!server->count)
		refuse(why, ENOENT, "it receives no files: start it with wherry serve --weights");
	else if (*name)
		refuse(why, ENOENT, "it receives no '%s', but %s", name, names);
	else
		refuse(why, ENOENT, "which of %s? Write wherry://HOST:PORT/NAME", names);
	return NULL;
}

static bool size_fits(const struct weights_set *set, uint64_t size, struct refusal *why)
{
	char wanted[32], limit[32], text[MEMORY_TEXT];

	format_size(wanted, sizeof(wanted), size);
	format_size(limit, sizeof(limit), set->offer.limit);
	if (!size || size > set->offer.limit)
		return refuse(why, EFBIG, "'%s' takes files of up to %s, not %s", set->offer.name,
			      limit, wanted);
	if (!memory_on_gpu(set->offer.memory.kind) &&
	    !memory_fits("", size, memory_needs_gpu(set->offer.memory.kind), text))
		return refuse(why, ENOMEM, "there is no room for '%s': %s", set->offer.name, text);
	return true;
}

/* The set that the file goes to; NULL: see *why. */
static struct weights_set *set_choose(struct weights_server *server, const char *sender,
				      const char *name, uint64_t size, struct refusal *why)
{
	struct weights_set *set;

	if (!sender_may(server, sender)) {
		refuse(why, EACCES, "it takes no files from '%s': --weights-from names who may",
		       sender);
		return NULL;
	}
	set = set_find(server, name, why);
	if (!set || !size_fits(set, size, why))
		return NULL;
	if (set->weights) {
		refuse(why, EBUSY, "'%s' is receiving a file from '%s'", set->offer.name,
		       set->sender_name);
		return NULL;
	}
	return set;
}

/* For the plan only: which of this machine's GPUs. */
static void location_text(const struct memory *memory, char out[32])
{
	const char *gpu = strstr(memory->location, "cuda:");
	size_t digits = gpu ? strspn(gpu + 5, "0123456789") : 0;

	out[0] = 0;
	if (memory_on_gpu(memory->kind))
		snprintf(out, 32, "cuda:%.*s",
			 digits && digits < 5 && !gpu[5 + digits] ? (int)digits : 1,
			 digits && digits < 5 && !gpu[5 + digits] ? gpu + 5 : "0");
}

/* The answer goes to `peer`, which it takes. */
static void ask(struct weights_server *server, const struct request *request,
		const struct spread_message *message, struct wh_peer *peer)
{
	const struct spread_item *from = &message->items[0];
	struct refusal why = { 0 };
	struct weights_set *set =
		set_choose(server, request->sender, from->text, message->size, &why);
	struct spread_item item = { 0 };
	struct spread_message answer = {
		.op = SPREAD_ANSWER, .status = (uint32_t)why.error, .count = 1, .items = &item
	};

	memcpy(answer.token, message->token, sizeof(answer.token));
	if (set) {
		answer.size = set->offer.limit;
		item.bytes = SPREAD_KNOWS_LINK;
		snprintf(item.name, sizeof(item.name), "%s", set->offer.name);
		snprintf(item.host, sizeof(item.host), "%s", server->machine);
		location_text(&set->offer.memory, item.location);
		gethostname(item.text, sizeof(item.text) - 1);
	} else {
		memcpy(item.text, why.text, sizeof(item.text));
	}
	send_message(server, peer, &answer, true);
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* This engine's own place in the offer; NULL: it has none. */
static const struct spread_item *offer_own(const struct weights_server *server,
					   const struct spread_message *offer)
{
	for (uint32_t i = 1; i < offer->count; i++)
		if (strcmp(offer->items[i].name, wh_engine_name(server->engine)) == 0)
			return &offer->items[i];
	return NULL;
}

/* What was there before may take a moment to go: the spread before, and of an offer the file before
 * the current one. */
static bool set_is_ready(struct weights_set *set, bool is_offer)
{
	if (set->leaving)
		set_leave(set);
	return !set->leaving && (!is_offer || !set->has_former || set->retired);
}

/* Make room, and become a member. */
static bool coming_open(struct weights_server *server, struct weights_set *set,
			const struct spread_message *offer, struct refusal *why)
{
	int error;

	if (set->has_former && !set->retired)
		return refuse(why, EBUSY, "readers of '%s' have not let go of the file before",
			      set->offer.name);
	if (set->has_former)
		pthread_join(set->retiring, NULL);
	set->has_former = false;
	error = memory_alloc(server->engine, &set->offer.memory, offer->size, &set->coming.address);
	if (error)
		return refuse(why, -error, "%s", wh_error_text());
	set->coming.bytes = offer->size;
	error = spread_weights_open(server->engine, offer, set->coming.address, &set->weights);
	if (!error)
		return true;
	refuse(why, -error, "%s", wh_error_text());
	wh_memory_free(server->engine, set->coming.address);
	set->coming = (struct copy){ 0 };
	return false;
}

/* The first engine in the list without an address; NULL: all have one. Names are not looked up. */
static const struct spread_item *offer_unreachable(const struct spread_message *offer)
{
	struct sockaddr_storage address;

	for (uint32_t i = 0; i < offer->count; i++)
		if (!reply_address(offer->items[i].url, &address))
			return &offer->items[i];
	return NULL;
}

/* Does the list of engines have its sender, whose name the engine has proved, first, and this one?
 */
static bool offer_is_ours(struct weights_server *server, const struct request *request,
			  const struct spread_message *offer)
{
	if (offer->count >= 2 && !strcmp(offer->items[0].name, request->sender) &&
	    offer_own(server, offer))
		return true;
	if (request_may_note(&server->requests, request))
		note("'%s' offers a file, and its list of engines does not have it and this one",
		     request->sender);
	return false;
}

/* The answer goes to `peer`, which it takes. */
static void take_offer(struct weights_server *server, const struct request *request,
		       const struct spread_message *offer, struct wh_peer *peer)
{
	const struct spread_item *own = offer_own(server, offer);
	const struct spread_item *lost = offer_unreachable(offer);
	const char *wrong = spread_sizes_wrong(offer, offer->count - 1);
	struct spread_item item = { 0 };
	struct spread_message ready = { .op = SPREAD_READY, .count = 1, .items = &item };
	struct refusal why = { 0 };
	struct weights_set *set = NULL;

	memcpy(ready.token, offer->token, sizeof(ready.token));
	if (wrong)
		refuse(&why, EINVAL, "%s", wrong);
	else if (lost)
		refuse(&why, EINVAL, "the list of engines has no address for '%s'", lost->name);
	else
		set = set_choose(server, request->sender, own->text, offer->size, &why);
	if (set && !coming_open(server, set, offer, &why))
		set = NULL;
	ready.status = (uint32_t)why.error;
	memcpy(item.text, why.text, sizeof(item.text));
	if (set) {
		set->sender = peer;
		set->lost = 0;
		set->leaving = set->reported = false;
		memcpy(set->token, offer->token, sizeof(set->token));
		snprintf(set->sender_name, sizeof(set->sender_name), "%s", request->sender);
	}
	send_message(server, peer, &ready, !set);
}

/* Free what readers had before. They may take a while to let go. */
static void *retire(void *arg)
{
	struct weights_set *set = arg;
	int error;

	do {
		error = wh_region_unregister_for(set->former.region, RETIRE_STEP);
	} while (error == -EBUSY && !set->server->ending);
	if (!error) {
		set->former.region = NULL;
		error = wh_memory_free(set->server->engine, set->former.address);
		set->former.address = NULL;
	}
	if (error && error != -EBUSY)
		spread_note(set->server, "cannot free the former '%s': %s", set->offer.name,
			    wh_error_text());
	set->retired = true;
	return NULL;
}

/* The name is free as soon as the former region begins to be withdrawn. */
static int region_publish(struct weights_set *set)
{
	struct wh_region_options options = {
		.size = sizeof(options),
		.name = set->offer.name,
		.access = WH_ACCESS_READ | WH_ACCESS_LIST,
	};
	int64_t deadline = wh_now() + SEND;
	int error;

	if (set->current.region) {
		set->former = set->current;
		set->retired = false;
		if (pthread_create(&set->retiring, NULL, retire, set))
			return -EAGAIN;
		set->has_former = true;
	}
	do {
		error = wh_region_register(set->server->engine, set->coming.address,
					   set->coming.bytes, &options, &set->coming.region);
		if (error == -EEXIST)
			usleep(100);
	} while (error == -EEXIST && wh_now() < deadline);
	set->current = set->coming;
	if (error)
		memset(&set->current, 0, sizeof(set->current));
	return error;
}

/* From whom the bytes came. */
static uint32_t sources_list(const struct weights_set *set, struct spread_item items[FROM_MOST])
{
	struct wh_weights_member member = { .size = sizeof(member) };
	uint32_t count = 0;

	for (uint32_t i = 0; count < FROM_MOST && !wh_weights_member(set->weights, i, &member);
	     i++) {
		if (!member.sent)
			continue;
		items[count].bytes = member.sent;
		snprintf(items[count].name, sizeof(items[count].name), "%s", member.name);
		snprintf(items[count++].text, sizeof(items->text), "%s", member.route);
	}
	return count;
}

/* Everything is here, or never will be. */
static void report(struct weights_set *set, int error)
{
	struct spread_item *items = calloc(FROM_MOST, sizeof(*items));
	struct spread_message message = { .op = SPREAD_REPORT,
					  .size = set->coming.bytes,
					  .items = items };
	char size[32];

	set->reported = true;
	format_size(size, sizeof(size), set->coming.bytes);
	if (!items)
		return;
	memcpy(message.token, set->token, sizeof(message.token));
	if (!error)
		error = region_publish(set);
	if (error) {
		snprintf(items[0].text, sizeof(items[0].text), "%s", wh_error_text());
		message.status = (uint32_t)-error;
		message.count = 1;
		spread_note(set->server, "'%s' does not get the file from '%s': %s",
			    set->offer.name, set->sender_name, wh_error_text());
	} else {
		message.count = sources_list(set, items);
		set->coming.address = NULL;
		spread_note(set->server, "'%s' has a file of %s from '%s'", set->offer.name, size,
			    set->sender_name);
	}
	send_message(set->server, set->sender, &message, false);
	free(items);
}

static void set_tick(struct weights_set *set)
{
	int64_t now = wh_now();
	int error, status;

	if (!set->weights)
		return;
	if (set->leaving) {
		set_leave(set);
		return;
	}
	error = set->reported ? -EAGAIN : wh_weights_wait(set->weights, 1, 0);
	if (error != -EAGAIN)
		report(set, error);
	status = wh_peer_status(set->sender);
	if (!status)
		set->lost = 0;
	else if (!set->lost)
		set->lost = now;
	if (status != -ESTALE && (!set->lost || now - set->lost < LOST))
		return;
	if (!set->reported)
		spread_note(set->server,
			    "'%s' lost the sender of its file, '%s'; readers keep what they had",
			    set->offer.name, set->sender_name);
	set_leave(set);
}

static void take_end(struct weights_server *server, const struct request *request,
		     const struct spread_message *message)
{
	for (size_t i = 0; i < server->count; i++) {
		struct weights_set *set = &server->sets[i];

		if (!set->weights || memcmp(set->token, message->token, SPREAD_TOKEN) != 0 ||
		    strcmp(set->sender_name, request->sender) != 0)
			continue;
		if (!set->reported)
			spread_note(server, "'%s' gives up its file: '%s' %s", set->offer.name,
				    set->sender_name,
				    message->status ? "has cancelled it" : "has ended");
		set_leave(set);
	}
}

/* Is nothing in the way of the question or the offer that will end soon? */
static bool is_its_turn(struct weights_server *server, const struct spread_message *message)
{
	const struct spread_item *own = NULL;
	struct refusal why;
	struct weights_set *set;

	if (message->op == SPREAD_ASK && message->count)
		own = &message->items[0];
	else if (message->op == SPREAD_OFFER)
		own = offer_own(server, message);
	set = own ? set_find(server, own->text, &why) : NULL;
	return !set || set_is_ready(set, message->op == SPREAD_OFFER);
}

/* Whom the message asks to be answered; NULL: nobody. */
static const char *answer_url(struct weights_server *server, const struct request *request,
			      const struct spread_message *message)
{
	if (message->op == SPREAD_ASK && message->count)
		return message->items[0].url;
	if (message->op == SPREAD_OFFER && offer_is_ours(server, request, message))
		return message->items[0].url;
	return NULL;
}

static bool request_handle(void *owner, const struct request *request)
{
	struct weights_server *server = owner;
	struct spread_message message;
	struct wh_peer *peer = NULL;
	const char *url;
	int error = 0;

	if (spread_message_decode(request->data, request->size, &message))
		return true;
	url = answer_url(server, request, &message);
	if (message.op == SPREAD_END)
		take_end(server, request, &message);
	else if (url && !is_its_turn(server, &message) && !request->last)
		error = -EAGAIN;
	else if (url)
		error = sender_open(&server->senders, request, url, &peer);
	if (url && !error && message.op == SPREAD_ASK)
		ask(server, request, &message, peer);
	else if (url && !error)
		take_offer(server, request, &message, peer);
	free(message.items);
	return error != -EAGAIN;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static int64_t server_tick(void *owner)
{
	struct weights_server *server = owner;
	int64_t wait = TICK_IDLE;

	senders_tick(&server->senders);
	outgoing_tick(server, NULL);
	if (server->senders.first || server->outgoing)
		wait = TICK_BUSY;
	for (size_t i = 0; i < server->count; i++) {
		set_tick(&server->sets[i]);
		if (server->sets[i].weights)
			wait = TICK_BUSY;
	}
	return wait;
}

void weights_server_take(struct weights_server *server, const struct wh_notification *note)
{
	requests_take(&server->requests, note);
}

/* ---- start and stop -------------------------------------------------------------------------- */

static int server_init(struct weights_server *server, const struct weights_offer *offers,
		       size_t count)
{
	uint8_t machine[WH_MACHINE_SIZE];

	/* The second half is the same in all containers of a machine. */
	wh_machine_identify(machine);
	for (int i = WH_MACHINE_SIZE / 2; i < WH_MACHINE_SIZE; i++)
		snprintf(server->machine + 2 * (i - WH_MACHINE_SIZE / 2), 3, "%02x", machine[i]);
	server->sets = calloc(count + 1, sizeof(*server->sets));
	if (!server->sets)
		return fail(ENOMEM, "out of memory");
	for (size_t i = 0; i < count; i++) {
		server->sets[i].server = server;
		server->sets[i].offer = offers[i];
	}
	server->count = count;
	return requests_start(&server->requests);
}

int weights_server_start(struct wh_engine *engine, const struct arguments *arguments,
			 const struct weights_offer *offers, size_t count,
			 struct weights_server **out)
{
	struct weights_server *server = calloc(1, sizeof(*server));

	if (!server)
		return fail(ENOMEM, "out of memory");
	server->engine = engine;
	server->arguments = arguments;
	server->requests = (struct requests){
		.handle = request_handle, .tick = server_tick, .owner = server, .most = REQUESTS_MAX
	};
	server->senders = (struct senders){ engine, arguments, &server->requests, NULL, NULL };
	requests_init(&server->requests);
	*out = server;
	return server_init(server, offers, count);
}

void weights_server_end(struct weights_server *server)
{
	if (!server)
		return;
	requests_stop(&server->requests);
	senders_end(&server->senders);
	while (server->outgoing)
		outgoing_free(&server->outgoing);
	for (size_t i = 0; i < server->count; i++) {
		struct weights_set *set = &server->sets[i];

		if (set->weights)
			set_leave(set);
		if (!region_withdraw(set->current.region, 0))
			set->current.region = NULL;
	}
}

static int copy_free(struct weights_set *set, struct copy *copy, int64_t until)
{
	int error = region_withdraw(copy->region, until);

	if (!error && copy->address)
		error = wh_memory_free(set->server->engine, copy->address);
	return error;
}

static int set_stop(struct weights_set *set, int64_t until, int code)
{
	while (set->weights && wh_now() < until) {
		set_leave(set);
		usleep(1000);
	}
	set->server->ending = true;
	if (set->leaving)
		pthread_join(set->leaver, NULL);
	if (set->weights)
		code = engine_undo(code, -EBUSY, "cannot leave a spread");
	if (set->has_former) {
		pthread_join(set->retiring, NULL);
		code = engine_undo(code, copy_free(set, &set->former, until),
				   "cannot withdraw former weights");
	}
	return engine_undo(code, copy_free(set, &set->current, until), "cannot withdraw weights");
}

int weights_server_stop(struct weights_server *server, int64_t until, int code)
{
	if (!server)
		return code;
	for (size_t i = 0; i < server->count; i++)
		code = set_stop(&server->sets[i], until, code);
	senders_free(&server->senders);
	free(server->sets);
	free(server);
	return code;
}
