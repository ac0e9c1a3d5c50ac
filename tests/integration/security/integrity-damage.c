/* SPDX-License-Identifier: Apache-2.0 */
/* integrity-damage.c: the setting integrity=crc32c: who asks for it, and bytes that a proxy flips,
 * drops or repeats. Nothing that was damaged may be reported as done.
 *
 *   integrity-damage [--runs N] [--without]
 *
 * runs damage__never_silent() N times instead of 40; --without: with integrity=none, to see that
 * the proxy's damage would be silent. */
#include "lib/fixture.h"
#include "lib/impostor.h"
#include "lib/proxy.h"
#include "lib/raw.h"

#define LENGTH (2 * MIB)
#define HALF (LENGTH / 2)
#define SEED 20260801

static unsigned int runs = SCALE(40, 12);
static bool without;

/* ---- agreeing ---------------------------------------------------------- */

/* What the engines say of a route over TCP. */
static void explain(const char *ours, const char *theirs, char *out, size_t size)
{
	const char *const config[] = { ours, NULL };
	struct child_options options = { .config = { theirs } };
	struct wh_transfer transfer;
	struct wh_batch *batch;
	struct fixture f;

	fixture_open_with(&f, &route_tcp4, LENGTH, config, &options);
	round_trip(&f, 64, 64, 300000, 7);
	transfer = transfer_of(&f, WH_WRITE, 0, 0, LENGTH);
	batch = batch_of(&f, &transfer, 1);
	want(0, batch_run(batch));
	want_true(wh_batch_explain(batch, out, size) > 0, "no explanation");
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

static void agree__either_side(void **state)
{
	static const struct {
		const char *ours, *theirs;
		bool records;
	} cases[] = {
		{ "integrity=none", "integrity=none", false },
		{ "integrity=crc32c", "integrity=none", true },
		{ "integrity=none", "integrity=crc32c", true },
		{ "integrity=crc32c", "integrity=crc32c", true },
	};
	char text[4096];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		explain(cases[i].ours, cases[i].theirs, text, sizeof(text));
		want_true(!strstr(text, "integrity: crc32c") == !cases[i].records, "%s, %s: %s",
			  cases[i].ours, cases[i].theirs, text);
	}
}

/* TLS protects by itself. */
static void agree__not_with_tls(void **state)
{
	const char *const config[] = { "tls=1", "integrity=crc32c", NULL };
	struct child_options options = { .config = { "tls=1", "integrity=crc32c" } };
	struct wh_batch *batch;
	struct fixture f;
	struct wh_transfer transfer;
	char text[4096];

	(void)state;
	fixture_open_with(&f, &route_tcp4, LENGTH, config, &options);
	transfer = transfer_of(&f, WH_WRITE, 0, 0, LENGTH);
	batch = batch_of(&f, &transfer, 1);
	want(0, batch_run(batch));
	want_true(wh_batch_explain(batch, text, sizeof(text)) > 0, "no explanation");
	want_true(strstr(text, "TLS 1.3") && !strstr(text, "crc32c"), "%s", text);
	want(0, wh_batch_free(batch));
	fixture_close(&f);
}

/* An engine that cannot use records is refused, with a text. */
static void agree__initiator_cannot(void **state)
{
	struct child_options options = { .config = { "integrity=crc32c" } };
	struct child *child = child_start(&options);
	struct wh_hello hello = raw_hello(WH_ROLE_CONTROL);
	struct raw_shake shake;
	int fd = raw_connect(child->url);

	(void)state;
	want_true(fd >= 0, "no connection");
	want(0, hello.capabilities & WH_CAPABLE_RECORDS);
	want(EOPNOTSUPP, raw_shake(fd, &hello, NULL, &shake));
	close(fd);
	/* The refusal ends nothing else. */
	hello.capabilities |= WH_CAPABLE_RECORDS;
	fd = raw_connect(child->url);
	want(0, raw_shake(fd, &hello, NULL, &shake));
	want_true(shake.decoded.capabilities & WH_WANTS_RECORDS, "it does not ask for records");
	close(fd);
	child_exit(child);
}

static void agree__owner_cannot(void **state)
{
	static const char *const config[] = { "integrity=crc32c", NULL };
	struct impostor impostor = { .answer = ANSWER_WELL };
	struct wh_engine *engine = engine_open("tcp", NULL, config);
	struct wh_peer *peer;

	(void)state;
	impostor_start(&impostor);
	want_text(-EOPNOTSUPP, "integrity=crc32c", wh_peer_open(engine, impostor.url, NULL, &peer));
	want(0, wh_engine_close(engine));
	impostor_stop(&impostor);
}

/* ---- damage ------------------------------------------------------------ */

struct totals {
	unsigned int harmed; /* runs in which the proxy did its damage */
	unsigned int opened, succeeded, failed, silent;
	unsigned int notes, wrong_notes;
};

struct message {
	uint64_t run, sum;
};

static struct message message_of(uint64_t run)
{
	return (struct message){ run, (run + 1) * UINT64_C(0x9e3779b97f4a7c15) };
}

static uint64_t draw(uint64_t *seed, uint64_t below)
{
	*seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (*seed >> 33) % below;
}

/* Take all notifications that have arrived. */
static void take_notes(struct child *child, uint64_t run, int64_t patience, struct totals *totals)
{
	static struct note note;
	struct message got, right;

	while (!child_notification(child, patience, &note)) {
		memset(&got, 0, sizeof(got));
		memcpy(&got, note.data, note.length < sizeof(got) ? note.length : sizeof(got));
		right = message_of(got.run);
		totals->notes++;
		if (note.length != sizeof(got) || got.run > run || got.sum != right.sum) {
			totals->wrong_notes++;
			print_error("run %llu: a wrong notification\n", (unsigned long long)run);
		}
		patience = 0;
	}
}

/* Run one transfer, and check what it moved if it is said to be done. */
static bool run_one(struct fixture *f, uint64_t run, uint32_t op, struct totals *totals)
{
	struct message message = message_of(run);
	struct wh_transfer transfer = transfer_of(f, op, op == WH_READ ? LENGTH : 0, 0, HALF);
	struct wh_batch *batch = NULL;
	int status = wh_batch_new(f->peer, NULL, &batch);
	size_t wrong;

	if (!status)
		status = wh_batch_add(batch, &transfer, 1);
	if (!status && op == WH_WRITE)
		status = wh_batch_notify(batch, 0, &message, sizeof(message));
	if (!status)
		status = wh_batch_submit(batch);
	if (!status)
		status = batch_end(batch, SCALE(2, 8) * SECOND);
	if (status == -EAGAIN) {
		wh_batch_cancel(batch);
		status = batch_now(batch);
	}
	if (status) {
		totals->failed++;
	} else {
		wrong = op == WH_WRITE ? target_check(f, 0, HALF, 0, run) :
					 pattern_check(f->local + LENGTH, HALF, HALF, run);
		totals->succeeded++;
		if (wrong != PATTERN_GOOD) {
			totals->silent++;
			print_error("run %llu: said to be done, with wrong bytes at %zu\n",
				    (unsigned long long)run, wrong);
		}
	}
	if (batch)
		wh_batch_free(batch);
	return !status;
}

/* Open the peer through the proxy, write with a notification, and read. */
static void run_all(struct fixture *f, struct proxy *proxy, uint64_t run, struct totals *totals)
{
	bool told;

	pattern_fill(f->local, HALF, 0, run);
	memset(f->local + LENGTH, 0, HALF);
	if (wh_peer_open(f->engine, proxy_url(proxy), NULL, &f->peer))
		return;
	if (!wh_peer_find(f->peer, "target", SCALE(2, 8) * SECOND, &f->remote)) {
		totals->opened++;
		told = run_one(f, run, WH_WRITE, totals);
		take_notes(f->child, run, told ? PATIENCE : 0, totals);
		target_fill(f, 0, HALF, HALF, run);
		run_one(f, run, WH_READ, totals);
	}
	want(0, wh_peer_close(f->peer));
	f->peer = NULL;
}

static struct proxy_damage damage_of(uint64_t *seed)
{
	struct proxy_damage damage = {
		.harm = (enum proxy_harm)draw(seed, PROXY_HARMS),
		.role = draw(seed, 3) ? PROXY_DATA : PROXY_CONTROL,
		.side = (int)draw(seed, 2),
		.length = 1 + draw(seed, draw(seed, 2) ? 1 : PROXY_DAMAGE_MAX),
		.bit = (unsigned int)draw(seed, 8),
	};

	damage.after = draw(seed, damage.role == PROXY_CONTROL ? 700 : HALF);
	return damage;
}

static void damage__never_silent(void **state)
{
	const char *const config[] = { without ? "integrity=none" : "integrity=crc32c",
				       "timeout=1000", "connections=2", NULL };
	struct child_options options = { .config = { "timeout=1000" } };
	struct totals totals = { 0 };
	struct proxy_damage damage;
	struct proxy *proxy;
	struct fixture f;
	uint64_t seed = SEED;

	(void)state;
	harness_limit(60 + 4 * runs);
	fixture_open_with(&f, &route_tcp4, LENGTH, config, &options);
	want(0, wh_peer_close(f.peer));
	proxy = proxy_start(f.child->url);
	assert_non_null(proxy);
	for (uint64_t run = 1; run <= runs; run++) {
		damage = damage_of(&seed);
		proxy_damage(proxy, &damage);
		run_all(&f, proxy, run, &totals);
		totals.harmed += proxy_damaged(proxy);
	}
	proxy_damage(proxy, NULL);
	take_notes(f.child, runs, 0, &totals);
	print_message("%u runs, %u harmed, %u opened; batches: %u succeeded, %u failed, %u silent; "
		      "notifications: %u, %u wrong\n",
		      runs, totals.harmed, totals.opened, totals.succeeded, totals.failed,
		      totals.silent, totals.notes, totals.wrong_notes);
	want_true(totals.harmed >= runs / 2, "the proxy did damage in %u of %u runs only",
		  totals.harmed, runs);
	want_true(totals.succeeded >= runs / 2, "%u batches succeeded", totals.succeeded);
	want(0, totals.silent);
	want(0, totals.wrong_notes);
	fixture_connect(&f, f.child->url);
	round_trip(&f, 64, 64, 70000, 3);
	fixture_close(&f);
	proxy_stop(proxy);
}

static unsigned int warnings;

static void count_warning(void *arg, const struct wh_log_record *record)
{
	(void)arg;
	if (record->level == WH_LOG_WARN && strstr(record->text, "damaged on the way"))
		__atomic_fetch_add(&warnings, 1, __ATOMIC_RELAXED);
}

/* A flipped bit is logged and counted by whoever receives it, and the batch succeeds. */
static void damage__counted(void **state)
{
	const char *const config[] = { "require=tcp", "integrity=crc32c", NULL };
	struct wh_engine_options options = {
		.size = sizeof(options), .listen = "none", .config = config, .log = count_warning
	};
	struct proxy_damage damage = { .harm = PROXY_FLIP,
				       .role = PROXY_DATA,
				       .side = 1,
				       .after = HALF / 2,
				       .length = 1,
				       .bit = 3 };
	struct wh_engine_counters counters = { .size = sizeof(counters) };
	struct totals totals = { 0 };
	struct proxy *proxy;
	struct fixture f;

	(void)state;
	fixture_open(&f, &route_tcp4, LENGTH);
	proxy = proxy_start(f.child->url);
	assert_non_null(proxy);
	want(0, wh_peer_close(f.peer));
	want(0, wh_region_unregister(f.region));
	want(0, wh_engine_close(f.engine));
	want(0, wh_engine_open(&options, &f.engine));
	want(0, wh_region_register(f.engine, f.local, 2 * LENGTH, NULL, &f.region));
	proxy_damage(proxy, &damage);
	run_all(&f, proxy, 1, &totals);
	want_true(proxy_damaged(proxy), "nothing was damaged");
	want(2, totals.succeeded);
	want(0, totals.silent);
	want(1, warnings);
	want(0, wh_engine_counters(f.engine, &counters, NULL));
	want(1, counters.damaged);
	want(0, wh_peer_open(f.engine, f.child->url, NULL, &f.peer));
	fixture_close(&f);
	proxy_stop(proxy);
}

/* The last bytes of an answer are lost, and none follows that would show it: the connection is cut
 * after 10 s without a byte, and the read repeated. */
static void damage__stands_still(void **state)
{
	static const char *const settings[] = { "integrity=none", "integrity=crc32c" };
	struct proxy_damage damage = {
		.harm = PROXY_DROP, .role = PROXY_DATA, .side = 1, .after = 36, .length = 3
	};
	struct child_options options = { 0 };
	struct proxy *proxy[2];
	struct fixture f[2];
	struct wh_transfer transfer;
	struct wh_batch *batch[2];

	(void)state;
	harness_limit(120);
	for (int i = 0; i < 2; i++) {
		const char *const config[] = { settings[i], "idle=1000", "timeout=5000", NULL };

		options.config[0] = settings[i];
		options.config[1] = "timeout=5000";
		fixture_open_with(&f[i], &route_tcp4, LENGTH, config, &options);
		want(0, wh_peer_close(f[i].peer));
		proxy[i] = proxy_start(f[i].child->url);
		assert_non_null(proxy[i]);
		fixture_connect(&f[i], proxy_url(proxy[i]));
		transfer = transfer_of(&f[i], WH_READ, 0, 0, 8);
		batch[i] = batch_of(&f[i], &transfer, 1);
		want(0, batch_run(batch[i]));
		proxy_damage(proxy[i], &damage);
		pattern_fill(f[i].local, 8, 0, 1);
		target_fill(&f[i], 0, 8, 0, 2);
		want(0, wh_batch_submit(batch[i]));
	}
	for (int i = 0; i < 2; i++) {
		want(0, batch_end(batch[i], 2 * PATIENCE + 20 * SECOND));
		want_true(proxy_damaged(proxy[i]), "%s: nothing was damaged", settings[i]);
		want_true(pattern_check(f[i].local, 8, 0, 2) == PATTERN_GOOD, "%s: wrong bytes",
			  settings[i]);
		want(0, wh_batch_free(batch[i]));
		fixture_close(&f[i]);
		proxy_stop(proxy[i]);
	}
}

static const struct CMUnitTest tests[] = {
	TEST(agree__either_side),   TEST(agree__not_with_tls), TEST(agree__initiator_cannot),
	TEST(agree__owner_cannot),  TEST(damage__counted),     TEST(damage__never_silent),
	TEST(damage__stands_still),
};

int main(int argc, char **argv)
{
	char *rest[2] = { argv[0], (char *)"never_silent" };

	if (argc < 2 || (strcmp(argv[1], "--runs") != 0 && strcmp(argv[1], "--without") != 0))
		return harness_main(argc, argv, "integrity-damage", tests,
				    sizeof(tests) / sizeof(*tests));
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--runs") && i + 1 < argc)
			runs = (unsigned int)atoi(argv[++i]);
		else if (!strcmp(argv[i], "--without"))
			without = true;
	}
	return harness_main(2, rest, "integrity-damage", tests, sizeof(tests) / sizeof(*tests));
}
