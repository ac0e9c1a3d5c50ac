/* SPDX-License-Identifier: Apache-2.0 */
/* rdma-rights.c: rights of single peers over rdma
 *
 * A NIC's key cannot tell peers apart: only peers that have all rights of the region get it. */
#include "lib/nics.h"

#define LENGTH MIB

static const struct wh_grant grants[] = {
	{ "alice", WH_ACCESS_READ | WH_ACCESS_WRITE, 0 },
	{ "bob", WH_ACCESS_READ, 0 },
	{ "dave", WH_ACCESS_WRITE, 0 },
};

struct looker {
	struct wh_engine *engine;
	struct wh_peer *peer;
	struct wh_region *region;
	unsigned char *pages;
};

static struct wh_engine *open_named(const char *name, const char *nic)
{
	const char *const config[] = { "transports=rdma,tcp", "timeout=2000", nic, NULL };
	struct wh_engine_options options = {
		.size = sizeof(options), .name = name, .config = config, .listen = "127.0.0.1:0"
	};
	struct wh_engine *engine;

	want(0, wh_engine_open(&options, &engine));
	return engine;
}

static void looker_open(struct looker *looker, struct wh_engine *owner, const char *name)
{
	looker->engine = open_named(name, "rdma=fake0");
	looker->pages = pages_new(LENGTH);
	want(0, wh_region_register(looker->engine, looker->pages, LENGTH, NULL, &looker->region));
	want(0, wh_peer_open(looker->engine, wh_engine_url(owner), NULL, &looker->peer));
}

static void looker_close(struct looker *looker)
{
	want(0, wh_peer_close(looker->peer));
	want(0, wh_region_unregister(looker->region));
	pages_free(looker->pages, LENGTH);
	want(0, wh_engine_close(looker->engine));
}

/* Move all bytes by the transport; or expect the error; or the reason why not by rdma. */
static void move_all(struct looker *looker, uint32_t op, int error, const char *transport,
		     const char *word)
{
	struct wh_transfer transfer = { .op = op, .local = looker->region, .length = LENGTH };
	struct wh_remote remote;
	struct wh_batch *batch;
	char refused[192];

	want(0, wh_peer_find(looker->peer, "target", PATIENCE, &remote));
	transfer.remote = remote.id;
	want(0, wh_batch_new(looker->peer, NULL, &batch));
	if (error) {
		want_text(error, word,
			  wh_batch_add(batch, &transfer, 1) ? -EACCES : batch_run(batch));
	} else {
		want(0, wh_batch_add(batch, &transfer, 1));
		want(0, batch_run(batch));
		want(LENGTH, bytes_by(batch, transport, NULL));
		if (word)
			want(0, bytes_by(batch, "rdma", refused));
		if (word)
			want_true(strstr(refused, word), "it says: %s", refused);
	}
	want(0, wh_batch_free(batch));
}

static void rights__by_name(void **state)
{
	struct wh_region_options named = {
		.size = sizeof(named), .name = "target", .grants = grants, .grant_count = 3
	};
	struct looker alice, bob, carol, dave;
	struct wh_engine *owner;
	struct wh_region *region;
	unsigned char *pages = pages_new(LENGTH);
	struct wh_remote remote;

	(void)state;
	setenv("FAKE_VERBS", "fake0,fake1", 1);
	owner = open_named("owner", "rdma=fake1");
	want(0, wh_region_register(owner, pages, LENGTH, &named, &region));
	looker_open(&alice, owner, "alice");
	looker_open(&bob, owner, "bob");
	looker_open(&carol, owner, "carol");
	looker_open(&dave, owner, "dave");
	pattern_fill(alice.pages, LENGTH, 0, 1);
	move_all(&alice, WH_WRITE, 0, "rdma", NULL);
	move_all(&alice, WH_READ, 0, "rdma", NULL);
	move_all(&bob, WH_READ, 0, "tcp", "other peers have more rights");
	want_true(pattern_check(bob.pages, LENGTH, 0, 1) == PATTERN_GOOD, "other bytes");
	move_all(&bob, WH_WRITE, -EACCES, NULL, "may not be written");
	pattern_fill(dave.pages, LENGTH, 0, 2);
	move_all(&dave, WH_WRITE, 0, "tcp", "other peers have more rights");
	want_true(pattern_check(pages, LENGTH, 0, 2) == PATTERN_GOOD, "other bytes");
	move_all(&dave, WH_READ, -EACCES, NULL, "may not be read");
	want(-ENOENT, wh_peer_find(carol.peer, "target", WH_ANSWER, &remote));
	looker_close(&alice);
	looker_close(&bob);
	looker_close(&carol);
	looker_close(&dave);
	want(0, wh_region_unregister(region));
	pages_free(pages, LENGTH);
	want(0, wh_engine_close(owner));
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(rights__by_name, needs_nics),
};

HARNESS_MAIN("rdma-rights", tests)
