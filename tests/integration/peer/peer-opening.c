/* SPDX-License-Identifier: Apache-2.0 */
/* peer-opening.c: opening peers without waiting: the queue receives how that ends */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/fixture.h"

#define LENGTH 4096

/* An engine with a queue, and the URL of another engine with a region "target". */
struct opening {
	struct wh_engine *engine;
	struct wh_queue *queue;
	struct child *child;
};

static void opening_start(struct opening *o)
{
	o->engine = engine_open(NULL, "none", NULL);
	want(0, wh_queue_new(o->engine, &o->queue));
	o->child = child_start(NULL);
	child_region(o->child, child_memory(o->child, WH_MEMORY_SHARED, LENGTH), 0, LENGTH,
		     "target", ACCESS_BOTH, NULL);
}

static void opening_end(struct opening *o)
{
	want(0, wh_queue_free(o->queue));
	want(0, wh_engine_close(o->engine));
	child_exit(o->child);
}

static struct wh_peer *open_at(struct opening *o, const char *url, int64_t timeout, uint64_t user)
{
	struct wh_peer_options options = {
		.size = sizeof(options), .timeout = timeout, .queue = o->queue, .user = user
	};
	struct wh_peer *peer;

	want(0, wh_peer_open(o->engine, url, &options, &peer));
	return peer;
}

/* The next completion is the peer's. Returns its status. */
static int opened(struct opening *o, struct wh_peer *peer, uint64_t user)
{
	struct wh_completion done;

	want(1, wh_queue_take(o->queue, &done, 1, PATIENCE));
	want_true(done.peer == peer && !done.batch, "the completion is of another peer");
	want(user, done.user);
	want(done.status, wh_peer_status(peer));
	return done.status;
}

static void want_state(struct wh_peer *peer, uint32_t state, const char *name)
{
	struct wh_peer_info info = { .size = sizeof(info) };

	want(0, wh_peer_info(peer, &info));
	want(state, info.state);
	assert_string_equal(wh_peer_state_name(info.state), name);
}

/* A socket that accepts connections, by its backlog, and never answers. */
static int silent_server(char url[64])
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	want_true(fd >= 0 && !bind(fd, (struct sockaddr *)&address, length) && !listen(fd, 16) &&
			  !getsockname(fd, (struct sockaddr *)&address, &length),
		  "no socket");
	snprintf(url, 64, "wherry://127.0.0.1:%u", ntohs(address.sin_port));
	return fd;
}

/* Write 8 bytes to the peer's region. */
static void want_usable(struct opening *o, struct wh_peer *peer)
{
	static const char bytes[8] = "by queue";
	struct wh_transfer transfer = { .op = WH_WRITE, .length = 8 };
	struct wh_region *region;
	struct wh_remote remote;
	struct wh_batch *batch;

	want(0, wh_region_register(o->engine, (void *)(uintptr_t)bytes, 8, NULL, &region));
	want(0, wh_peer_find(peer, "target", PATIENCE, &remote));
	transfer.local = region;
	transfer.remote = remote.id;
	want(0, wh_batch_new(peer, NULL, &batch));
	want(0, wh_batch_add(batch, &transfer, 1));
	want(0, batch_run(batch));
	want(0, wh_batch_free(batch));
	want(0, wh_region_unregister(region));
}

static void opening__succeeds(void **state)
{
	const char *urls[] = { NULL, NULL, "self" };
	struct wh_completion done;
	struct wh_peer *peer;
	struct opening o;
	char by_name[64];

	(void)state;
	opening_start(&o);
	urls[0] = o.child->url;
	/* A name has to be looked up, on a thread. */
	snprintf(by_name, sizeof(by_name), "localhost%s", strrchr(o.child->url, ':'));
	urls[1] = by_name;
	for (unsigned int i = 0; i < 3; i++) {
		peer = open_at(&o, urls[i], 0, 7 + i);
		want_text(-EBUSY, "1 batches or peers", wh_queue_free(o.queue));
		want(0, opened(&o, peer, 7 + i));
		want_state(peer, WH_PEER_CONNECTED, "connected");
		if (i < 2)
			want_usable(&o, peer);
		/* It is reported once. */
		want(0, wh_queue_take(o.queue, &done, 1, 0));
		want(0, wh_peer_close(peer));
	}
	opening_end(&o);
}

static void opening__fails(void **state)
{
	struct wh_peer *peer;
	struct wh_remote remote;
	struct opening o;
	char url[64];

	(void)state;
	opening_start(&o);
	close(silent_server(url));
	peer = open_at(&o, url, 0, 1);
	want(-ECONNREFUSED, opened(&o, peer, 1));
	want_text(-ECONNREFUSED, "nothing listens there", wh_peer_status(peer));
	want_state(peer, WH_PEER_UNREACHABLE, "unreachable");
	/* It does not come back: nothing waits for it. */
	want(-ECONNREFUSED, wh_peer_find(peer, "target", WH_FOREVER, &remote));
	want(0, wh_peer_close(peer));
	opening_end(&o);
}

static void opening__times_out(void **state)
{
	struct wh_batch *batch;
	struct wh_transfer transfer = { .op = WH_WRITE, .length = 8, .remote = 1 };
	struct wh_remote remote;
	struct wh_peer *peer;
	struct opening o;
	char url[64];
	int fd;

	(void)state;
	opening_start(&o);
	fd = silent_server(url);
	peer = open_at(&o, url, 300 * MS, 2);
	want_text(-EINPROGRESS, "not connected yet", wh_peer_status(peer));
	want_state(peer, WH_PEER_CONNECTING, "connecting");
	want(-EINPROGRESS, wh_peer_find(peer, "target", WH_ANSWER, &remote));
	want(0, wh_batch_new(peer, NULL, &batch));
	want(0, wh_region_register(o.engine, url, sizeof(url), NULL, &transfer.local));
	want(-EINPROGRESS, wh_batch_add(batch, &transfer, 1));
	want(0, wh_batch_notify(batch, 0, "x", 1));
	want(-EINPROGRESS, wh_batch_submit(batch));
	want(-ETIMEDOUT, opened(&o, peer, 2));
	want_text(-ETIMEDOUT, "does not answer", wh_batch_submit(batch));
	want(0, wh_batch_free(batch));
	want(0, wh_region_unregister(transfer.local));
	want(0, wh_peer_close(peer));
	close(fd);
	opening_end(&o);
}

/* Closing a peer ends its opening, and the queue does not hear of it. */
static void opening__closed(void **state)
{
	struct wh_completion done;
	struct opening o;
	char url[64];
	int fd;

	(void)state;
	opening_start(&o);
	fd = silent_server(url);
	for (unsigned int i = 0; i < 20; i++) {
		const char *name = i % 2 ? url : i % 4 ? o.child->url : "localhost:1";

		want(0, wh_peer_close(open_at(&o, name, 0, i)));
	}
	want(0, wh_queue_take(o.queue, &done, 1, 0));
	close(fd);
	opening_end(&o);
}

/* One thread opens many peers, some of which are unreachable, and takes what comes. */
static void opening__many(void **state)
{
	enum { COUNT = 60 };
	struct wh_peer *peers[COUNT];
	unsigned int reached = 0, refused = 0;
	struct wh_completion done;
	struct opening o;
	char nobody[64];

	(void)state;
	opening_start(&o);
	close(silent_server(nobody));
	for (unsigned int i = 0; i < COUNT; i++)
		peers[i] = open_at(&o, i % 3 ? o.child->url : nobody, 0, i);
	for (unsigned int i = 0; i < COUNT; i++) {
		want(1, wh_queue_take(o.queue, &done, 1, PATIENCE));
		want_true(done.peer == peers[done.user], "another peer's number");
		want(done.user % 3 ? 0 : -ECONNREFUSED, done.status);
		reached += !done.status;
		refused += done.status == -ECONNREFUSED;
	}
	want(COUNT / 3, refused);
	want(COUNT - COUNT / 3, reached);
	for (unsigned int i = 0; i < COUNT; i++)
		want(0, wh_peer_close(peers[i]));
	opening_end(&o);
}

static void *close_what_comes(void *arg)
{
	struct opening *o = arg;
	struct wh_completion done;

	for (unsigned int i = 0; i < 100; i++) {
		want(1, wh_queue_take(o->queue, &done, 1, PATIENCE));
		want(0, wh_peer_close(done.peer));
	}
	return NULL;
}

/* Another thread may close a peer before the call that opens it has returned. */
static void opening__closed_by_another_thread(void **state)
{
	struct opening o;
	pthread_t thread;

	(void)state;
	opening_start(&o);
	want(0, pthread_create(&thread, NULL, close_what_comes, &o));
	for (unsigned int i = 0; i < 100; i++)
		open_at(&o, i % 2 ? "self" : o.child->url, 0, i);
	want(0, pthread_join(thread, NULL));
	opening_end(&o);
}

/* A callback may open a peer: it does not wait. */
static void open_in_callback(struct wh_batch *batch, int status, void *arg)
{
	struct opening *o = arg;
	struct wh_peer *peer;

	(void)batch, (void)status;
	assert_int_equal(wh_peer_open(o->engine, o->child->url, NULL, &peer), -EDEADLK);
	open_at(o, o->child->url, 0, 3);
}

static void opening__in_a_callback(void **state)
{
	struct wh_batch_options options = { .size = sizeof(options), .callback = open_in_callback };
	struct wh_completion done;
	struct wh_batch *batch;
	struct wh_peer *self;
	struct opening o;

	(void)state;
	opening_start(&o);
	options.callback_arg = &o;
	want(0, wh_peer_open(o.engine, "self", NULL, &self));
	want(0, wh_batch_new(self, &options, &batch));
	want(0, wh_batch_notify(batch, 0, "x", 1));
	want(0, batch_run(batch));
	want(1, wh_queue_take(o.queue, &done, 1, PATIENCE));
	want(3, done.user);
	want(0, done.status);
	want_usable(&o, done.peer);
	want(0, wh_peer_close(done.peer));
	want(0, wh_batch_free(batch));
	want(0, wh_peer_close(self));
	opening_end(&o);
}

static void opening__arguments(void **state)
{
	struct wh_peer_options options = { .size = sizeof(options) };
	struct wh_engine *other = engine_open(NULL, "none", NULL);
	struct wh_peer *peer;
	struct opening o;

	(void)state;
	opening_start(&o);
	options.queue = o.queue;
	want_text(-EINVAL, "another engine", wh_peer_open(other, "self", &options, &peer));
	want_text(-EINVAL, "port", wh_peer_open(o.engine, "127.0.0.1", &options, &peer));
	want_text(-EINVAL, "scheme", wh_peer_open(o.engine, "http://a:1", &options, &peer));
	want_text(-EINVAL, "peer", wh_peer_status(NULL));
	want(0, wh_engine_close(other));
	opening_end(&o);
}

/* ---- what makes it slow ---------------------------------------------------------------------- */

struct said {
	_Atomic unsigned warnings;
	char text[512]; /* the last one */
};

static void keep_warning(void *arg, const struct wh_log_record *record)
{
	struct said *said = arg;

	if (record->level != WH_LOG_WARN)
		return;
	snprintf(said->text, sizeof(said->text), "%s", record->text);
	atomic_fetch_add(&said->warnings, 1);
}

/* Write a page to the child's "target", and explain it. */
static void write_and_explain(struct wh_engine *engine, const char *url, char text[2048])
{
	unsigned char *page = pages_new(LENGTH);
	struct wh_transfer transfer = { .length = LENGTH, .op = WH_WRITE };
	struct wh_region *region;
	struct wh_remote remote;
	struct wh_batch *batch;
	struct wh_peer *peer;

	want(0, wh_peer_open(engine, url, NULL, &peer));
	want(0, wh_peer_find(peer, "target", PATIENCE, &remote));
	want(0, wh_region_register(engine, page, LENGTH, NULL, &region));
	transfer.local = region;
	transfer.remote = remote.id;
	want(0, wh_batch_new(peer, NULL, &batch));
	want(0, wh_batch_add(batch, &transfer, 1));
	want(0, wh_batch_submit(batch));
	want(0, wh_batch_wait_for(batch, PATIENCE));
	want(0, wh_batch_status(batch));
	want_true(wh_batch_explain(batch, text, 2048) > 0, "no explanation");
	want(0, wh_batch_free(batch));
	want(0, wh_peer_close(peer));
	want(0, wh_region_unregister(region));
	pages_free(page, LENGTH);
}

/* A process of this host that shared memory does not reach: the log warns once for an engine, each
 * explanation repeats it. A peer that is reached makes none. */
static void warning__no_shared_memory(void **state)
{
	const struct child_options apart = { .name = "apart", .config = { "transports=tcp" } };
	static const char warning[] = "apart is on this host, but shm does not reach it, so that "
				      "bytes take a slower path: ";
	struct said said = { 0 };
	struct wh_engine_options options = { .size = sizeof(options),
					     .listen = "none",
					     .log = keep_warning,
					     .log_arg = &said,
					     .log_level = WH_LOG_WARN };
	struct child *child[2] = { child_start(&apart), child_start(NULL) };
	struct wh_engine *engine;
	char text[2048], *found;

	(void)state;
	for (int i = 0; i < 2; i++)
		child_region(child[i], child_memory(child[i], WH_MEMORY_SHARED, LENGTH), 0, LENGTH,
			     "target", ACCESS_BOTH, NULL);
	want(0, wh_engine_open(&options, &engine));
	write_and_explain(engine, child[1]->url, text);
	want_true(!strstr(text, "warning: "), "%s", text);
	want(0, said.warnings);
	for (int i = 0; i < 2; i++) {
		write_and_explain(engine, child[0]->url, text);
		found = strstr(text, "warning: ");
		want_true(found && !strncmp(found + 9, warning, strlen(warning)), "%s", text);
		want(1, said.warnings);
		/* The same words in both. */
		want_true(!strncmp(found + 9, said.text, strlen(said.text)), "%s\n%s", text,
			  said.text);
	}
	want(0, wh_engine_close(engine));
	child_exit(child[0]);
	child_exit(child[1]);
}

/* Without a time of its own an opening takes as long as the setting `timeout` allows. */
static void opening__as_long_as_the_setting(void **state)
{
	const char *const config[] = { "timeout=6000", NULL };
	struct wh_engine *engine = engine_open(NULL, "none", config);
	int64_t begun = now();
	struct wh_peer *peer;
	char url[64];
	int fd = silent_server(url);

	(void)state;
	want_text(-ETIMEDOUT, "does not answer", wh_peer_open(engine, url, NULL, &peer));
	want_true(now() - begun >= 6 * SECOND, "it gave up after %lld ms",
		  (long long)((now() - begun) / MS));
	want(0, wh_engine_close(engine));
	close(fd);
}

static const struct CMUnitTest tests[] = {
	TEST(warning__no_shared_memory),
	TEST(opening__succeeds),
	TEST(opening__fails),
	TEST(opening__times_out),
	TEST(opening__as_long_as_the_setting),
	TEST(opening__closed),
	TEST(opening__many),
	TEST(opening__in_a_callback),
	TEST(opening__closed_by_another_thread),
	TEST(opening__arguments),
};

HARNESS_MAIN("peer-opening", tests)
