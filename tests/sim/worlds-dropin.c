/* SPDX-License-Identifier: Apache-2.0 */
/* Directed worlds of Mooncake's interface: two engines on two hosts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compat/mooncake/transfer_engine_c.h"
#include "scene.h"

#define BYTES 4096 /* of each engine's memory */
#define SMALL 64 /* of a request */
#define REQUESTS 2
#define ENOUGH (60 * SIM_SEC) /* for anything here */

static struct dropin_stage {
	char names[2][64];
	uint8_t *memory; /* of the owner */
	bool over;
	void (*act)(transfer_engine_t engine, segment_id_t owner, uint8_t *local);
	int nodes[2];
} stage;

static transfer_engine_t engine_new(int place, uint8_t *memory)
{
	char address[32];
	transfer_engine_t engine;

	snprintf(address, sizeof(address), "10.0.0.%d", place_host(place) + 1);
	engine = createTransferEngine("P2PHANDSHAKE", address, NULL, 0, 1);
	if (!engine)
		sim_fail("directed", "createTransferEngine: %s", wherryErrorText());
	scene_expect("registerLocalMemory", registerLocalMemory(engine, memory, BYTES, "*", 1), 0);
	getLocalIpAndPort(engine, stage.names[place], sizeof(stage.names[place]));
	return engine;
}

static void *owner_main(void *arg)
{
	transfer_engine_t engine = engine_new(SCENE_OWNER, stage.memory);

	while (!stage.over)
		sim_sleep(10 * SIM_MS);
	destroyTransferEngine(engine);
	return arg;
}

static void *initiator_main(void *arg)
{
	uint8_t *local = calloc(1, BYTES);
	transfer_engine_t engine;
	segment_id_t owner;

	while (!*stage.names[SCENE_OWNER])
		sim_sleep(SIM_MS);
	engine = engine_new(0, local);
	owner = openSegment(engine, stage.names[SCENE_OWNER]);
	if (owner <= 0)
		sim_fail("directed", "openSegment: %s", wherryErrorText());
	stage.act(engine, owner, local);
	sim_network_watch(NULL, NULL);
	destroyTransferEngine(engine);
	free(local);
	stage.over = true;
	return arg;
}

static void play(void (*act)(transfer_engine_t engine, segment_id_t owner, uint8_t *local))
{
	stage.act = act;
	stage.memory = calloc(1, BYTES);
	for (int place = 0; place < 2; place++) {
		stage.nodes[place] = sim_node_new(place_host(place));
		sim_spawn(stage.nodes[place], place ? "owner" : "initiator",
			  place ? owner_main : initiator_main, NULL);
	}
}

/* Submit writes of the first bytes of `local` to the first ones of the owner's memory. */
static batch_id_t submit(transfer_engine_t engine, segment_id_t owner, uint8_t *local,
			 bool notifies)
{
	static char name[] = "name", text[] = "text";
	batch_id_t batch = allocateBatchID(engine, REQUESTS);
	struct transfer_request requests[REQUESTS];

	for (int i = 0; i < REQUESTS; i++)
		requests[i] = (struct transfer_request){
			.opcode = OPCODE_WRITE,
			.source = local + i * SMALL,
			.target_id = owner,
			.target_offset = (uint64_t)(uintptr_t)stage.memory + (size_t)i * SMALL,
			.length = SMALL,
		};
	scene_expect("submitTransfer",
		     notifies ? submitTransferWithNotify(engine, batch, requests, REQUESTS,
							 (notify_msg_t){ name, text }) :
				submitTransfer(engine, batch, requests, REQUESTS),
		     0);
	return batch;
}

/* Have all requests ended? Sets `completed` to how many have moved all bytes. */
static bool look(transfer_engine_t engine, batch_id_t batch, int *completed)
{
	struct transfer_status status;
	bool all = true;

	*completed = 0;
	for (size_t i = 0; i < REQUESTS; i++) {
		scene_expect("getTransferStatus", getTransferStatus(engine, batch, i, &status), 0);
		all &= status.status != STATUS_WAITING;
		*completed += status.status == STATUS_COMPLETED;
	}
	return all;
}

/* Wait until all have ended, and free the batch. Returns how many have moved all bytes. */
static int finish(transfer_engine_t engine, batch_id_t batch)
{
	int64_t end = sim_time + ENOUGH;
	int completed;

	while (!look(engine, batch, &completed)) {
		if (sim_time > end)
			sim_fail("hang", "requests have not ended");
		sim_sleep(100 * SIM_MS);
	}
	scene_expect("freeBatchID, all requests have ended", freeBatchID(engine, batch), 0);
	return completed;
}

/* ---- a write that nobody answers in time ----------------------------------------------------- */

/* The connection whose bytes are late. */
struct late {
	int connection; /* -1: the next one on which the initiator sends */
	int64_t until;
};

static int64_t delay_one(const struct sim_packet *packet, void *arg)
{
	struct late *late = arg;

	if (!packet->from_initiator || packet->from_host != 0)
		return 0;
	if (late->connection < 0)
		late->connection = packet->connection;
	return packet->connection == late->connection && sim_time < late->until ?
		       late->until - sim_time :
		       0;
}

/* The bytes come after those of a newer write. If the first one is said to have succeeded, the
 * newer one's must stay. */
static void act_late_write(transfer_engine_t engine, segment_id_t owner, uint8_t *local)
{
	struct late late = { -1, sim_time + 30 * SIM_SEC };
	int succeeded;

	memset(local, 'A', BYTES);
	scene_expect("requests that completed", finish(engine, submit(engine, owner, local, false)),
		     REQUESTS);
	memset(local, 'B', BYTES);
	sim_network_watch(delay_one, &late);
	succeeded = finish(engine, submit(engine, owner, local, false));
	if (late.connection < 0 || sim_time > late.until)
		sim_fail("directed", "no write was late");
	memset(local, 'C', BYTES);
	scene_expect("requests that completed", finish(engine, submit(engine, owner, local, false)),
		     REQUESTS);
	sim_sleep(late.until - sim_time + SIM_SEC);
	if (succeeded && stage.memory[0] != 'C')
		sim_fail("bytes", "after three writes that succeeded there is %c of the second",
			 stage.memory[0]);
}

static const char *listen_none(const char *name)
{
	return strcmp(name, "WHERRY_LISTEN") == 0 ? "none" : dropin_setting(name);
}

static void world_dropin_late(void)
{
	sim_options.timeout_ms = 1000;
	sim_environment(listen_none);
	play(act_late_write);
}

/* ---- requests that fail ---------------------------------------------------------------------- */

/* The owner cannot be reached any more, and what is called at the end of their batch is late. */
static void act_failed(transfer_engine_t engine, segment_id_t owner, uint8_t *local)
{
	batch_id_t batch = submit(engine, owner, local, false);

	scene_expect("requests that completed", finish(engine, batch), REQUESTS);
	sim_network_cut(0, SCENE_OWNER, ENOUGH);
	sim_network_cut(SCENE_OWNER, 0, ENOUGH);
	batch = submit(engine, owner, local, true);
	sim_thread_hold(stage.nodes[0], "wherry/call", ENOUGH / 2);
	scene_expect("requests over a network that is cut that completed", finish(engine, batch),
		     0);
	sim_network_heal();
}

static void world_dropin_failed(void)
{
	sim_options.timeout_ms = 1000;
	sim_environment(dropin_setting);
	play(act_failed);
}

const struct world worlds_dropin[] = {
	{ "dropin-late", "Mooncake's small writes come after newer ones", world_dropin_late },
	{ "dropin-failed", "Mooncake's requests fail before their notification ends",
	  world_dropin_failed },
	{ NULL, NULL, NULL },
};
