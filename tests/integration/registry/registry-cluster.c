/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: registry command bench-many slow */
/* registry-cluster.c: an etcd of three members, one of which is killed: the leader, or the one that
 * engines are connected to */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "lib/fixture.h"
#include "lib/server.h"

#define LENGTH (64 * KIB)
#define AT_ONCE (SCALE(2, 8) * SECOND)

/* What engines have logged, and how look-ups of a name have ended, since a member was killed. */
static _Atomic bool lost;
static _Atomic unsigned looked, unanswered;

static void keep_line(void *arg, const struct wh_log_record *record)
{
	(void)arg;
	if (strstr(record->text, "has lost its lease") || strstr(record->text, "taken"))
		atomic_store(&lost, true);
	if (getenv("TESTS_LOG"))
		fprintf(stderr, "engine: %s\n", record->text);
}

struct cluster {
	struct server member[SERVER_MEMBERS];
	char url[160], setting[176];
	struct wh_engine *engine; /* does the look-ups */
	struct wh_peer *peer; /* node7, in another process */
	struct child *child;
	struct wh_region *region;
	struct wh_remote remote;
	_Atomic bool over;
};

static struct wh_engine *open_engine(struct cluster *c, const char *name, const char *lease)
{
	const char *const config[] = { lease, "timeout=2000", NULL };
	struct wh_engine_options options = {
		.size = sizeof(options),
		.name = name,
		.listen = name ? "127.0.0.1:0" : "none",
		.registry = c->url,
		.config = config,
		.log = keep_line,
	};
	struct wh_engine *engine;

	want(0, wh_engine_open(&options, &engine));
	return engine;
}

/* The number of the leader, when all members agree on it. */
static unsigned leader_of(const struct cluster *c)
{
	static const char program[] =
		"import json, sys, time, urllib.request as u\n"
		"while True:\n"
		"    s = [json.load(u.urlopen(f'http://127.0.0.1:{p}/v3/maintenance/status', "
		"b'{}')) for p in sys.argv[1:]]\n"
		"    led = {x.get('leader') for x in s}\n"
		"    n = [i for i, x in enumerate(s) if x['header']['member_id'] in led]\n"
		"    if len(led) == 1 and len(n) == 1:\n"
		"        sys.exit(10 + n[0])\n"
		"    time.sleep(0.05)\n";
	char line[1024];
	int status;

	snprintf(line, sizeof(line), "timeout 20 python3 -c \"%s\" %d %d %d", program,
		 c->member[0].port, c->member[1].port, c->member[2].port);
	status = WEXITSTATUS(system(line)) - 10;
	want_true(status >= 0 && status < SERVER_MEMBERS, "nobody leads");
	return (unsigned)status;
}

/* Engines connect to the first member in the URL. */
static void cluster_open(struct cluster *c, unsigned first)
{
	int port[SERVER_MEMBERS], memory;

	for (unsigned i = 0; i < SERVER_MEMBERS; i++)
		port[i] = c->member[(first + i) % SERVER_MEMBERS].port;
	snprintf(c->url, sizeof(c->url), "etcd://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d", port[0],
		 port[1], port[2]);
	snprintf(c->setting, sizeof(c->setting), "registry=%s", c->url);
	c->child = child_start(&(struct child_options){
		.listen = "127.0.0.1:0", .name = "node7", .config = { c->setting, "lease=1s" } });
	memory = child_memory(c->child, WH_MEMORY_PAGEABLE, LENGTH);
	child_region(c->child, memory, 0, LENGTH, "target", ACCESS_BOTH, NULL);
	c->engine = open_engine(c, NULL, "lease=60s");
	want(0, wh_peer_open(c->engine, "wherry://node7", NULL, &c->peer));
	want(0, wh_peer_find(c->peer, "target", PATIENCE, &c->remote));
	atomic_store(&lost, false);
	atomic_store(&looked, 0);
	atomic_store(&unanswered, 0);
}

/* An open connection moves bytes all the time. */
static void *keep_moving(void *argument)
{
	static unsigned char bytes[LENGTH];
	struct cluster *c = argument;
	struct wh_batch_options options = { .size = sizeof(options) };
	struct wh_region *region;
	struct wh_batch *batch;

	want(0, wh_region_register(c->engine, bytes, sizeof(bytes), NULL, &region));
	want(0, wh_batch_new(c->peer, &options, &batch));
	want(0, wh_batch_add(batch,
			     &(struct wh_transfer){ .op = WH_WRITE,
						    .local = region,
						    .remote = c->remote.id,
						    .length = LENGTH },
			     1));
	while (!atomic_load(&c->over)) {
		want(0, batch_run(batch));
		sleep_ms(2);
	}
	want(0, wh_batch_free(batch));
	want(0, wh_region_unregister(region));
	return NULL;
}

/* The error may come from any member: one is dead, the others may have no leader yet, or be slow.
 */
static bool is_of_a_member(int error)
{
	return error == -ECONNREFUSED || error == -ECONNRESET || error == -EHOSTDOWN ||
	       error == -EPROTO || error == -ETIMEDOUT;
}

/* The remaining members may not answer for a moment, but none of them may say that the name is
 * free. */
static void name_stays(struct cluster *c, struct wh_engine *looking, int64_t time)
{
	int64_t begun = now(), answered = begun;
	struct wh_peer *peer;
	int error;

	/* On a busy machine an election takes long: go on until it is over. */
	while (now() - begun < time || (now() - answered >= 500 * MS && now() - begun < PATIENCE)) {
		error = wh_peer_open(looking, "wherry://node7", NULL, &peer);
		looked++;
		want_true(!error || is_of_a_member(error), "the name is: %s: %s",
			  strerrorname_np(-error), wh_error_text());
		if (!error) {
			struct wh_peer_info info = { .size = sizeof(info) };

			want(0, wh_peer_info(peer, &info));
			want_true(info.epoch == c->child->epoch, "another engine");
			want(0, wh_peer_close(peer));
			answered = now();
		}
		unanswered += error != 0;
		sleep_ms(50);
	}
	want_true(now() - answered < 500 * MS, "for %lld ms nobody has found the name",
		  (long long)((now() - answered) / MS));
}

/* Another engine gets the name. A peer that watches it must notice at once, although names are
 * looked up every 20 s only. */
static void watch_goes_on(struct cluster *c)
{
	struct wh_peer_info info = { .size = sizeof(info) };
	struct wh_engine *next;
	int64_t begun;

	child_exit(c->child);
	sleep_ms(300);
	next = open_engine(c, "node7", "lease=1s");
	for (begun = quiet_now(); quiet_now() - begun < AT_ONCE; sleep_ms(5)) {
		want(0, wh_peer_info(c->peer, &info));
		if (info.state == WH_PEER_STALE)
			break;
	}
	want(WH_PEER_STALE, info.state);
	want(0, wh_peer_close(c->peer));
	want(0, wh_engine_close(next));
	want(0, wh_engine_close(c->engine));
}

/* Go on for longer than etcd's lease of a second. */
static void one_killed(struct cluster *c, unsigned first, unsigned victim)
{
	struct wh_engine *looking;
	pthread_t thread;

	cluster_open(c, first);
	looking = open_engine(c, NULL, "lease=1s");
	atomic_store(&c->over, false);
	want(0, pthread_create(&thread, NULL, keep_moving, c));
	name_stays(c, looking, 200 * MS);
	want(0, (int)unanswered);
	server_kill(&c->member[victim]);
	name_stays(c, looking, 1500 * MS);
	print_message("[          ] looked up %u times, %u without an answer\n", looked,
		      unanswered);
	atomic_store(&c->over, true);
	want(0, pthread_join(thread, NULL));
	want_true(!lost, "an engine has lost its name");
	want(0, wh_engine_close(looking));
	watch_goes_on(c);
	server_again(&c->member[victim]);
}

static void member__killed(void **state)
{
	static struct cluster c;
	unsigned leader;

	(void)state;
	server_start_cluster(c.member);
	leader = leader_of(&c);
	one_killed(&c, leader, leader); /* the leader, which engines are connected to */
	leader = leader_of(&c);
	one_killed(&c, (leader + 1) % SERVER_MEMBERS,
		   leader); /* the leader, which they are not connected to */
	leader = leader_of(&c);
	/* a follower */
	one_killed(&c, (leader + 1) % SERVER_MEMBERS, (leader + 1) % SERVER_MEMBERS);
	for (unsigned i = 0; i < SERVER_MEMBERS; i++)
		server_stop(&c.member[i]);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		{ "member__killed", member__killed, harness_begin, server_end,
		  (void *)&server_etcd },
	};

	return harness_main(argc, argv, "registry-cluster", tests, sizeof(tests) / sizeof(*tests));
}
