/* SPDX-License-Identifier: Apache-2.0 */
/* Directed worlds of connections: opening, losing and closing them, and what waits for them. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "scene.h"

#define LOOPS 8 /* more than an engine has in the world */
#define LATE (400 * SIM_MS) /* less than the owner waits for the end of a handshake */

static void check_target(const struct scene *scene, uint8_t byte, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (scene->target->memory[PROGRAM_GAP + i] != byte)
			sim_fail("bytes", "byte %zu of the target is %02x, should be %02x", i,
				 scene->target->memory[PROGRAM_GAP + i], byte);
}

/* ---- a connection whose handshake is late ---------------------------------------------------- */

/* What follows WELCOME on the first data connection comes late. */
static int64_t delay_prove(const struct sim_packet *packet, void *arg)
{
	bool *welcomed = arg;

	if (packet->from_host != (packet->from_initiator ? 0 : SCENE_OWNER) ||
	    packet->connection != SCENE_DATA)
		return 0;
	if (!packet->from_initiator)
		*welcomed = true;
	return packet->from_initiator && *welcomed ? LATE : 0;
}

/* The initiator counts the connection as open and sends a write behind PROVE, which is late. It
 * cancels, writes something newer, and that stays. */
static void act_cancel_in_handshake(struct scene *scene)
{
	struct wh_batch *first, *second;
	bool welcomed = false;

	sim_network_watch(delay_prove, &welcomed);
	memset(scene->local, 'A', SCENE_LOCAL);
	first = scene_write(scene, 64);
	scene_expect("submit", wh_batch_submit(first), 0);
	scene_pass(scene, 100 * SIM_MS);
	if (!welcomed)
		sim_fail("directed", "no data connection was opened");
	scene_expect("cancel", wh_batch_cancel(first), 0);
	memset(scene->local, 'B', SCENE_LOCAL);
	second = scene_write(scene, 64);
	scene_expect("submit", wh_batch_submit(second), 0);
	scene_expect("the newer write", scene_end(second, 20 * SIM_SEC), 0);
	check_target(scene, 'B', 64);
	scene_pass(scene, 3 * LATE);
	check_target(scene, 'B', 64);
	wh_batch_free(first);
	wh_batch_free(second);
}

static void world_cancel_in_handshake(void)
{
	scene_play(act_cancel_in_handshake);
}

/* ---- a peer that is lost while a batch runs -------------------------------------------------- */

static int64_t delay_data(const struct sim_packet *packet, void *arg)
{
	(void)arg;
	return packet->connection >= SCENE_DATA && packet->from_initiator ? 30 * SIM_SEC : 0;
}

/* Write once, so that all is connected, and begin to write something newer, whose packets `delay`
 * holds up. */
static struct wh_batch *begin_late_write(struct scene *scene,
					 int64_t (*delay)(const struct sim_packet *, void *))
{
	struct wh_batch *batch = scene_write(scene, 64);

	memset(scene->local, 'A', SCENE_LOCAL);
	scene_expect("submit", wh_batch_submit(batch), 0);
	scene_expect("the first write", scene_end(batch, SIM_SEC), 0);
	sim_network_watch(delay, NULL);
	memset(scene->local, 'B', SCENE_LOCAL);
	scene_expect("submit", wh_batch_submit(batch), 0);
	return batch;
}

/* The bytes of a write are on their way when the peer is lost: whatever the status of the batch is,
 * a cancel must not promise that they do not arrive. */
static void act_cancel_of_lost(struct scene *scene)
{
	struct wh_batch *batch = begin_late_write(scene, delay_data);
	int status;

	sim_network_cut(0, SCENE_OWNER, 60 * SIM_SEC);
	sim_network_cut(SCENE_OWNER, 0, 60 * SIM_SEC);
	status = scene_end(batch, 20 * SIM_SEC);
	if (!status)
		sim_fail("directed", "a write succeeded over a network that is cut");
	scene_expect("cancel after the peer was lost", wh_batch_cancel(batch), -ETIMEDOUT);
	sim_network_heal();
	wh_batch_free(batch);
}

static void world_cancel_of_lost(void)
{
	scene_play(act_cancel_of_lost);
}

/* ---- a data connection that cannot be opened for a while ------------------------------------- */

static int64_t delay_all_data(const struct sim_packet *packet, void *arg)
{
	(void)arg;
	return packet->connection >= SCENE_DATA ? LATE : 0;
}

/* It breaks with requests outstanding; the next try fails in connect(), the one after that breaks
 * before WELCOME. */
static void act_reopen(struct scene *scene)
{
	struct wh_batch *batch = begin_late_write(scene, delay_all_data);
	uint64_t tries;

	scene_pass(scene, 10 * SIM_MS);
	tries = sim_counts.connects;
	sim_options.connect_fails = 1000;
	sim_network_reset(0, SCENE_OWNER, SCENE_DATA);
	for (int i = 0; sim_counts.connects == tries && i < 10000; i++)
		scene_pass(scene, SIM_MS);
	sim_options.connect_fails = 0;
	/* Each try gets as far as HELLO; WELCOME is late. */
	for (int i = 0; sim_counts.connects < tries + 2 && i < 10000; i++)
		scene_pass(scene, SIM_MS);
	scene_pass(scene, 10 * SIM_MS);
	sim_network_reset(0, SCENE_OWNER, SCENE_DATA + 1);
	sim_network_watch(NULL, NULL);
	/* Soon: opening it has 20 s, and nobody waits for these to pass. */
	scene_expect("a write whose connection was opened again", scene_end(batch, 2 * SIM_SEC), 0);
	check_target(scene, 'B', 64);
	wh_batch_free(batch);
}

static void world_reopen(void)
{
	sim_options.timeout_ms = 20000;
	scene_play(act_reopen);
}

/* ---- an idle connection that is being closed ------------------------------------------------- */

/* Loop 0 finds the connection idle and breaks it. The loop that has it is late, so a large write is
 * submitted before it has seen that. The connections of a second peer are on another loop than 0.
 */
static void act_idle_close(struct scene *scene)
{
	struct wh_peer *first = scene->peer;
	struct wh_batch *batch;
	char name[32];

	scene->peer = scene_open(scene);
	batch = scene_write(scene, SCENE_LOCAL);
	for (int round = 0; round < 8; round++) {
		scene_expect("submit", wh_batch_submit(batch), 0);
		scene_expect("a write", scene_end(batch, 10 * SIM_SEC), 0);
		for (int loop = 1; loop < LOOPS; loop++) {
			snprintf(name, sizeof(name), "/%d", loop);
			sim_thread_hold(scene->initiator->node, name, 100 * SIM_MS);
		}
		scene_pass(scene, (40 + 5 * round) * SIM_MS);
	}
	wh_batch_free(batch);
	scene_expect("wh_peer_close", wh_peer_close(scene->peer), 0);
	scene->peer = first;
}

static void world_idle_close(void)
{
	sim_options.idle_ms = 10;
	scene_play(act_idle_close);
}

/* ---- waiting without threads ----------------------------------------------------------------- */

static void on_completion(struct wh_batch *batch, int status, void *arg)
{
	(void)batch;
	(void)status;
	++*(int *)arg;
}

/* The answer to a question comes later than the end of the write. */
static int64_t delay_answers(const struct sim_packet *packet, void *arg)
{
	(void)arg;
	return packet->connection < SCENE_DATA && !packet->from_initiator ? 4 * LATE :
	       packet->connection >= SCENE_DATA                           ? LATE / 4 :
									    0;
}

/* A callback is due while the program waits in calls of other kinds: none of them spins. */
static void act_waits(struct scene *scene)
{
	struct wh_batch_options options = { .size = sizeof(options), .callback = on_completion };
	struct wh_transfer transfer = { .local = scene->region,
					.remote = scene->target->remote,
					.remote_offset = PROGRAM_GAP,
					.length = 64,
					.op = WH_WRITE };
	struct wh_remote remote;
	struct wh_batch *batch;
	struct wh_peer *other;
	int calls = 0;

	options.callback_arg = &calls;
	scene_expect("wh_batch_new", wh_batch_new(scene->peer, &options, &batch), 0);
	scene_expect("wh_batch_add", wh_batch_add(batch, &transfer, 1), 0);
	sim_network_watch(delay_answers, NULL);
	scene_expect("submit", wh_batch_submit(batch), 0);
	/* It completes, and its callback is due, in the middle of these waits. */
	scene_expect("wh_peer_find", wh_peer_find(scene->peer, "nobody", 20 * SIM_SEC, &remote),
		     -ENOENT);
	scene_expect("wh_peer_open",
		     wh_peer_open(scene->initiator->engine, "wherry://10.0.0.8:1", NULL, &other),
		     -EHOSTUNREACH);
	scene_expect("the write", scene_end(batch, 20 * SIM_SEC), 0);
	scene_pass(scene, SIM_SEC);
	scene_expect("callbacks", calls, 1);
	wh_batch_free(batch);
	if (sim_counts.spins)
		sim_fail("spin", "a call that waits polls again and again");
}

static void world_waits(void)
{
	sim_options.threads = 0;
	sim_options.timeout_ms = 20000;
	scene_play(act_waits);
}

/* ---- a peer that is closed while queue pairs are being tried --------------------------------- */

#define NICS 4
#define PAIR_OBJECTS 3 /* queue pair, completion queue, channel */

/* Once the first queue pair is gone, loop 0 is late to take down the others: their probes fail
 * meanwhile. */
static void *hold_closing(void *arg)
{
	const struct scene *scene = arg;
	int node = scene->initiator->node, open = sim_nic_objects(node);

	while (sim_nic_objects(node) >= open)
		sim_sleep(200);
	sim_thread_hold(node, "/0", 5 * SIM_SEC);
	return NULL;
}

/* All NICs of the owner lose packets, so queue pairs connect and fail in turn. */
static void act_close_probing(struct scene *scene)
{
	struct wh_batch *batch = scene_write(scene, 64);
	int node = scene->initiator->node, idle;

	for (int i = 0; i < NICS; i++)
		sim_nic_black(SCENE_OWNER, i, 60 * SIM_SEC);
	scene_expect("submit", wh_batch_submit(batch), 0);
	scene_expect("a write", scene_end(batch, 20 * SIM_SEC), 0);
	wh_batch_free(batch);
	idle = sim_nic_objects(node);
	for (int i = 0; sim_nic_objects(node) < idle + NICS * PAIR_OBJECTS; i++) {
		if (i == 10000)
			sim_fail("directed", "no queue pair is tried again");
		idle = sim_nic_objects(node) < idle ? sim_nic_objects(node) : idle;
		scene_pass(scene, SIM_MS);
	}
	scene_pass(scene, 5 * SIM_MS);
	sim_spawn(-1, "hold", hold_closing, scene);
	scene_expect("wh_peer_close", wh_peer_close(scene->peer), 0);
	scene->peer = scene_open(scene);
}

static void world_close_probing(void)
{
	sim_options.rdma = NICS;
	scene_play(act_close_probing);
}

/* ---- times that engines are told --------------------------------------------------------------
 */

/* A peer is opened for as long as the engine is told to wait for peers. */
static void act_patient_open(struct scene *scene)
{
	struct wh_peer *other;

	sim_network_cut(0, SCENE_OWNER, 12 * SIM_SEC);
	sim_network_cut(SCENE_OWNER, 0, 12 * SIM_SEC);
	other = scene_open(scene);
	scene_expect("wh_peer_close", wh_peer_close(other), 0);
}

static void world_patient_open(void)
{
	sim_options.timeout_ms = 20000;
	scene_play(act_patient_open);
}

/* The owner ends a session that is silent for 10 s; the initiator would wait for a minute. */
static void act_unequal_timeouts(struct scene *scene)
{
	scene_pass(scene, 40 * SIM_SEC);
	scene_expect_never_lost(scene);
}

static void world_unequal_timeouts(void)
{
	sim_options.timeout_ms = 60000;
	scene_owner_timeout = 200;
	scene_play(act_unequal_timeouts);
}

/* ---- priority -------------------------------------------------------------------------------- */

static struct wh_batch *write_urgent(struct scene *scene)
{
	struct wh_batch_options options = { .size = sizeof(options),
					    .priority = WH_PRIORITY_LATENCY };
	struct wh_transfer transfer = { .local = scene->region,
					.remote = scene->target->remote,
					.remote_offset = PROGRAM_GAP + SCENE_LOCAL + PROGRAM_GAP,
					.length = 64,
					.op = WH_WRITE };
	struct wh_batch *batch;

	scene_expect("wh_batch_new", wh_batch_new(scene->peer, &options, &batch), 0);
	scene_expect("wh_batch_add", wh_batch_add(batch, &transfer, 1), 0);
	return batch;
}

/* Bulk batches fill a slow network; a batch of latency priority that is submitted behind them ends
 * before they do, once its connection is open. */
static void act_urgent(struct scene *scene)
{
	struct wh_batch *bulk = scene_write(scene, SCENE_LOCAL), *urgent = write_urgent(scene);

	scene->target->block[1].tainted = true;
	for (int round = 0; round < 3; round++) {
		scene_expect("submit", wh_batch_submit(bulk), 0);
		scene_pass(scene, round * 3 * SIM_MS);
		scene_expect("submit", wh_batch_submit(urgent), 0);
		scene_expect("the urgent write", scene_end(urgent, 10 * SIM_SEC), 0);
		if (round && wh_batch_status(bulk) != -EINPROGRESS)
			sim_fail("directed", "an urgent batch waited behind a bulk one");
		scene_expect("the bulk write", scene_end(bulk, 10 * SIM_SEC), 0);
	}
	wh_batch_free(bulk);
	wh_batch_free(urgent);
}

static void world_urgent(void)
{
	sim_options.mbit = 10;
	sim_options.sndbuf = sim_options.rcvbuf = 65536;
	scene_play(act_urgent);
}

/* ---- an owner that has no descriptors -------------------------------------------------------- */

static void expect_text(const char *what, const char *text, const char *part)
{
	if (!strstr(text, part))
		sim_fail("directed", "%s does not say '%s', but '%s'", what, part, text);
}

static void expect_explained(struct wh_batch *batch, const char *part)
{
	char text[2048];

	if (wh_batch_explain(batch, text, sizeof(text)) < 0)
		sim_fail("directed", "wh_batch_explain: %s", wh_error_text());
	expect_text("the explanation", text, part);
}

/* The kernel connects what the owner cannot accept. A batch ends after the time that a peer has,
 * and says why; so does a preparation. With descriptors all is well. */
static void act_unserved(struct scene *scene)
{
	int64_t timeout = sim_options.timeout_ms * SIM_MS, start;
	struct wh_batch *batch = scene_write(scene, 64);

	sim_node_no_descriptors(scene->owner->node, 3600 * SIM_SEC);
	start = sim_time;
	scene_expect("submit", wh_batch_submit(batch), 0);
	scene_pass(scene, timeout / 2);
	scene_expect("a write to who is out of descriptors", wh_batch_status(batch), -EINPROGRESS);
	expect_explained(batch, "no connection is served");
	scene_expect("a write to who is out of descriptors", scene_end(batch, timeout),
		     -EHOSTUNREACH);
	if (sim_time - start > timeout + SIM_SEC)
		sim_fail("bound", "it took %lld ms", (long long)((sim_time - start) / SIM_MS));
	expect_text("the batch", wh_batch_error_text(batch), "out of descriptors?");
	expect_explained(batch, "no connection is served");
	start = sim_time;
	scene_expect("wh_peer_prepare",
		     wh_peer_prepare(scene->peer, &scene->region, 1, &scene->target->remote, 1,
				     10 * timeout),
		     -EHOSTUNREACH);
	if (sim_time - start > timeout + SIM_SEC)
		sim_fail("bound", "it took %lld ms", (long long)((sim_time - start) / SIM_MS));
	expect_text("wh_peer_prepare", wh_error_text(), "out of descriptors?");
	scene_expect("the peer", wh_peer_status(scene->peer), 0);
	sim_heal();
	scene_expect("submit", wh_batch_submit(batch), 0);
	scene_expect("a write", scene_end(batch, timeout), 0);
	wh_batch_free(batch);
}

static void world_unserved(void)
{
	sim_options.timeout_ms = 4000;
	scene_play(act_unserved);
}

/* A connection is open when the owner runs out of descriptors. What has chosen others, because that
 * one had work, goes by it when they are given up, without a failure. */
static void act_half_served(struct scene *scene)
{
	int64_t timeout = sim_options.timeout_ms * SIM_MS;
	struct wh_batch *batches[4];

	batches[0] = scene_write(scene, 64);
	scene_expect("submit", wh_batch_submit(batches[0]), 0);
	scene_expect("a write", scene_end(batches[0], timeout), 0);
	sim_node_no_descriptors(scene->owner->node, 3600 * SIM_SEC);
	for (int i = 0; i < 4; i++) {
		if (i)
			batches[i] = scene_write(scene, 64);
		scene_expect("submit", wh_batch_submit(batches[i]), 0);
	}
	scene_expect("the first write", scene_end(batches[0], timeout / 2), 0);
	scene_expect("one that waits for another connection", wh_batch_status(batches[1]),
		     -EINPROGRESS);
	for (int i = 1; i < 4; i++)
		scene_expect("one that has waited", scene_end(batches[i], timeout + SIM_SEC), 0);
	for (int i = 0; i < 4; i++)
		wh_batch_free(batches[i]);
	sim_heal();
}

static void world_half_served(void)
{
	sim_options.timeout_ms = 4000;
	sim_options.connections = 4;
	scene_play(act_half_served);
}

/* ---- an initiator that is short of memory ---------------------------------------------------- */

#define ALLOCATIONS 60 /* more than a batch takes over a new peer */
#define MOVES 2 /* of each of them another connection has the least work */

static struct wh_batch *move_both_ways(const struct scene *scene, struct wh_peer *peer,
				       size_t count)
{
	struct wh_transfer transfers[MOVES];
	struct wh_batch *batch;

	for (size_t i = 0; i < count; i++)
		transfers[i] = (struct wh_transfer){ .local = scene->region,
						     .local_offset = i * 64,
						     .remote = scene->target->remote,
						     .remote_offset = PROGRAM_GAP,
						     .length = 64,
						     .op = i % 2 ? WH_READ : WH_WRITE };
	scene_expect("wh_batch_new", wh_batch_new(peer, NULL, &batch), 0);
	scene_expect("wh_batch_add", wh_batch_add(batch, transfers, count), 0);
	return batch;
}

/* Each allocation fails once. If there is none for a connection, a part of the batch fails before
 * the others are sent; who waits sees its end when the others have ended. */
static void act_short_initiator(struct scene *scene)
{
	for (int i = 1; i < ALLOCATIONS; i++) {
		struct wh_peer *peer = scene_open(scene);
		struct wh_batch *first = move_both_ways(scene, peer, 1);
		struct wh_batch *batch = move_both_ways(scene, peer, MOVES);
		int64_t start = sim_time;

		scene_expect("submit", wh_batch_submit(first), 0);
		scene_expect("a write", scene_end(first, SIM_SEC), 0);
		sim_node_fail_allocation(scene->initiator->node, (uint64_t)i);
		if (!wh_batch_submit(batch))
			scene_end(batch, 20 * SIM_SEC);
		sim_node_fail_allocation(scene->initiator->node, 0);
		if (sim_time - start > 10 * SIM_SEC)
			sim_fail("wake", "a waiter is told of the end after %lld ms",
				 (long long)((sim_time - start) / SIM_MS));
		wh_batch_free(first);
		wh_batch_free(batch);
		scene_expect("wh_peer_close", wh_peer_close(peer), 0);
	}
}

static void world_short_initiator(void)
{
	sim_options.connections = MOVES;
	scene_play(act_short_initiator);
}

/* ---- a batch that waits for its plan --------------------------------------------------------- */

#define PIECES 64 /* transfers, each of which is a fragment of its own */
#define PIECE 64 /* bytes */

/* Transfers of two local regions in turn. */
static struct wh_batch *write_pieces(struct scene *scene, struct wh_region *other)
{
	struct wh_transfer transfers[PIECES];
	struct wh_batch *batch;

	for (size_t i = 0; i < PIECES; i++)
		transfers[i] = (struct wh_transfer){ .local = i % 2 ? other : scene->region,
						     .local_offset = i * PIECE,
						     .remote = scene->target->remote,
						     .remote_offset = PROGRAM_GAP + i * PIECE,
						     .length = PIECE,
						     .op = WH_WRITE };
	scene_expect("wh_batch_new", wh_batch_new(scene->peer, NULL, &batch), 0);
	scene_expect("wh_batch_add", wh_batch_add(batch, transfers, PIECES), 0);
	return batch;
}

/* The owner is asked for a region, and the batch is planned by another thread. Until a byte can
 * have moved, none is said to have. */
static void act_unplanned(struct scene *scene)
{
	static uint8_t memory[PIECES * PIECE];
	struct wh_region *other;
	struct wh_batch *batch;
	uint64_t bytes;

	scene_expect(
		"wh_region_register",
		wh_region_register(scene->initiator->engine, memory, sizeof(memory), NULL, &other),
		0);
	batch = write_pieces(scene, other);
	sim_network_watch(delay_all_data, NULL);
	scene_expect("submit", wh_batch_submit(batch), 0);
	for (int64_t end = sim_time + 20 * SIM_MS; sim_time < end;) {
		scene_expect("wh_batch_progress", wh_batch_progress(batch, &bytes), 0);
		scene_expect("bytes that have moved", (int)bytes, 0);
		sim_sleep(500);
	}
	sim_network_watch(NULL, NULL);
	scene_expect("the write", scene_end(batch, 20 * SIM_SEC), 0);
	scene_expect("wh_batch_progress", wh_batch_progress(batch, &bytes), 0);
	scene_expect("bytes that have moved", (int)bytes, PIECES * PIECE);
	wh_batch_free(batch);
	scene_expect("wh_region_unregister", wh_region_unregister(other), 0);
}

static void world_unplanned(void)
{
	sim_options.preempt = 300;
	sim_options.timeout_ms = 20000;
	scene_play(act_unplanned);
}

const struct world worlds_connection[] = {
	{ "cancel-in-handshake", "a write behind a late PROVE is cancelled",
	  world_cancel_in_handshake },
	{ "cancel-of-lost", "a peer is lost while a write is on its way", world_cancel_of_lost },
	{ "reopen", "a data connection fails in two ways in a row", world_reopen },
	{ "idle-close", "writes meet the end of an idle connection", world_idle_close },
	{ "waits", "calls wait without threads while a callback is due", world_waits },
	{ "close-probing", "a peer is closed while queue pairs are tried", world_close_probing },
	{ "patient-open", "a peer is opened whose network is cut for 12 s", world_patient_open },
	{ "unequal-timeouts", "an owner waits 10 s, its initiator a minute",
	  world_unequal_timeouts },
	{ "urgent", "a batch of latency priority is submitted behind a bulk one", world_urgent },
	{ "unserved", "an owner is out of descriptors, and accepts nothing", world_unserved },
	{ "half-served", "the same, when one of its connections is open", world_half_served },
	{ "short-initiator", "each allocation fails once while a batch is submitted",
	  world_short_initiator },
	{ "unplanned", "a batch is looked at while it is planned", world_unplanned },
	{ NULL, NULL, NULL },
};
