/* SPDX-License-Identifier: Apache-2.0 */
/* peer-rights.c: rights of single peers: each sees, and may do, what is granted to its name, over
 * every transport */
#include "lib/fixture.h"
#include "lib/raw.h"
#include "wire/bytes.h"

#define LENGTH (64 * KIB)

static const struct wh_grant grants[] = {
	{ "alice", WH_ACCESS_READ | WH_ACCESS_WRITE, 0 },
	{ "bob", WH_ACCESS_READ, 0 },
	{ "dave", WH_ACCESS_WRITE, 0 },
};

/* This process publishes a region to the peers in `grants`; children with those names use it. */
struct owner {
	struct wh_engine *engine;
	struct wh_region *region;
	uint32_t kind;
	void *memory;
};

static void owner_open(struct owner *owner, uint32_t kind)
{
	struct wh_memory_options options = { .size = sizeof(options), .kind = kind };
	struct wh_region_options named = {
		.size = sizeof(named), .name = "target", .grants = grants, .grant_count = 3
	};

	owner->engine = engine_open(NULL, NULL, NULL);
	owner->kind = kind;
	if (kind == CHILD_FOREIGN)
		owner->memory = pages_new(LENGTH);
	else
		want(0, wh_memory_alloc(owner->engine, LENGTH, &options, &owner->memory));
	want(0, wh_region_register(owner->engine, owner->memory, LENGTH, &named, &owner->region));
}

static void owner_close(struct owner *owner)
{
	want(0, wh_region_unregister(owner->region));
	if (owner->kind == CHILD_FOREIGN)
		pages_free(owner->memory, LENGTH);
	else
		want(0, wh_memory_free(owner->engine, owner->memory));
	want(0, wh_engine_close(owner->engine));
}

struct initiator {
	struct child *child;
	struct child_transfer transfer;
	struct child_result result;
	int memory;
};

static void initiator_open(struct initiator *i, const struct owner *owner, const char *name,
			   const char *require)
{
	struct child_options options = { .name = name, .config = { "cma=0" } };
	char text[256];

	memset(i, 0, sizeof(*i));
	i->child = child_start(&options);
	i->memory = child_memory(i->child, CHILD_FOREIGN, LENGTH);
	child_fill(i->child, i->memory, 0, LENGTH, 0, 5);
	i->transfer.peer = child_peer(i->child, wh_engine_url(owner->engine), text);
	want_true(i->transfer.peer >= 0, "it cannot connect: %s", text);
	i->transfer.region = child_region(i->child, i->memory, 0, LENGTH, NULL, 0, NULL);
	i->transfer.remote = "target";
	i->transfer.length = LENGTH;
	i->transfer.require = require;
}

static int initiator_try(struct initiator *i, uint32_t op)
{
	i->transfer.op = op;
	return child_transfer(i->child, &i->transfer, &i->result);
}

static void want_memory(const struct owner *owner, uint64_t seed)
{
	size_t bad;

	hidden_begin();
	bad = pattern_check(owner->memory, LENGTH, 0, seed);
	hidden_end();
	want_true(bad == PATTERN_GOOD, "byte %zu is wrong", bad);
}

/* By tcp, or by a mapping if the peer has all rights on the region. */
static void each_its_own(uint32_t kind, const char *alice_goes)
{
	struct initiator alice, bob, dave;
	struct owner owner;

	owner_open(&owner, kind);
	initiator_open(&alice, &owner, "alice", NULL);
	initiator_open(&bob, &owner, "bob", NULL);
	initiator_open(&dave, &owner, "dave", NULL);
	want_true(initiator_try(&alice, WH_WRITE) == 0, "%s", alice.result.text);
	assert_string_equal(alice.result.transport, alice_goes);
	want_memory(&owner, 5);
	want(-EACCES, initiator_try(&bob, WH_WRITE));
	want_true(strstr(bob.result.text, "may not be written"), "it says: %s", bob.result.text);
	child_fill(bob.child, bob.memory, 0, LENGTH, 0, 6);
	want_true(initiator_try(&bob, WH_READ) == 0, "%s", bob.result.text);
	assert_string_equal(bob.result.transport, "tcp");
	want_true(child_check(bob.child, bob.memory, 0, LENGTH, 0, 5) == PATTERN_GOOD,
		  "other bytes");
	if (kind == WH_MEMORY_SHARED)
		want_true(strstr(bob.result.explain, "other peers have more rights"), "it says: %s",
			  bob.result.explain);
	want(-EACCES, initiator_try(&dave, WH_READ));
	child_fill(dave.child, dave.memory, 0, LENGTH, 0, 7);
	want_true(initiator_try(&dave, WH_WRITE) == 0, "%s", dave.result.text);
	assert_string_equal(dave.result.transport, "tcp");
	want_memory(&owner, 7);
	child_exit(alice.child);
	child_exit(bob.child);
	child_exit(dave.child);
	owner_close(&owner);
}

static void rights__tcp(void **state)
{
	(void)state;
	each_its_own(CHILD_FOREIGN, "tcp");
}

static void rights__memfd(void **state)
{
	(void)state;
	each_its_own(WH_MEMORY_SHARED, "shm");
}

/* ---- an initiator that ignores its rights ------------------------------ */

static int32_t ask(const char *name, const struct owner *owner, int published, uint8_t op)
{
	static unsigned char bytes[4096];
	struct wh_extent extent = { wh_region_id(owner->region), 0, sizeof(bytes) };
	struct wh_hello hello = raw_hello(WH_ROLE_CONTROL), welcome;
	struct raw_error error = { 0, 0 };
	struct wh_response response;
	int control = raw_connect(wh_engine_url(owner->engine)), data;

	strcpy(hello.name, name);
	want(0, raw_greet(control, &hello, &welcome));
	want(published, raw_lookup(control, extent.region));
	data = raw_data(wh_engine_url(owner->engine), &welcome);
	want_true(data >= 0, "no data connection");
	want(0, raw_request(data, op, 1, &extent, 1, op == WH_WRITE ? bytes : NULL, sizeof(bytes)));
	want(0, raw_response(data, &response, &error, 1, bytes, sizeof(bytes)));
	close(data);
	close(control);
	return error.error;
}

static void rights__checked_by_the_owner(void **state)
{
	struct owner owner;

	(void)state;
	owner_open(&owner, CHILD_FOREIGN);
	hidden_begin();
	pattern_fill(owner.memory, LENGTH, 0, 9);
	hidden_end();
	want(0, ask("bob", &owner, 1, WH_READ));
	want(EACCES, ask("bob", &owner, 1, WH_WRITE));
	want(EACCES, ask("dave", &owner, 1, WH_READ));
	want(EACCES, ask("carol", &owner, 0, WH_READ));
	want(EACCES, ask("carol", &owner, 0, WH_WRITE));
	want_memory(&owner, 9);
	want(0, ask("alice", &owner, 1, WH_WRITE));
	owner_close(&owner);
}

/* An engine of this process with that name, and its peer. */
struct looker {
	struct wh_engine *engine;
	struct wh_peer *peer;
};

static void looker_open(struct looker *looker, const struct owner *owner, const char *name)
{
	struct wh_engine_options options = { .size = sizeof(options), .name = name };

	want(0, wh_engine_open(&options, &looker->engine));
	want(0, wh_peer_open(looker->engine, wh_engine_url(owner->engine), NULL, &looker->peer));
}

static void looker_close(struct looker *looker)
{
	want(0, wh_peer_close(looker->peer));
	want(0, wh_engine_close(looker->engine));
}

/* An imported key gives a peer its own rights on the region; a peer without any gets -ENOENT. */
static void rights__exported_key(void **state)
{
	unsigned char key[WH_KEY_MAX];
	size_t length = sizeof(key);
	struct wh_remote remote;
	struct looker looker;
	struct owner owner;

	(void)state;
	owner_open(&owner, CHILD_FOREIGN);
	want(0, wh_region_pack_key(owner.region, key, &length));
	looker_open(&looker, &owner, "bob");
	want(0, wh_peer_unpack_key(looker.peer, key, length, WH_ANSWER, &remote));
	want(WH_ACCESS_READ, remote.access);
	looker_close(&looker);
	looker_open(&looker, &owner, "carol");
	want(-ENOENT, wh_peer_unpack_key(looker.peer, key, length, WH_ANSWER, &remote));
	want(-ENOENT, wh_peer_find(looker.peer, "target", WH_ANSWER, &remote));
	looker_close(&looker);
	owner_close(&owner);
}

/* Changes during connections are announced only to the peers that they concern. Unregistering does
 * not wait for a peer that was never told of the region. */
static void rights__come_and_go(void **state)
{
	struct wh_region_options named = {
		.size = sizeof(named), .name = "target", .grants = grants, .grant_count = 3
	};
	struct wh_region_options open = { .size = sizeof(open), .access = ACCESS_BOTH };
	struct looker bob, carol;
	struct wh_remote remote;
	struct owner owner;

	(void)state;
	owner_open(&owner, WH_MEMORY_SHARED);
	looker_open(&bob, &owner, "bob");
	looker_open(&carol, &owner, "carol");
	for (int i = 0; i < 3; i++) {
		char last[8];
		struct wh_region *region;

		want(0, wh_region_unregister(owner.region));
		want(0,
		     wh_region_register(owner.engine, owner.memory, LENGTH, &named, &owner.region));
		/* A region visible to all has arrived after it, so it would have arrived, too. */
		snprintf(last, sizeof(last), "last%d", i);
		open.name = last;
		want(0, wh_region_register(owner.engine, owner.memory, LENGTH, &open, &region));
		want(0, wh_peer_find(carol.peer, last, PATIENCE, &remote));
		want(-ENOENT, wh_peer_find(carol.peer, "target", WH_ANSWER, &remote));
		want(0, wh_peer_find(bob.peer, last, PATIENCE, &remote));
		want(0, wh_peer_find(bob.peer, "target", WH_ANSWER, &remote));
		want(1, remote.id == wh_region_id(owner.region));
		want(WH_ACCESS_READ, remote.access);
		want(0, wh_region_unregister(region));
	}
	looker_close(&bob);
	looker_close(&carol);
	owner_close(&owner);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(rights__tcp),
		TEST(rights__memfd),
		TEST(rights__checked_by_the_owner),
		TEST(rights__exported_key),
		TEST(rights__come_and_go),
	};

	return harness_main(argc, argv, "peer-rights", tests, sizeof(tests) / sizeof(*tests));
}
