/* SPDX-License-Identifier: Apache-2.0 */
/* Directed worlds of files: disks that hang, and too little memory. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "scene.h"

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
	sim_network_reset(0, SCENE_OWNER, SCENE_DATA);
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
	for (int i = 0; i <= SCENE_DATA; i++)
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

/* ---- an unfinished file with another name ---------------------------------------------------- */

#define SOURCE "/disk/p0.from"
#define SERVED "/disk/p1"
#define COPIED 20000 /* bytes */

struct serving {
	const struct scene *scene;
	bool leave;
	int left; /* threads that have ended */
};

static void *serve_main(void *arg)
{
	struct serving *serving = arg;
	struct program *owner = serving->scene->owner;

	folder_open(owner);
	while (!serving->leave)
		folder_serve(owner);
	folder_leave(owner);
	serving->left++;
	return NULL;
}

/* The byte of which all of the served file consists. */
static uint8_t served_byte(void)
{
	struct sim_file file = { 0 };

	while (sim_file_next(SCENE_OWNER, SERVED, &file)) {
		if (strcmp(file.name, "all/f") != 0)
			continue;
		for (size_t i = 1; i < file.size; i++)
			if (file.bytes[i] != file.bytes[0])
				sim_fail("files", "a served file is half %c and half %c",
					 file.bytes[0], file.bytes[i]);
		return file.size == COPIED ? file.bytes[0] : 0;
	}
	return 0;
}

static void *watch_served(void *arg)
{
	struct serving *serving = arg;

	while (!serving->leave) {
		served_byte();
		sim_sleep(100000);
	}
	serving->left++;
	return NULL;
}

/* Copy a file of such bytes to the owner's directory. */
static void copy_there(struct scene *scene, uint8_t byte)
{
	char url[64], to[96];

	memset(scene->local, byte, COPIED);
	sim_folder_new(place_host(0), SOURCE);
	sim_file_put(place_host(0), SOURCE "/f", scene->local, COPIED, 0600, byte * SIM_SEC);
	program_url(SCENE_OWNER, url, sizeof(url));
	snprintf(to, sizeof(to), "%s/files/all", url);
	for (int i = 0; folder_copy(scene->initiator, SOURCE, to, true); i++) {
		if (i == 100)
			sim_fail("directed", "a copy fails again and again");
		scene_pass(scene, SIM_MS);
	}
	if (served_byte() != byte)
		sim_fail("files", "a copy that succeeded is not there");
}

/* A crash amid a renaming leaves a file with both of its names on some file systems. The next copy
 * does not go on with that one: bytes would change that have their name. */
static void act_linked_part(struct scene *scene)
{
	struct serving serving = { .scene = scene };

	sim_spawn(scene->owner->node, "serve", serve_main, &serving);
	sim_spawn(-1, "watch", watch_served, &serving);
	copy_there(scene, 'A');
	sim_file_link(SCENE_OWNER, SERVED "/all/f", SERVED "/all/.f.wherry-part");
	copy_there(scene, 'B');
	serving.leave = true;
	while (serving.left < 2)
		scene_pass(scene, SIM_MS);
}

static void world_linked_part(void)
{
	sim_options.mbit = 10;
	sim_options.slice = 1024;
	scene_play(act_linked_part);
}

const struct world worlds_disk[] = {
	{ "short-owner", "an owner of a file is short of memory", world_short_owner },
	{ "short-files", "the first batch of files, while memory is short", world_short_files },
	{ "hung-disk", "memory is unregistered while a disk hangs", world_hung_disk },
	{ "broken-at-disk", "a connection breaks whose disk hangs", world_broken_at_disk },
	{ "left-at-disk", "a peer is lost whose bytes a disk has that hangs", world_left_at_disk },
	{ "linked-part", "a copy finds an unfinished file with another name", world_linked_part },
	{ NULL, NULL, NULL },
};
