/* SPDX-License-Identifier: Apache-2.0 */
/* The receivers of wherry spread, all at once: one loop takes what they say, looks how far they
 * are, and waits for a signal. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "engine.h"
#include "platform/machine.h"
#include "spread/layout.h"
#include "spread/spread.h"
#include "util/clock.h"
#include "util/text.h"

#define TURN 20 /* ms, between two looks */
#define LOST (3 * WH_SECOND) /* a receiver that is not connected for so long has gone */
#define ENDING (2 * WH_SECOND) /* for the receivers to hear the end */

__attribute__((format(printf, 4, 5))) static void
receiver_fail(struct spread *spread, struct receiver *receiver, int error, const char *format, ...)
{
	va_list arguments;
	int code;

	if (receiver->state == RECEIVER_FAILED || receiver->state == RECEIVER_DONE)
		return;
	va_start(arguments, format);
	vsnprintf(receiver->why, sizeof(receiver->why), format, arguments);
	va_end(arguments);
	wh_text_clean(receiver->why);
	receiver->state = RECEIVER_FAILED;
	receiver->error = error;
	code = fail(error, "%s: %s", receiver->text, receiver->why);
	if (!spread->code)
		spread->code = code;
	spread->losses++;
}

/* One that is there does not take the file. */
#define receiver_refuse(spread, receiver, error, ...)                                              \
	((spread)->refused = true, receiver_fail(spread, receiver, error, __VA_ARGS__))

/* ---- messages -------------------------------------------------------------------------------- */

/* Which batch carries it. */
enum send { SEND_ASK, SEND_OFFER, SEND_END, SEND_PING };

/* Send without waiting: who waits for an answer will see that none comes. */
static void receiver_send(struct spread *spread, struct receiver *receiver, enum send which,
			  struct spread_message *message)
{
	uint8_t *bytes = malloc(WH_NOTIFICATION_MAX);
	size_t length;
	int error;

	memcpy(message->token, spread->token, sizeof(message->token));
	length = bytes ? spread_message_encode(message, bytes, WH_NOTIFICATION_MAX) : 0;
	error = length ? wh_batch_new(receiver->peer, NULL, &receiver->batches[which]) : -E2BIG;
	if (!error)
		error = wh_batch_notify(receiver->batches[which], SPREAD_TAG, bytes, length);
	if (!error)
		error = wh_batch_submit(receiver->batches[which]);
	free(bytes);
	if (error && which < SEND_END && !length)
		receiver_refuse(spread, receiver, error, "too many receivers for one spread");
	else if (error && which < SEND_END)
		receiver_fail(spread, receiver, error, "%s", wh_error_text());
	if (error) { /* it never ends, as it has not begun */
		wh_batch_free(receiver->batches[which]);
		receiver->batches[which] = NULL;
	}
}

static void receiver_opened(struct spread *spread, struct receiver *receiver, int status)
{
	struct wh_peer_info info = { .size = sizeof(info) };
	struct spread_item item = { 0 };
	struct spread_message ask = {
		.op = SPREAD_ASK, .size = spread->size, .count = 1, .items = &item
	};

	if (!status)
		status = wh_peer_info(receiver->peer, &info);
	else
		wh_peer_status(receiver->peer);
	if (status) {
		receiver_fail(spread, receiver, reach_error(status), "%s", wh_error_text());
		return;
	}
	snprintf(receiver->name, sizeof(receiver->name), "%s", info.name);
	snprintf(receiver->address, sizeof(receiver->address), "wherry://%s", info.address);
	for (uint32_t i = 0; i < spread->count; i++) {
		const struct receiver *other = &spread->receivers[i];

		if (other != receiver && strcmp(other->name, info.name) == 0) {
			receiver_refuse(spread, receiver, -EEXIST, "'%s' is there twice: also %s",
					info.name, other->text);
			return;
		}
	}
	snprintf(item.name, sizeof(item.name), "%s", wh_engine_name(spread->engine));
	snprintf(item.url, sizeof(item.url), "%s", wh_engine_url(spread->engine));
	snprintf(item.text, sizeof(item.text), "%s", receiver->url.region);
	receiver->state = RECEIVER_ASKED;
	receiver->moved = wh_now();
	receiver_send(spread, receiver, SEND_ASK, &ask);
}

static void receiver_take(struct spread *spread, struct receiver *receiver,
			  struct spread_message *message)
{
	const struct spread_item *item = message->items;
	const char *text = message->count && item->text[0] ? item->text : "it refuses the file";

	receiver->moved = wh_now();
	if (message->status && receiver->state == RECEIVER_READY) {
		receiver_fail(spread, receiver, -(int)(message->status & 0xfff), "%s", text);
	} else if (message->status) {
		receiver_refuse(spread, receiver, -(int)(message->status & 0xfff), "%s", text);
	} else if (message->op == SPREAD_ANSWER && receiver->state == RECEIVER_ASKED &&
		   message->count && spread->link && !(item->bytes & SPREAD_KNOWS_LINK)) {
		receiver_refuse(spread, receiver, -EOPNOTSUPP,
				"its wherry is older than --link: update it, or leave --link out");
	} else if (message->op == SPREAD_ANSWER && receiver->state == RECEIVER_ASKED &&
		   message->count) {
		snprintf(receiver->region, sizeof(receiver->region), "%s", item->name);
		snprintf(receiver->machine, sizeof(receiver->machine), "%s", item->host);
		snprintf(receiver->location, sizeof(receiver->location), "%s", item->location);
		snprintf(receiver->host, sizeof(receiver->host), "%.48s", item->text);
		receiver->state = RECEIVER_WILLING;
	} else if (message->op == SPREAD_READY && receiver->state == RECEIVER_OFFERED) {
		receiver->state = RECEIVER_READY;
	} else if (message->op == SPREAD_REPORT && receiver->state == RECEIVER_READY) {
		receiver->seconds = (double)(receiver->moved - spread->started) / 1e9;
		receiver->received = spread->size;
		receiver->from = message->items;
		receiver->from_count = message->count;
		message->items = NULL;
		receiver->state = RECEIVER_DONE;
	}
}

static void messages_take(struct spread *spread)
{
	static uint8_t bytes[WH_NOTIFICATION_MAX];
	struct wh_notification note = { .size = sizeof(note),
					.buffer = bytes,
					.capacity = sizeof(bytes) };
	struct wh_notification_filter filter = { .size = sizeof(filter),
						 .tag = SPREAD_TAG,
						 .tag_mask = UINT64_MAX };

	while (!wh_engine_notification(spread->engine, &filter, &note, 0)) {
		struct spread_message message;

		if (spread_message_decode(bytes, note.length, &message))
			continue;
		for (uint32_t i = 0; i < spread->count; i++) {
			struct receiver *receiver = &spread->receivers[i];

			/* The engine has proved its name; the token is of this spread. */
			if (receiver->state != RECEIVER_OPENING &&
			    strcmp(receiver->name, note.sender) == 0 &&
			    !memcmp(message.token, spread->token, sizeof(message.token)))
				receiver_take(spread, receiver, &message);
		}
		free(message.items);
	}
}

/* ---- how they are ---------------------------------------------------------------------------- */

static void receiver_look(struct spread *spread, struct receiver *receiver, int64_t now)
{
	int status;

	if (!receiver->peer || receiver->state == RECEIVER_OPENING ||
	    receiver->state == RECEIVER_WILLING)
		return;
	status = wh_peer_status(receiver->peer);
	if (!status)
		receiver->lost = 0;
	else if (!receiver->lost)
		receiver->lost = now;
	if (receiver->state == RECEIVER_DONE) /* others read from it */
		return;
	if (status == -ESTALE || (receiver->lost && now - receiver->lost > LOST))
		receiver_fail(spread, receiver, status, "it has gone: %s", wh_error_text());
	else if (receiver->state != RECEIVER_READY && now - receiver->moved > engine_stall())
		receiver_fail(spread, receiver, -ETIMEDOUT,
			      receiver->state == RECEIVER_ASKED ?
				      "no answer in %g s: is it wherry serve --weights, and can it "
				      "connect to this engine?" :
				      STALL_TEXT,
			      (double)engine_stall() / 1e9);
}

/* Ask it whether it stands still. */
static void receiver_ping(struct spread *spread, struct receiver *receiver, int64_t now)
{
	struct spread_message ping = { .op = SPREAD_PING };
	struct wh_batch **batch = &receiver->batches[SEND_PING];

	if ((*batch && wh_batch_status(*batch) == -EINPROGRESS) ||
	    now - receiver->pinged < engine_stall() / 8)
		return;
	wh_batch_free(*batch);
	*batch = NULL;
	receiver->pinged = now;
	receiver_send(spread, receiver, SEND_PING, &ping);
}

/* It does not answer, or is lost. Soon the others see that, too, and ask somebody else. */
static bool receiver_stands_still(const struct receiver *receiver, int64_t now)
{
	struct wh_batch *batch = receiver->batches[SEND_PING];

	if (receiver->lost)
		return now - receiver->lost < LOST;
	return batch && wh_batch_status(batch) == -EINPROGRESS &&
	       now - receiver->pinged > engine_stall() / 4;
}

/* A receiver of which nothing comes stands still, or waits for one that does: only the former has
 * failed. So when nothing has come for half of the time, all are asked. */
static void stalls_look(struct spread *spread, int64_t now)
{
	bool quiet = false, still = false;

	for (uint32_t i = 0; i < spread->count; i++) {
		struct receiver *receiver = &spread->receivers[i];

		quiet = quiet || (receiver->state == RECEIVER_READY &&
				  now - receiver->moved > engine_stall() / 2);
		still = still || receiver_stands_still(receiver, now);
	}
	for (uint32_t i = 0; i < spread->count; i++) {
		struct receiver *receiver = &spread->receivers[i];

		/* Also those that are done, or have failed: others may wait for them. */
		if (quiet && receiver->peer && receiver->state >= RECEIVER_READY)
			receiver_ping(spread, receiver, now);
		if (receiver->state != RECEIVER_READY || now - receiver->moved <= engine_stall())
			continue;
		if (receiver_stands_still(receiver, now))
			receiver_fail(spread, receiver, -ETIMEDOUT,
				      "nothing has moved for %g s, and it does not answer",
				      (double)engine_stall() / 1e9);
		else if (!still)
			receiver_fail(spread, receiver, -ETIMEDOUT, STALL_TEXT,
				      (double)engine_stall() / 1e9);
		else
			receiver->moved = now;
	}
}

/* How far each is, as the source knows it. */
static void progress_look(struct spread *spread, int64_t now)
{
	struct wh_weights_member member = { .size = sizeof(member) };

	for (uint32_t i = 0; i < spread->count; i++) {
		struct receiver *receiver = &spread->receivers[i];
		uint64_t received;

		/* The sender is the first member. */
		if (receiver->state != RECEIVER_READY ||
		    wh_weights_member(spread->weights, receiver->member, &member))
			continue;
		received = member.current ? spread->size : member.received;
		/* Of one that is lost nothing is known. */
		if (received > receiver->received)
			receiver->moved = now;
		receiver->received = received;
		if (member.state == WH_WEIGHTS_REFUSED)
			receiver_fail(spread, receiver, -EPROTO, "%s", member.error);
	}
}

static void progress_show(struct spread *spread)
{
	struct progress **lines = calloc(spread->count, sizeof(struct progress *));
	uint64_t *done = calloc(spread->count, sizeof(*done));

	for (uint32_t i = 0; lines && done && i < spread->count; i++) {
		lines[i] = &spread->receivers[i].progress;
		done[i] = spread->receivers[i].received;
	}
	if (lines && done)
		progress_block(lines, done, spread->count);
	free((void *)lines);
	free(done);
}

/* Wait a moment, and take all that has come. False: a signal. */
static bool spread_turn(struct spread *spread)
{
	struct pollfd fds[] = {
		{ .fd = spread->signals, .events = POLLIN },
		{ .fd = wh_queue_fd(spread->queue), .events = POLLIN },
	};
	struct signalfd_siginfo info;
	struct wh_completion done;
	uint32_t losses = spread->losses;
	int64_t now;

	poll(fds, 2, TURN);
	if (fds[0].revents && read(spread->signals, &info, sizeof(info)) == sizeof(info)) {
		spread->interrupted = (int)info.ssi_signo;
		return false;
	}
	while (wh_queue_take(spread->queue, &done, 1, 0) > 0)
		receiver_opened(spread, &spread->receivers[done.user], done.status);
	messages_take(spread);
	now = wh_now();
	if (spread->weights)
		progress_look(spread, now);
	for (uint32_t i = 0; i < spread->count; i++)
		receiver_look(spread, &spread->receivers[i], now);
	if (spread->weights)
		stalls_look(spread, now);
	/* Others may have waited for those that are lost, and have to find someone else. */
	for (uint32_t i = 0; losses != spread->losses && i < spread->count; i++)
		if (spread->receivers[i].state == RECEIVER_READY)
			spread->receivers[i].moved = now;
	return true;
}

/* What a step returns that has left `left` in its state: without them there is no next one. */
static int spread_left(const struct spread *spread, enum receiver_state left)
{
	for (uint32_t i = 0; !spread->refused && i < spread->count; i++)
		if (spread->receivers[i].state == left)
			return 0;
	return spread->code;
}

/* Until nobody is in one of these states. 0, or an exit code: a signal. */
static int spread_until_none(struct spread *spread, enum receiver_state first,
			     enum receiver_state last)
{
	for (;;) {
		bool some = false;

		for (uint32_t i = 0; i < spread->count; i++)
			some = some || (spread->receivers[i].state >= first &&
					spread->receivers[i].state <= last);
		if (!some)
			return 0;
		if (!spread_turn(spread))
			return EXIT_FAIL;
		if (spread->weights)
			progress_show(spread);
	}
}

/* ---- the steps ------------------------------------------------------------------------------- */

int receivers_ask(struct spread *spread)
{
	const struct spread_message sizes = { .size = spread->size,
					      .chunk = spread->chunk,
					      .piece = spread->piece };
	const char *wrong = spread_sizes_wrong(&sizes, spread->count);
	struct progress progress;
	int code;

	if (wrong)
		return usage_error("--chunk and --piece: %s", wrong);
	for (uint32_t i = 0; i < spread->count; i++) {
		struct receiver *receiver = &spread->receivers[i];
		struct wh_peer_options options = { .size = sizeof(options),
						   .queue = spread->queue,
						   .user = i };
		int error = wh_peer_open(spread->engine, receiver->url.engine, &options,
					 &receiver->peer);

		if (error)
			receiver_fail(spread, receiver, reach_error(error), "%s", wh_error_text());
	}
	progress_start_steps(&progress, "asking the receivers", 0, spread->quiet);
	progress_watch(&progress);
	code = spread_until_none(spread, RECEIVER_OPENING, RECEIVER_ASKED);
	progress_end(&progress);
	return code ? code : spread_left(spread, RECEIVER_WILLING);
}

/* The name of a machine for people; different machines have different ones. */
static void host_name(const struct spread *spread, uint32_t index, char out[64])
{
	const struct receiver *receiver = &spread->receivers[index];
	uint32_t others = 0;

	snprintf(out, 64, "%.48s", receiver->host[0] ? receiver->host : "host");
	for (uint32_t i = 0; i < index; i++) {
		const struct receiver *before = &spread->receivers[i];

		if (!before->member)
			continue;
		if (!spread->separate && !strcmp(before->machine, receiver->machine)) {
			snprintf(out, 64, "%s", spread->offer.items[before->member].host);
			return;
		}
		others += !strcmp(before->host, receiver->host);
	}
	if (others)
		snprintf(out + strlen(out), 64 - strlen(out), "#%u", others + 1);
}

static void sender_host(const struct spread *spread, char out[64])
{
	uint8_t machine[WH_MACHINE_SIZE];
	char text[2 * WH_MACHINE_SIZE + 1];
	char host[49] = "";

	wh_machine_identify(machine);
	for (int i = WH_MACHINE_SIZE / 2; i < WH_MACHINE_SIZE; i++)
		snprintf(text + 2 * (i - WH_MACHINE_SIZE / 2), 3, "%02x", machine[i]);
	for (uint32_t i = 0; i < spread->count && !spread->separate; i++)
		if (spread->receivers[i].member &&
		    strcmp(spread->receivers[i].machine, text) == 0) {
			snprintf(out, 64, "%s",
				 spread->offer.items[spread->receivers[i].member].host);
			return;
		}
	gethostname(host, sizeof(host) - 1);
	/* Another machine than all receivers', so another name. */
	snprintf(out, 64, "%s (sender)", host);
}

int receivers_list(struct spread *spread)
{
	struct spread_message *offer = &spread->offer;

	*offer = (struct spread_message){ .op = SPREAD_OFFER,
					  .size = spread->size,
					  .chunk = spread->chunk,
					  .piece = spread->piece,
					  .count = 1 };
	offer->items = calloc((size_t)spread->count + 1, sizeof(*offer->items));
	if (!offer->items)
		return fail(ENOMEM, "out of memory");
	for (uint32_t i = 0; i < spread->count; i++) {
		struct receiver *receiver = &spread->receivers[i];
		struct spread_item *item = &offer->items[offer->count];

		if (receiver->state != RECEIVER_WILLING)
			continue;
		receiver->member = offer->count++;
		snprintf(item->name, sizeof(item->name), "%s", receiver->name);
		snprintf(item->url, sizeof(item->url), "%s", receiver->address);
		snprintf(item->location, sizeof(item->location), "%s", receiver->location);
		snprintf(item->text, sizeof(item->text), "%s", receiver->region);
		host_name(spread, i, item->host);
	}
	snprintf(offer->items[0].name, sizeof(offer->items[0].name), "%s",
		 wh_engine_name(spread->engine));
	snprintf(offer->items[0].url, sizeof(offer->items[0].url), "%s",
		 wh_engine_url(spread->engine));
	offer->items[0].bytes = spread->link;
	sender_host(spread, offer->items[0].host);
	return 0;
}

int receivers_offer(struct spread *spread)
{
	struct progress progress;
	int code;

	for (uint32_t i = 0; i < spread->count; i++) {
		if (!spread->receivers[i].member)
			continue;
		spread->receivers[i].state = RECEIVER_OFFERED;
		spread->receivers[i].moved = wh_now();
		receiver_send(spread, &spread->receivers[i], SEND_OFFER, &spread->offer);
	}
	progress_start_steps(&progress, "waiting for memory", 0, spread->quiet);
	progress_watch(&progress);
	code = spread_until_none(spread, RECEIVER_OFFERED, RECEIVER_OFFERED);
	progress_end(&progress);
	return code ? code : spread_left(spread, RECEIVER_READY);
}

int receivers_wait(struct spread *spread)
{
	int code = 0, error;

	error = spread_weights_open(spread->engine, &spread->offer, spread->address,
				    &spread->weights);
	if (!error)
		error = wh_weights_publish(spread->weights, 1);
	if (error)
		return engine_fail(error, "cannot offer the file");
	spread->started = wh_now();
	for (uint32_t i = 0; i < spread->count; i++) {
		struct receiver *receiver = &spread->receivers[i];

		receiver->moved = spread->started;
		progress_start(&receiver->progress, receiver->text, spread->size, spread->quiet);
	}
	code = spread_until_none(spread, RECEIVER_READY, RECEIVER_READY);
	progress_wipe();
	spread->seconds = (double)(wh_now() - spread->started) / 1e9;
	return code ? code : spread->code;
}

void receivers_end(struct spread *spread, int error)
{
	struct spread_message end = { .op = SPREAD_END, .status = (uint32_t)-error };
	int64_t until = wh_now() + ENDING;
	bool running = true;

	for (uint32_t i = 0; i < spread->count; i++)
		if (spread->receivers[i].batches[SEND_OFFER])
			receiver_send(spread, &spread->receivers[i], SEND_END, &end);
	while (running && wh_now() < until) {
		running = false;
		for (uint32_t i = 0; i < spread->count; i++) {
			const struct receiver *receiver = &spread->receivers[i];

			running = running ||
				  (receiver->batches[SEND_END] && !receiver->lost &&
				   wh_batch_status(receiver->batches[SEND_END]) == -EINPROGRESS);
		}
		if (running)
			usleep(1000);
	}
}

int receivers_close(struct spread *spread, int code)
{
	int64_t until = wh_now() + 5 * ENDING;
	int error;

	/* A receiver that stands still does not let go. */
	do {
		error = wh_weights_close(spread->weights);
	} while (error == -EBUSY && wh_now() < until);
	code = engine_undo(code, error, "cannot withdraw the file");
	for (uint32_t i = 0; i < spread->count; i++) {
		struct receiver *receiver = &spread->receivers[i];

		for (size_t k = 0; k < sizeof(receiver->batches) / sizeof(receiver->batches[0]);
		     k++)
			if (receiver->batches[k]) {
				if (wh_batch_status(receiver->batches[k]) == -EINPROGRESS)
					wh_batch_cancel(receiver->batches[k]);
				wh_batch_free(receiver->batches[k]);
			}
		if (receiver->peer)
			code = engine_undo(code, wh_peer_close(receiver->peer),
					   "cannot close a connection");
		free(receiver->from);
	}
	free(spread->offer.items);
	if (spread->queue) {
		struct wh_completion done;

		while (wh_queue_take(spread->queue, &done, 1, 0) > 0)
			;
		wh_queue_free(spread->queue);
	}
	return spread->engine ? engine_close(spread->engine, code) : code;
}
