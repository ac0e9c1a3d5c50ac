/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that have the key, and ask for more than they take: what an engine holds for one address is
 * bounded, and others are served. */
#include <pthread.h>

#include "fixture.h"
#include "raw.h"

#define LENGTH (256 * KIB)
#define EXTENTS 1024u
#define REQUESTS 200

struct target {
	struct wh_engine *engine;
	struct wh_region *region;
	unsigned char *pages;
	int control;
	struct wh_hello welcome;
};

static void target_open(struct target *t, const char *knob)
{
	const char *const config[] = { knob, NULL };
	struct wh_region_options named = { .size = sizeof(named), .name = "target" };

	t->engine = engine_open(NULL, NULL, config);
	t->pages = pages_new(LENGTH);
	pattern_fill(t->pages, LENGTH, 0, 4);
	want(0, wh_region_register(t->engine, t->pages, LENGTH, &named, &t->region));
	t->control = raw_control(wh_engine_url(t->engine), &t->welcome);
	want_true(t->control >= 0, "no session");
	want(1, raw_skip_regions(t->control));
}

static void target_close(struct target *t)
{
	close(t->control);
	want(0, wh_region_unregister(t->region));
	pages_free(t->pages, LENGTH);
	want(0, wh_engine_close(t->engine));
}

/* Does it answer on this connection? Else it has dropped it. */
static bool answers(struct target *t, int fd)
{
	struct wh_extent extent = { wh_region_id(t->region), 0, 64 };
	unsigned char bytes[64];
	struct wh_response response;

	return !raw_request(fd, WH_READ, 1, &extent, 1, NULL, 0) &&
	       !raw_response(fd, &response, NULL, 0, bytes, sizeof(bytes));
}

/* Connections are dropped when the address has its share, and taken again when others have gone. */
static void hold__connections(void **state)
{
	int fds[16], open = 0, again = -1;
	struct target t;

	(void)state;
	target_open(&t, "held=1MiB");
	for (int i = 0; i < 16; i++) {
		fds[i] = raw_data(wh_engine_url(t.engine), &t.welcome);
		want_true(fds[i] >= 0, "no connection");
		open += answers(&t, fds[i]);
	}
	want_true(open >= 2 && open < 16, "%d connections are open", open);
	for (int i = 0; i < 16; i++)
		close(fds[i]);
	/* They end on the other side in their own time. */
	for (int64_t until = now() + PATIENCE; again < 0 && now() < until;) {
		again = raw_data(wh_engine_url(t.engine), &t.welcome);
		want_true(again >= 0, "no connection");
		if (!answers(&t, again)) {
			close(again);
			again = -1;
		}
	}
	want_true(again >= 0, "nothing is taken any more");
	close(again);
	target_close(&t);
}

struct sender {
	struct target *t;
	int fd, error;
};

static void *send_requests(void *argument)
{
	static struct wh_extent extents[EXTENTS];
	struct sender *sender = argument;
	const struct target *t = sender->t;

	for (unsigned i = 0; i < EXTENTS; i++)
		extents[i] = (struct wh_extent){ wh_region_id(t->region), i % 97 * 64 + i, 128 };
	for (int i = 0; i < REQUESTS && !sender->error; i++)
		sender->error = raw_request(sender->fd, WH_READ, (uint64_t)i, extents, EXTENTS, NULL, 0);
	return NULL;
}

/* Many reads are asked for before the first is taken: the owner takes in no more of them than it may hold,
 * and answers all of them in the end. */
static void hold__reads_not_taken(void **state)
{
	static unsigned char bytes[EXTENTS * 128];
	struct wh_response response;
	struct sender sender = { 0 };
	pthread_t thread;
	struct target t;
	int fd;

	(void)state;
	target_open(&t, "held=1MiB");
	fd = raw_data(wh_engine_url(t.engine), &t.welcome);
	want_true(fd >= 0, "no connection");
	/* The requests do not fit into the sockets: somebody else has to send them. */
	sender.t = &t;
	sender.fd = fd;
	want(0, pthread_create(&thread, NULL, send_requests, &sender));
	sleep_ms(100);
	for (int i = 0; i < REQUESTS; i++) {
		want(0, raw_response(fd, &response, NULL, 0, bytes, sizeof(bytes)));
		want(i, response.id);
		want(sizeof(bytes), response.bytes);
		want_true(pattern_check(bytes, 128, 0, 4) == PATTERN_GOOD, "other bytes");
	}
	want(0, pthread_join(thread, NULL));
	want(0, sender.error);
	close(fd);
	target_close(&t);
}

/* Pings without end, whose answers are not taken: the session ends. */
static void hold__answers_not_taken(void **state)
{
	static unsigned char pings[4096 * 16];
	struct target t;
	uint64_t sent = 0;

	(void)state;
	target_open(&t, "held=1MiB");
	for (size_t i = 0; i < sizeof(pings); i += 16)
		wh_frame_encode(pings + i, &(struct wh_frame){ 8, WH_FRAME_PING, 0 });
	while (sent < 256 * MIB && !raw_send(t.control, pings, sizeof(pings)))
		sent += sizeof(pings);
	want_true(sent < 256 * MIB, "it takes them all");
	close(t.control);
	t.control = raw_control(wh_engine_url(t.engine), &t.welcome);
	want_true(t.control >= 0, "it serves nobody any more");
	target_close(&t);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(hold__connections),
		TEST(hold__reads_not_taken),
		TEST(hold__answers_not_taken),
	};

	return harness_main(argc, argv, "hostile-hold", tests, sizeof(tests) / sizeof(*tests));
}
