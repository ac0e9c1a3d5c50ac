/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: waits hostile */
/* hostile-buffered.c: peers with the key that ask for more than they receive: the memory that an
 * engine holds per address is bounded, and other peers are served */
#include <pthread.h>

#include "lib/fixture.h"
#include "lib/raw.h"

#define LENGTH (256 * KIB)
#define EXTENTS 1024u
#define REQUESTS 200
#define REGIONS 30000 /* their list takes some MiB */
#define SESSIONS 12

struct target {
	struct wh_engine *engine;
	struct wh_region *region;
	unsigned char *pages;
	int control;
	struct wh_hello welcome;
};

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char logged[1 << 16];

static void keep_line(void *arg, const struct wh_log_record *record)
{
	size_t used;

	(void)arg;
	if (getenv("TESTS_LOG"))
		fprintf(stderr, "%s\n", record->text);
	pthread_mutex_lock(&log_lock);
	used = strlen(logged);
	snprintf(logged + used, sizeof(logged) - used, "%s\n", record->text);
	pthread_mutex_unlock(&log_lock);
}

/* The number of log lines with this text. */
static unsigned times_logged(const char *text)
{
	unsigned count = 0;

	pthread_mutex_lock(&log_lock);
	for (const char *at = logged; (at = strstr(at, text)); at++)
		count++;
	pthread_mutex_unlock(&log_lock);
	return count;
}

static void target_open(struct target *t, const char *setting)
{
	/* Small socket buffers hold little. */
	const char *const config[] = { setting, "buffer=64KiB", "notifications=1", NULL };
	struct wh_region_options named = { .size = sizeof(named),
					   .name = "target",
					   .access = ACCESS_BOTH };
	struct wh_engine_options options = { .size = sizeof(options),
					     .config = config,
					     .log = keep_line };

	logged[0] = '\0';
	want(0, wh_engine_open(&options, &t->engine));
	t->pages = pages_new(LENGTH);
	pattern_fill(t->pages, LENGTH, 0, 4);
	want(0, wh_region_register(t->engine, t->pages, LENGTH, &named, &t->region));
	t->control = raw_control(wh_engine_url(t->engine), &t->welcome);
	want_true(t->control >= 0, "no session");
	want(1, raw_count_regions(t->control));
}

static void target_close(struct target *t)
{
	close(t->control);
	want(0, wh_region_unregister(t->region));
	pages_free(t->pages, LENGTH);
	want(0, wh_engine_close(t->engine));
}

/* True if the target answers on this connection; it drops those beyond the quota. */
static bool target_answers(struct target *t, int fd)
{
	struct wh_extent extent = { wh_region_id(t->region), 0, 64 };
	unsigned char bytes[64];
	struct wh_response response;

	return !raw_request(fd, WH_READ, 1, &extent, 1, NULL, 0) &&
	       !raw_response(fd, &response, NULL, 0, bytes, sizeof(bytes));
}

/* Connections beyond the address's quota are dropped, and accepted again once others have gone. */
static void hold__connections(void **state)
{
	int fds[16], open = 0, again = -1;
	struct target t;

	(void)state;
	target_open(&t, "max_buffered=1MiB");
	for (int i = 0; i < 16; i++) {
		fds[i] = raw_data(wh_engine_url(t.engine), &t.welcome);
		want_true(fds[i] >= 0, "no connection");
		open += target_answers(&t, fds[i]);
	}
	want_true(open >= 2 && open < 16, "%d connections are open", open);
	for (int i = 0; i < 16; i++)
		close(fds[i]);
	/* The owner notices their end a little later. */
	for (int64_t until = now() + PATIENCE; again < 0 && now() < until;) {
		again = raw_data(wh_engine_url(t.engine), &t.welcome);
		want_true(again >= 0, "no connection");
		if (!target_answers(&t, again)) {
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
		sender->error =
			raw_request(sender->fd, WH_READ, (uint64_t)i, extents, EXTENTS, NULL, 0);
	return NULL;
}

/* The number of requests that the owner has received. */
static uint64_t taken_in(const struct target *t)
{
	struct wh_engine_counters counters = { .size = sizeof(counters) };

	want(0, wh_engine_counters(t->engine, &counters, NULL));
	return counters.served_requests;
}

/* Many reads are requested before the first response is received. The owner accepts only as many as
 * the quota allows, and answers all of them in the end. */
static void hold__reads_not_taken(void **state)
{
	static unsigned char bytes[EXTENTS * 128];
	struct wh_response response;
	struct sender sender = { 0 };
	uint64_t before = UINT64_MAX;
	pthread_t thread;
	struct target t;
	int fd;

	(void)state;
	target_open(&t, "max_buffered=1MiB");
	fd = raw_data(wh_engine_url(t.engine), &t.welcome);
	want_true(fd >= 0, "no connection");
	/* The requests exceed the socket buffers: another thread sends them. */
	sender.t = &t;
	sender.fd = fd;
	want(0, pthread_create(&thread, NULL, send_requests, &sender));
	/* Until the owner receives no more. */
	for (int64_t end = now() + PATIENCE;
	     before != taken_in(&t) || (before < 8 && now() < end);) {
		before = taken_in(&t);
		sleep_ms(SCALE(200, 1000));
	}
	/* The quota has room for some 24, and the sockets for a few answers; without a quota a
	 * connection would reach 64. */
	want_true(before >= 8 && before < 48, "%llu requests are taken in",
		  (unsigned long long)before);
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

/* Endless pings whose answers are never received: the session ends. */
static void hold__answers_not_taken(void **state)
{
	static unsigned char pings[4096 * 16];
	struct target t;
	uint64_t sent = 0;

	(void)state;
	target_open(&t, "max_buffered=64MiB");
	for (size_t i = 0; i < sizeof(pings); i += 16)
		wh_frame_encode(pings + i, &(struct wh_frame){ 8, WH_FRAME_PING, 0 });
	while (sent < 256 * MIB && !send_all(t.control, pings, sizeof(pings)))
		sent += sizeof(pings);
	want_true(sent < 256 * MIB, "it takes them all");
	for (int64_t until = now() + PATIENCE; now() < until && !times_logged("has left");)
		sleep_ms(5);
	want_true(times_logged("does not read the answers to its frames") == 1, "it logs: %s",
		  logged);
	close(t.control);
	t.control = raw_control(wh_engine_url(t.engine), &t.welcome);
	want_true(t.control >= 0, "it serves nobody any more");
	target_close(&t);
}

/* Sessions that do not receive the lists of regions that they ask for. All sessions of one address
 * together hold no more than the setting allows; once they are gone, others receive the whole list.
 */
static void hold__lists_not_taken(void **state)
{
	static struct wh_region *regions[REGIONS];
	struct wh_region_options named = { .size = sizeof(named), .access = ACCESS_BOTH };
	const struct wh_question list = { .kind = WH_ASK_LIST, .count = WH_QUESTION_MAX };
	int fds[SESSIONS], whole = 0;
	struct target t;
	char name[32];

	(void)state;
	target_open(&t, "max_buffered=2MiB");
	for (unsigned i = 0; i < REGIONS; i++) {
		snprintf(name, sizeof(name), "a-region-with-a-name-%u", i);
		named.name = name;
		want(0, wh_region_register(t.engine, t.pages + i % LENGTH, 1, &named, &regions[i]));
	}
	for (int i = 0; i < SESSIONS; i++) {
		fds[i] = raw_control(wh_engine_url(t.engine), &t.welcome);
		want_true(fds[i] >= 0, "no session");
		/* Some MiB more than the sockets hold. It may be closed meanwhile. */
		for (unsigned n = 0; n < 150 && !raw_ask(fds[i], &list, NULL, 0);)
			n++;
	}
	for (int64_t until = now() + PATIENCE;
	     !times_logged("setting max_buffered") && now() < until;)
		sleep_ms(10);
	want_true(times_logged("has reached the limit of the setting max_buffered") > 0,
		  "it logs: %s", logged);
	for (int i = 0; i < SESSIONS; i++)
		close(fds[i]);
	/* The owner notices their end a little later. */
	for (int64_t until = now() + PATIENCE; !whole && now() < until;) {
		int fd = raw_control(wh_engine_url(t.engine), &t.welcome);

		want_true(fd >= 0, "no session");
		whole = raw_count_regions(fd) == REGIONS + 1;
		close(fd);
	}
	want_true(whole, "no session receives the whole list any more");
	for (unsigned i = 0; i < REGIONS; i++)
		want(0, wh_region_unregister(regions[i]));
	target_close(&t);
}

/* Frames without their last byte. */
static void hold__frames_not_finished(void **state)
{
	static unsigned char bytes[WH_FRAME_MAX];
	int64_t end = now() + PATIENCE;
	int fds[SESSIONS], closed;
	struct target t;
	bool even;

	(void)state;
	target_open(&t, "max_buffered=1MiB");
	wh_frame_encode(bytes, &(struct wh_frame){ 256 * KIB - 8, WH_FRAME_REMOVED, 0 });
	for (int i = 0; i < SESSIONS; i++) {
		fds[i] = raw_control(wh_engine_url(t.engine), &t.welcome);
		want_true(fds[i] >= 0, "no session");
		want(1, raw_count_regions(fds[i]));
		send_all(fds[i], bytes, 200 * KIB);
	}
	/* Until it is at rest: what it has logged has happened, and suffices. */
	do {
		closed = 0;
		for (int i = 0; i < SESSIONS; i++)
			closed += raw_closes(fds[i], 300);
		even = times_logged("has reached the limit of the setting max_buffered") ==
		       (unsigned)closed;
	} while ((closed < SESSIONS - 4 || !even) && now() < end);
	want_true(closed >= SESSIONS - 4 && closed < SESSIONS, "%d are closed", closed);
	want_true(even, "it logs: %s", logged);
	for (int i = 0; i < SESSIONS; i++)
		close(fds[i]);
	target_close(&t);
}

/* Notifications that the application does not receive. */
static void hold__notifications(void **state)
{
	enum { MANY = 40 };
	static unsigned char note[16 + 4096];
	int fds[MANY], closed = 0;
	struct target t;

	(void)state;
	target_open(&t, "max_buffered=1MiB");
	for (int i = 0; i < MANY; i++) {
		fds[i] = raw_control(wh_engine_url(t.engine), &t.welcome);
		want_true(fds[i] >= 0, "no session");
		want(1, raw_count_regions(fds[i]));
		for (int j = 0; j < 16; j++)
			raw_send_frame(fds[i], WH_FRAME_NOTIFY, 0, note, sizeof(note));
	}
	/* Each sender has 15 charged to the quota, which has room for some 250. */
	for (int64_t until = now() + PATIENCE;
	     now() < until && times_logged("sends more notifications than") < MANY - 17;)
		sleep_ms(10);
	closed = (int)times_logged(
		"sends more notifications than may wait for its address (setting max_buffered)");
	want_true(closed >= MANY - 17 && closed <= MANY - 15, "%d are closed: %s", closed, logged);
	for (int i = 0; i < MANY; i++)
		close(fds[i]);
	target_close(&t);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(hold__connections),         TEST(hold__reads_not_taken),
		TEST(hold__answers_not_taken),   TEST(hold__lists_not_taken),
		TEST(hold__frames_not_finished), TEST(hold__notifications),
	};

	return harness_main(argc, argv, "hostile-buffered", tests, sizeof(tests) / sizeof(*tests));
}
