/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds that are told what happens in them: for what chance rarely hits. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "scene.h"
#include "weights/run/message.h"

#define LOOPS 8 /* more than an engine has in the world */
#define DATA 1 /* the first data connection; the one before is the control connection */
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
	    packet->connection != DATA)
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
	return packet->connection >= DATA && packet->from_initiator ? 30 * SIM_SEC : 0;
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
	return packet->connection >= DATA ? LATE : 0;
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
	sim_network_reset(0, SCENE_OWNER, DATA);
	for (int i = 0; sim_counts.connects == tries && i < 10000; i++)
		scene_pass(scene, SIM_MS);
	sim_options.connect_fails = 0;
	/* Each try gets as far as HELLO; WELCOME is late. */
	for (int i = 0; sim_counts.connects < tries + 2 && i < 10000; i++)
		scene_pass(scene, SIM_MS);
	scene_pass(scene, 10 * SIM_MS);
	sim_network_reset(0, SCENE_OWNER, DATA + 1);
	sim_network_watch(NULL, NULL);
	scene_expect("a write whose connection was opened again", scene_end(batch, 20 * SIM_SEC),
		     0);
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
	return packet->connection < DATA && !packet->from_initiator ? 4 * LATE :
	       packet->connection >= DATA                           ? LATE / 4 :
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

/* ---- files of the owner ---------------------------------------------------------------------- */

#define PATH "/sim/file"

/* Two regions of the owner, and a thread there that has them. */
struct store {
	const struct scene *scene;
	uint8_t memory[64], *file;
	uint64_t remote[2]; /* of the memory, of the file */
	bool withdraw, withdrawn, leave, left;
};

static void *store_main(void *arg)
{
	const struct wh_region_options options = { .size = sizeof(options),
						   .access = WH_ACCESS_READ | WH_ACCESS_WRITE };
	const struct wh_file_options file = { .size = sizeof(file),
					      .flags = WH_FILE_WRITE,
					      .region = &options };
	struct store *store = arg;
	struct wh_engine *engine = store->scene->owner->engine;
	struct wh_region *regions[2];

	store->file = sim_file_new(SCENE_OWNER, PATH, SCENE_LOCAL);
	scene_expect("wh_region_register",
		     wh_region_register(engine, store->memory, sizeof(store->memory), &options,
					&regions[0]),
		     0);
	scene_expect("wh_file_register", wh_file_register(engine, PATH, &file, &regions[1]), 0);
	store->remote[0] = wh_region_id(regions[0]);
	store->remote[1] = wh_region_id(regions[1]);
	while (!store->withdraw)
		sim_sleep(SIM_MS);
	scene_expect("wh_region_unregister of memory", wh_region_unregister(regions[0]), 0);
	store->withdrawn = true;
	while (!store->leave)
		sim_sleep(SIM_MS);
	scene_expect("wh_region_unregister of a file", wh_region_unregister(regions[1]), 0);
	store->left = true;
	return NULL;
}

static void store_open(struct store *store, struct scene *scene)
{
	store->scene = scene;
	sim_spawn(scene->owner->node, "store", store_main, store);
	while (!store->remote[1])
		scene_pass(scene, SIM_MS);
}

static void store_withdraw(struct store *store, struct scene *scene)
{
	store->withdraw = true;
	while (!store->withdrawn)
		scene_pass(scene, SIM_MS);
}

static void store_close(struct store *store, struct scene *scene)
{
	store->leave = true;
	while (!store->left)
		scene_pass(scene, SIM_MS);
}

/* ---- an owner that is short of memory -------------------------------------------------------- */

#define ALLOCATIONS 60 /* more than a write to a file takes */
#define WRITTEN 20000 /* bytes: several requests */

/* Bytes of a write are old or new at any time: here never those of another offset. */
static void *watch_file(void *arg)
{
	const struct store *store = arg;
	const uint8_t *local = store->scene->local;

	while (!store->leave) {
		for (size_t i = 0; i < WRITTEN; i++)
			if (store->file[i] && store->file[i] != local[i])
				sim_fail("bytes", "byte %zu of a file is neither old nor new", i);
		sim_sleep(100000);
	}
	return NULL;
}

/* Each allocation of the owner fails once. */
static void act_short_owner(struct scene *scene)
{
	struct wh_transfer transfer = { .local = scene->region, .length = WRITTEN, .op = WH_WRITE };
	struct store store = { .scene = NULL };
	struct wh_batch *batch;

	pattern_fill(scene->local, 1, WRITTEN);
	store_open(&store, scene);
	sim_spawn(-1, "watch", watch_file, &store);
	transfer.remote = store.remote[1];
	scene_expect("wh_batch_new", wh_batch_new(scene->peer, NULL, &batch), 0);
	scene_expect("wh_batch_add", wh_batch_add(batch, &transfer, 1), 0);
	for (int i = 1; i < ALLOCATIONS; i++) {
		memset(store.file, 0, WRITTEN);
		while (wh_peer_status(scene->peer))
			scene_pass(scene, SIM_MS);
		sim_node_fail_allocation(scene->owner->node, (uint64_t)i);
		if (!wh_batch_submit(batch))
			scene_end(batch, 60 * SIM_SEC);
	}
	sim_heal();
	wh_batch_free(batch);
	store_withdraw(&store, scene);
	store_close(&store, scene);
}

static void world_short_owner(void)
{
	sim_options.slice = 4096;
	sim_options.segment = 1460;
	scene_play(act_short_owner);
}

/* ---- an initiator of files that is short of memory ------------------------------------------- */

#define FILES 8 /* on both disks */
#define FIRST_BATCH 80 /* more allocations than the first batch of files takes */

/* The first batch of an engine, of files of several file systems, while its nth allocation fails:
 * it ends. */
static void copy_files_short(struct scene *scene, uint64_t nth)
{
	struct program_settings settings = { 0 };
	const struct wh_engine_options options = { .size = sizeof(options),
						   .listen = "none",
						   .config = settings.rows };
	const struct wh_file_options file = { .size = sizeof(file) };
	struct wh_transfer transfers[FILES];
	struct wh_region *regions[FILES];
	struct wh_engine *engine;
	struct wh_batch *batch;
	struct wh_peer *peer;
	char path[32], url[64];

	program_settings(&settings);
	program_url(SCENE_OWNER, url, sizeof(url));
	scene_expect("wh_engine_open", wh_engine_open(&options, &engine), 0);
	scene_expect("wh_peer_open", wh_peer_open(engine, url, NULL, &peer), 0);
	for (size_t i = 0; i < FILES; i++) {
		snprintf(path, sizeof(path), "/sim/%zu", i);
		scene_expect("wh_file_register", wh_file_register(engine, path, &file, &regions[i]),
			     0);
		transfers[i] = (struct wh_transfer){ .local = regions[i],
						     .remote = scene->target->remote,
						     .remote_offset = PROGRAM_GAP + 64 * i,
						     .length = 64,
						     .op = WH_WRITE };
	}
	scene_expect("wh_batch_new", wh_batch_new(peer, NULL, &batch), 0);
	scene_expect("wh_batch_add", wh_batch_add(batch, transfers, FILES), 0);
	sim_node_fail_allocation(scene->initiator->node, nth);
	if (!wh_batch_submit(batch))
		scene_end(batch, 60 * SIM_SEC);
	sim_heal();
	scene_expect("wh_batch_free", wh_batch_free(batch), 0);
	scene_expect("wh_peer_close", wh_peer_close(peer), 0);
	for (size_t i = 0; i < FILES; i++)
		scene_expect("wh_region_unregister", wh_region_unregister(regions[i]), 0);
	scene_expect("wh_engine_close", wh_engine_close(engine), 0);
}

static void act_short_files(struct scene *scene)
{
	char path[32];

	for (int i = 0; i < FILES; i++) {
		snprintf(path, sizeof(path), "/sim/%d", i);
		sim_file_new(place_host(scene->initiator->place), path, SCENE_LOCAL);
	}
	for (uint64_t nth = 1; nth < FIRST_BATCH; nth++)
		copy_files_short(scene, nth);
}

static void world_short_files(void)
{
	scene_play(act_short_files);
}

/* ---- a disk that does not answer ------------------------------------------------------------- */

/* One request writes to memory and to a file whose disk hangs: the memory can be unregistered. */
static void act_hung_disk(struct scene *scene)
{
	struct wh_transfer transfers[2] = {
		{ .local = scene->region, .length = 64, .op = WH_WRITE },
		{ .local = scene->region, .local_offset = 64, .length = 64, .op = WH_WRITE },
	};
	struct store store = { .scene = NULL };
	struct wh_batch *batch;

	store_open(&store, scene);
	memset(scene->local, 'A', SCENE_LOCAL);
	for (int i = 0; i < 2; i++)
		transfers[i].remote = store.remote[i];
	scene_expect("wh_batch_new", wh_batch_new(scene->peer, NULL, &batch), 0);
	scene_expect("wh_batch_add", wh_batch_add(batch, transfers, 2), 0);
	for (int i = 0; i < 20; i++) /* each of its disks */
		sim_disk_hang(SCENE_OWNER, 30 * SIM_SEC);
	scene_expect("submit", wh_batch_submit(batch), 0);
	scene_expect("wait for the disk", wh_batch_wait_for(batch, 100 * SIM_MS), -EAGAIN);
	if (store.memory[63] != 'A')
		sim_fail("directed", "the request has not come as far as the disk");
	store_withdraw(&store, scene);
	scene_expect("wait for the disk", wh_batch_wait_for(batch, 100 * SIM_MS), -EAGAIN);
	sim_heal();
	scene_expect("the write", scene_end(batch, 20 * SIM_SEC), 0);
	wh_batch_free(batch);
	store_close(&store, scene);
}

static void world_hung_disk(void)
{
	scene_play(act_hung_disk);
}

/* Write to a disk of the owner's that hangs. */
static struct wh_batch *store_hang(const struct store *store, struct scene *scene)
{
	struct wh_transfer transfer = {
		.local = scene->region, .remote = store->remote[1], .length = 64, .op = WH_WRITE
	};
	struct wh_batch *batch;

	scene_expect("wh_batch_new", wh_batch_new(scene->peer, NULL, &batch), 0);
	scene_expect("wh_batch_add", wh_batch_add(batch, &transfer, 1), 0);
	for (int i = 0; i < 20; i++) /* each of its disks */
		sim_disk_hang(SCENE_OWNER, 30 * SIM_SEC);
	scene_expect("submit", wh_batch_submit(batch), 0);
	scene_expect("wait for the disk", wh_batch_wait_for(batch, 100 * SIM_MS), -EAGAIN);
	return batch;
}

/* The owner answers other questions. */
static void expect_served(const struct scene *scene)
{
	struct wh_remote remotes[8];
	uint64_t cursor = 0;
	size_t count = 8;

	scene_expect("wh_peer_list",
		     wh_peer_list(scene->peer, &cursor, remotes, &count, 100 * SIM_MS), 0);
}

/* The connection that has brought bytes of a disk that hangs breaks. Until the owner gives the disk
 * up, it serves all else. */
static void act_broken_at_disk(struct scene *scene)
{
	struct store store = { .scene = NULL };
	struct wh_batch *batch;

	store_open(&store, scene);
	batch = store_hang(&store, scene);
	sim_network_reset(0, SCENE_OWNER, DATA);
	scene_pass(scene, 10 * SIM_MS);
	expect_served(scene);
	scene_expect("wait for the disk", wh_batch_wait_for(batch, 100 * SIM_MS), -EAGAIN);
	scene_expect("a write that may still arrive", scene_end(batch, 20 * SIM_SEC), -ECONNRESET);
	sim_heal();
	wh_batch_free(batch);
	store_withdraw(&store, scene);
	store_close(&store, scene);
}

static void world_broken_at_disk(void)
{
	scene_play(act_broken_at_disk);
}

/* The same, but all connections break: the owner serves at once who comes back. */
static void act_left_at_disk(struct scene *scene)
{
	struct store store = { .scene = NULL };
	struct wh_batch *batch;

	store_open(&store, scene);
	batch = store_hang(&store, scene);
	for (int i = 0; i <= DATA; i++)
		sim_network_reset(0, SCENE_OWNER, i);
	scene_expect("a write that may still arrive", scene_end(batch, 100 * SIM_MS), -ECONNRESET);
	scene_expect("its cancel", wh_batch_cancel(batch), -ETIMEDOUT);
	for (int i = 0; wh_peer_status(scene->peer) && i < 500; i++)
		scene_pass(scene, SIM_MS);
	expect_served(scene);
	if (store.file[63])
		sim_fail("directed", "the disk answers");
	sim_heal();
	wh_batch_free(batch);
	store_withdraw(&store, scene);
	store_close(&store, scene);
}

static void world_left_at_disk(void)
{
	scene_play(act_left_at_disk);
}

/* ---- an owner of shared memory that stands still --------------------------------------------- */

#define STILL (3 * SIM_SEC)
#define SOON (200 * SIM_MS) /* a cancel gives what is in flight half of it to end */

/* Fails unless it is soon after `start`. */
static void expect_soon(const char *what, int64_t start)
{
	if (sim_time - start > SOON)
		sim_fail("bound", "%s took %.3f s", what, (double)(sim_time - start) / 1e9);
}

/* A batch has to ask the owner for its memory, who does not answer. Nothing waits for him but the
 * batch; it can be cancelled, and the next one succeeds. */
static void act_still_owner(struct scene *scene)
{
	struct wh_batch *batch;
	int64_t start;

	/* The region is known, and its memory has not been asked for. */
	scene_expect("wh_peer_prepare",
		     wh_peer_prepare(scene->peer, NULL, 0, &scene->target->remote, 1, SIM_SEC), 0);
	batch = scene_write(scene, 64);
	sim_node_stall(scene->owner->node, STILL);
	for (int i = 0; i < 2; i++) {
		start = sim_time;
		scene_expect("submit", wh_batch_submit(batch), 0);
		expect_soon("wh_batch_submit", start);
		start = sim_time;
		scene_expect("a test", wh_batch_test(batch), -EAGAIN);
		expect_soon("wh_batch_test", start);
		scene_pass(scene, 300 * SIM_MS);
		start = sim_time;
		scene_expect("cancel", wh_batch_cancel(batch), 0);
		expect_soon("wh_batch_cancel", start);
	}
	scene_expect("submit", wh_batch_submit(batch), 0);
	scene_expect("a write", scene_end(batch, 20 * SIM_SEC), 0);
	wh_batch_free(batch);
}

static void world_still_owner(void)
{
	sim_options.programs = 2;
	sim_options.transports = 2;
	sim_options.timeout_ms = 20000;
	scene_play(act_still_owner);
}

static void world_still_owner_driven(void)
{
	sim_options.threads = 0;
	world_still_owner();
}

/* ---- a session that has ended at its owner alone --------------------------------------------- */

static void *withdraw_target(void *arg)
{
	struct scene *scene = arg;

	while (!target_close(scene->owner, 0, true))
		sim_sleep(SIM_MS);
	scene->target = NULL;
	return NULL;
}

/* The control connection breaks at the owner, who unregisters his memory then: there is nobody to
 * ask. The initiator does not know yet, and still has the memory mapped. */
static void act_ended_session(struct scene *scene)
{
	struct wh_batch *batch = scene_write(scene, 64);

	scene_expect("submit", wh_batch_submit(batch), 0);
	scene_expect("a write", scene_end(batch, SIM_SEC), 0);
	sim_network_reset_there(0, 0, 0);
	sim_spawn(scene->owner->node, "withdraw", withdraw_target, scene);
	while (scene->target)
		sim_sleep(100000);
	scene_expect("the peer, of whose loss nobody knows", wh_peer_status(scene->peer), 0);
	scene_expect("submit", wh_batch_submit(batch), 0);
	scene_expect("a write to what is gone", scene_end(batch, SIM_SEC), -ECONNRESET);
	wh_batch_free(batch);
}

static void world_ended_session(void)
{
	sim_options.programs = 2;
	sim_options.transports = 2;
	scene_play(act_ended_session);
}

static void world_ended_session_mapped(void)
{
	sim_options.shared = 2;
	world_ended_session();
}

static void world_ended_session_gpu(void)
{
	sim_options.gpus = 1;
	sim_options.gpu_regions = 100;
	world_ended_session();
}

/* A GPU still moves a batch's bytes when the peer is lost, and when it is reached again and another
 * batch goes there. */
static void act_outlived_session(struct scene *scene)
{
	struct wh_batch *batch = scene_write(scene, 64), *next = scene_write(scene, 64);

	scene_expect("submit", wh_batch_submit(batch), 0);
	scene_expect("a write", scene_end(batch, SIM_SEC), 0);
	sim_gpu_stall(0, 0, 2 * SIM_SEC);
	scene_expect("submit", wh_batch_submit(batch), 0);
	sim_network_reset(0, 0, 0);
	while (!wh_peer_status(scene->peer))
		scene_pass(scene, 100000);
	while (wh_peer_status(scene->peer))
		scene_pass(scene, SIM_MS);
	scene_expect("submit", wh_batch_submit(next), 0);
	scene_pass(scene, 100 * SIM_MS);
	scene_expect("the batch of a GPU that stands still", wh_batch_status(batch), -EINPROGRESS);
	scene_expect("a write in a session that is over", scene_end(batch, 10 * SIM_SEC),
		     -ECONNRESET);
	scene_expect("a write in the next session", scene_end(next, 10 * SIM_SEC), 0);
	wh_batch_free(batch);
	wh_batch_free(next);
}

static void world_outlived_session(void)
{
	sim_options.programs = 2;
	sim_options.transports = 2;
	sim_options.gpus = 1;
	sim_options.gpu_regions = 100;
	scene_play(act_outlived_session);
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

static void expect_never_lost(const struct scene *scene)
{
	struct wh_engine_counters counters = { .size = sizeof(counters) };

	scene_expect("wh_engine_counters",
		     wh_engine_counters(scene->initiator->engine, &counters, NULL), 0);
	scene_expect("peers that were lost", (int)counters.peers_lost, 0);
}

/* The owner ends a session that is silent for 10 s; the initiator would wait for a minute. */
static void act_unequal_timeouts(struct scene *scene)
{
	scene_pass(scene, 40 * SIM_SEC);
	expect_never_lost(scene);
}

static void world_unequal_timeouts(void)
{
	sim_options.timeout_ms = 60000;
	scene_owner_timeout = 200;
	scene_play(act_unequal_timeouts);
}

/* ---- notifications that nobody takes ----------------------------------------------------------
 */

#define NOTES 40 /* more than the owner keeps and may be on their way together */
#define LOST_TAG 1000 /* of those before a loss */

struct taker {
	const struct scene *scene;
	int taken; /* in order */
	bool leave, left;
};

/* The owner takes what has come. */
static void *take_main(void *arg)
{
	struct taker *taker = arg;
	struct wh_notification got = { .size = sizeof(got) };
	struct wh_engine *engine = taker->scene->owner->engine;

	while (!taker->leave) {
		int rc = wh_engine_notification(engine, NULL, &got, 10 * SIM_MS);

		if (rc != -EAGAIN) {
			scene_expect("wh_engine_notification", rc, 0);
			if (got.tag < LOST_TAG)
				scene_expect("the tag", (int)got.tag, taker->taken++);
		}
	}
	taker->left = true;
	return NULL;
}

static void notes_submit(struct scene *scene, struct wh_batch *batches[NOTES], uint64_t tag)
{
	for (int i = 0; i < NOTES; i++) {
		scene_expect("wh_batch_new", wh_batch_new(scene->peer, NULL, &batches[i]), 0);
		scene_expect("wh_batch_notify",
			     wh_batch_notify(batches[i], tag + (uint64_t)i, NULL, 0), 0);
		scene_expect("submit", wh_batch_submit(batches[i]), 0);
	}
	scene_pass(scene, 100 * SIM_MS);
}

static void notes_take(struct scene *scene, struct wh_batch *batches[NOTES])
{
	struct taker taker = { .scene = scene };

	sim_spawn(scene->owner->node, "take", take_main, &taker);
	for (int i = 0; i < NOTES; i++) {
		scene_expect("a notification", scene_end(batches[i], 20 * SIM_SEC), 0);
		wh_batch_free(batches[i]);
	}
	scene_pass(scene, 100 * SIM_MS);
	taker.leave = true;
	while (!taker.left)
		scene_pass(scene, SIM_MS);
	scene_expect("notifications", taker.taken, NOTES);
}

static void act_untaken(struct scene *scene)
{
	struct wh_batch *batches[NOTES];

	notes_submit(scene, batches, 0);
	notes_take(scene, batches);
	expect_never_lost(scene);
}

/* What a lost peer has not confirmed takes no room from the next ones. */
static void act_untaken_lost(struct scene *scene)
{
	struct wh_batch *batches[NOTES];

	notes_submit(scene, batches, LOST_TAG);
	sim_network_reset(0, SCENE_OWNER, 0);
	for (int i = 0; i < NOTES; i++) {
		scene_end(batches[i], SIM_SEC);
		wh_batch_free(batches[i]);
	}
	while (wh_peer_status(scene->peer))
		scene_pass(scene, SIM_MS);
	notes_submit(scene, batches, 0);
	notes_take(scene, batches);
}

static void world_untaken_lost(void)
{
	sim_options.notifications = 1;
	scene_play(act_untaken_lost);
}

static void world_untaken(void)
{
	sim_options.notifications = 1;
	scene_play(act_untaken);
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

/* ---- weights that hear what is no hello ------------------------------------------------------ */

#define LONG_NOTE 1000 /* bytes, longer than any hello */

#define ALONE 64 /* bytes of weights */

/* Open weights of one tensor between this engine and one that is not there. */
static int weights_try_alone(const struct program *program, void *memory, struct wh_weights **out)
{
	uint64_t shape = ALONE, begin = 0;
	struct wh_weights_tensor tensor = { .name = "t", .type = "u8", .shape = &shape, .dims = 1 };
	struct wh_weights_region region = { .name = "all", .bytes = ALONE };
	struct wh_weights_slice slice = { .begin = &begin, .end = &shape };
	struct wh_weights_engine here = { .name = wh_engine_name(program->engine) };
	struct wh_weights_engine there = { .name = "nobody" };
	struct wh_weights_layout sides[2] = { {
		.size = sizeof(sides[0]),
		.tensors = &tensor,
		.engines = &here,
		.regions = &region,
		.slices = &slice,
		.tensor_count = 1,
		.engine_count = 1,
		.region_count = 1,
		.slice_count = 1,
	} };
	struct wh_weights_memory given = { .region = "all", .address = { memory } };
	struct wh_weights_options options = { .size = sizeof(options),
					      .sources = &sides[0],
					      .targets = &sides[1],
					      .memory = &given,
					      .memory_count = 1,
					      .name = "w" };

	sides[1] = sides[0];
	sides[1].engines = &there;
	return wh_weights_open(program->engine, &options, out);
}

static struct wh_weights *weights_open_alone(struct scene *scene)
{
	static uint8_t memory[ALONE];
	struct wh_weights *weights;

	scene_expect("wh_weights_open", weights_try_alone(scene->initiator, memory, &weights), 0);
	return weights;
}

/* A notification with the tag of the weights waits when they are opened, and there is no memory to
 * take it out of the way: their thread sleeps, and they can be closed. */
static void act_long_note(struct scene *scene)
{
	struct wh_engine *engine = scene->initiator->engine;
	uint64_t tag = WH_WEIGHTS_TAG | (('w' ^ 0x811c9dc5u) * 0x01000193u);
	struct wh_notification note = { .size = sizeof(note) };
	struct wh_notification_filter filter = { .size = sizeof(filter),
						 .tag = tag,
						 .tag_mask = UINT64_MAX };
	struct wh_weights *weights;
	struct wh_batch *batch;
	struct wh_peer *self;
	int64_t since;

	scene_expect("wh_peer_open", wh_peer_open(engine, "self", NULL, &self), 0);
	scene_expect("wh_batch_new", wh_batch_new(self, NULL, &batch), 0);
	scene_expect("wh_batch_notify", wh_batch_notify(batch, tag, scene->local, LONG_NOTE), 0);
	scene_expect("submit", wh_batch_submit(batch), 0);
	scene_expect("the notification", scene_end(batch, SIM_SEC), 0);
	wh_batch_free(batch);
	scene_expect("wh_peer_close", wh_peer_close(self), 0);
	sim_node_fail_size(scene->initiator->node, LONG_NOTE);
	weights = weights_open_alone(scene);
	scene_pass(scene, SIM_SEC);
	since = sim_time;
	scene_expect("wh_weights_close", wh_weights_close(weights), 0);
	if (sim_time - since > 2 * SIM_SEC)
		sim_fail("hang", "wh_weights_close() took %lld ms",
			 (long long)((sim_time - since) / SIM_MS));
	scene_expect("the notification", wh_engine_notification(engine, &filter, &note, 0),
		     -EMSGSIZE);
	/* With memory it goes. */
	sim_node_fail_size(scene->initiator->node, 0);
	weights = weights_open_alone(scene);
	scene_pass(scene, SIM_SEC);
	scene_expect("no notification", wh_engine_notification(engine, &filter, &note, 0), -EAGAIN);
	/* Neither is there memory for what wakes the thread that takes notifications. */
	sim_options.malloc_fails = 100000;
	sim_node_short_memory(scene->initiator->node, 60 * SIM_SEC);
	since = sim_time;
	scene_expect("wh_weights_close", wh_weights_close(weights), 0);
	if (sim_time - since > 3 * SIM_SEC)
		sim_fail("hang", "wh_weights_close() took %lld ms without memory",
			 (long long)((sim_time - since) / SIM_MS));
	sim_node_short_memory(scene->initiator->node, 0);
}

static void world_long_note(void)
{
	scene_play(act_long_note);
}

/* The initiator stands still, and has not let go of the owner's memory: the owner's weights cannot
 * be opened, and their memory is his again when that call returns. */
static void *fail_opening(void *arg)
{
	struct scene *scene = arg;
	struct wh_engine *engine = scene->owner->engine;
	struct wh_region_options named = { .size = sizeof(named), .name = "w.control" };
	struct wh_weights *weights;
	struct wh_region *region;
	uint8_t taken[ALONE];
	void *memory;

	scene_expect("wh_memory_alloc", wh_memory_alloc(engine, ALONE, NULL, &memory), 0);
	scene_expect("wh_region_register",
		     wh_region_register(engine, taken, sizeof(taken), &named, &region), 0);
	sim_node_stall(scene->initiator->node, STILL);
	if (target_close(scene->owner, 0, false))
		sim_fail("directed", "a peer that stands still has let go of memory");
	scene_expect("wh_weights_open", weights_try_alone(scene->owner, memory, &weights), -EEXIST);
	scene_expect("wh_memory_free", wh_memory_free(engine, memory), 0);
	scene_expect("wh_region_unregister", wh_region_unregister(region), 0);
	while (!target_close(scene->owner, 0, true))
		sim_sleep(SIM_MS);
	scene->target = NULL;
	return NULL;
}

static void act_failed_opening(struct scene *scene)
{
	struct wh_batch *batch = scene_write(scene, 64);

	scene_expect("submit", wh_batch_submit(batch), 0);
	scene_expect("a write", scene_end(batch, SIM_SEC), 0);
	wh_batch_free(batch);
	sim_spawn(scene->owner->node, "opening", fail_opening, scene);
	while (scene->target)
		scene_pass(scene, SIM_MS);
}

static void world_failed_opening(void)
{
	sim_options.programs = 2;
	sim_options.transports = 2;
	sim_options.shared = 2;
	scene_play(act_failed_opening);
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

static const struct world worlds[] = {
	{ "cancel-in-handshake", "a write behind a late PROVE is cancelled",
	  world_cancel_in_handshake },
	{ "cancel-of-lost", "a peer is lost while a write is on its way", world_cancel_of_lost },
	{ "reopen", "a data connection fails in two ways in a row", world_reopen },
	{ "idle-close", "writes meet the end of an idle connection", world_idle_close },
	{ "waits", "calls wait without threads while a callback is due", world_waits },
	{ "close-probing", "a peer is closed while queue pairs are tried", world_close_probing },
	{ "short-owner", "an owner of a file is short of memory", world_short_owner },
	{ "short-files", "the first batch of files, while memory is short", world_short_files },
	{ "hung-disk", "memory is unregistered while a disk hangs", world_hung_disk },
	{ "broken-at-disk", "a connection breaks whose disk hangs", world_broken_at_disk },
	{ "left-at-disk", "a peer is lost whose bytes a disk has that hangs", world_left_at_disk },
	{ "still-owner", "an owner of shared memory stands still", world_still_owner },
	{ "still-owner-driven", "the same, without threads", world_still_owner_driven },
	{ "ended-session", "memory is unregistered whose peer does not know of its loss",
	  world_ended_session },
	{ "ended-session-mapped", "the same, where the peer maps the memory",
	  world_ended_session_mapped },
	{ "ended-session-gpu", "the same, with a GPU's memory", world_ended_session_gpu },
	{ "outlived-session", "a GPU ends its work after the peer was lost and reached again",
	  world_outlived_session },
	{ "patient-open", "a peer is opened whose network is cut for 12 s", world_patient_open },
	{ "unequal-timeouts", "an owner waits 10 s, its initiator a minute",
	  world_unequal_timeouts },
	{ "untaken", "more notifications than the owner keeps, in order", world_untaken },
	{ "untaken-lost", "the same, and the peer is lost before", world_untaken_lost },
	{ "urgent", "a batch of latency priority is submitted behind a bulk one", world_urgent },
	{ "dropin-late", "Mooncake's small writes come after newer ones", world_dropin_late },
	{ "dropin-failed", "Mooncake's requests fail before their notification ends",
	  world_dropin_failed },
	{ "unserved", "an owner is out of descriptors, and accepts nothing", world_unserved },
	{ "long-note", "weights hear what is no hello, without memory", world_long_note },
	{ "failed-opening", "weights cannot be opened while a peer stands still",
	  world_failed_opening },
	{ NULL, NULL, NULL },
};

const struct world *worlds_find(const char *name)
{
	for (const struct world *world = worlds; world->name; world++)
		if (strcmp(world->name, name) == 0)
			return world;
	return NULL;
}

void worlds_list(void)
{
	for (const struct world *world = worlds; world->name; world++)
		printf("%-24s %s\n", world->name, world->what);
}

const struct world *worlds_at(int index)
{
	return worlds[index].name ? &worlds[index] : NULL;
}
