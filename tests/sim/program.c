/* SPDX-License-Identifier: Apache-2.0 */
/* A program: it opens an engine, does one thing after the other at random, and closes it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program.h"

#define KEY "key=00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define SLACK (500 * SIM_MS) /* what shares a CPU with other threads may be late */
#define DISKS (4 * SIM_SEC) /* without threads a pass waits for them */
#define DRAIN_MOST (600 * SIM_SEC)
#define OPEN_TRIES 400 /* of an engine, when all is healed */
#define HEALED_MOST (120 * SIM_SEC) /* for a batch, when all is healed */
#define SILENCE (10 * SIM_SEC) /* that ends a session, at least */
#define LISTEN_ON (10 * SIM_SEC) /* for what others have sent */

/* The option `transports`. */
enum {
	ONLY_TCP, /* and rdma, if there are NICs */
	WITH_SELF, /* and cuda, if there are GPUs */
	WITH_SHM,
};

enum phase program_phase;
int64_t program_healed_at;
struct program_counts program_counts;

static struct program **programs;
static int count, undrained;

/* Programs with regions, peers and batches; the others are members of weights,
 * serve folders, or use Mooncake's interface. */
static bool is_plain(void)
{
	return !sim_options.weights && !sim_options.folders && !sim_options.mooncake;
}

int program_count(void)
{
	return count;
}

struct program *program_at(int index)
{
	return programs[index];
}

int place_count(void)
{
	return sim_options.weights ? member_hosts() : sim_options.hosts * sim_options.programs;
}

int place_host(int place)
{
	return place / sim_options.programs;
}

bool program_may_use(const char *transport, int from, int to)
{
	if (strcmp(transport, "self") == 0)
		return from == to && sim_options.transports >= WITH_SELF;
	/* The memory of another process's GPU comes over the socket of shm. */
	if (strcmp(transport, "cuda") == 0)
		return sim_options.gpus && place_host(from) == place_host(to) &&
		       sim_options.transports >= (from == to ? WITH_SELF : WITH_SHM);
	if (strcmp(transport, "shm") == 0)
		return from != to && place_host(from) == place_host(to) &&
		       sim_options.transports == WITH_SHM;
	if (strcmp(transport, "rdma") == 0)
		return from != to && sim_options.rdma;
	return strcmp(transport, "tcp") == 0;
}

struct program *program_at_place(int place)
{
	for (int i = count - 1; i >= 0; i--)
		if (programs[i]->place == place && !programs[i]->crashed &&
		    (programs[i]->engine || programs[i]->dropin) && !programs[i]->leaving)
			return programs[i];
	return NULL;
}

int program_hosts(void)
{
	return place_count() / sim_options.programs;
}

int64_t program_probing(void)
{
	return sim_options.gpus ? PROGRAM_GPU_PATIENCE : 0;
}

bool program_has_threads(void)
{
	return sim_options.threads || !is_plain() || sim_options.registry;
}

void program_url(int place, char *out, size_t length)
{
	if (sim_options.registry)
		snprintf(out, length, "wherry://place%d", place);
	else
		snprintf(out, length,
			 sim_options.ipv6 ? "wherry://[fd00::%x]:%d" : "wherry://10.0.0.%d:%d",
			 place_host(place) + 1, PROGRAM_PORT + place % sim_options.programs);
}

/* ---- calls and their bounds ------------------------------------------------------------------ */

struct call call_begin(const struct program *program)
{
	struct call call = { program, sim_time, sim_node_stalled(program->node),
			     sim_gpu_stalled(place_host(program->place)), "" };

	snprintf(call.text, sizeof(call.text), "%s", wh_error_text());
	return call;
}

void call_end(const struct call *call, const char *name, int rc, int64_t limit)
{
	int64_t stalled = sim_node_stalled(call->program->node) - call->stalled;
	int64_t took = sim_time - call->start - stalled;

	if (!program_has_threads())
		limit += sim_options.files ? DISKS : program_probing();
	if (took > limit + limit / 10 + SLACK)
		sim_fail("bound", "%s = %d took %.3f s, its bound is %.3f s; %s", name, rc,
			 (double)took / 1e9, (double)limit / 1e9, wh_error_text());
	if (rc >= 0 && strncmp(call->text, wh_error_text(), sizeof(call->text) - 1) != 0)
		sim_fail("text", "%s = %d has changed the text of the last error to: %s", name, rc,
			 wh_error_text());
}

int64_t call_stalled_gpus(const struct call *call)
{
	return sim_gpu_stalled(place_host(call->program->place)) - call->stalled_gpus;
}

void call_end_with_gpus(const struct call *call, const char *name, int rc, int64_t limit)
{
	call_end(call, name, rc, limit + call_stalled_gpus(call));
}

void program_progress(struct program *program, int64_t timeout)
{
	struct call call = call_begin(program);
	int rc;

	if (program_has_threads()) {
		sim_sleep(timeout ? timeout : 1000);
		return;
	}
	rc = wh_engine_progress(program->engine, timeout);
	if (rc < 0)
		sim_fail("call", "wh_engine_progress = %d: %s", rc, wh_error_text());
	call_end(&call, "wh_engine_progress", rc, timeout);
}

uint8_t *program_gpu_memory(const struct program *program, size_t size, uint64_t *address)
{
	int device = (int)sim_draw_work((uint64_t)sim_options.gpus);
	size_t before = sim_draw_work(2) ? 8 * sim_draw_work(64) : 0;
	uint8_t *bytes = sim_gpu_alloc(program->node, device, before + size, address);

	*address += before;
	return bytes ? bytes + before : NULL;
}

/* ---- engines --------------------------------------------------------------------------------- */

static void log_line(void *arg, const struct wh_log_record *record)
{
	const struct program *program = arg;

	sim_trace("    log of node %d: %s: %s", program->node, record->area, record->text);
	if (strcmp(record->area, "session") == 0 && strstr(record->text, " has left"))
		sim_gpu_peer_left(program->node);
}

/* A setting as "NAME=NUMBER", in one of the buffers that the caller has for them. */
static const char *setting(char *out, const char *name, int value)
{
	snprintf(out, 48, "%s=%d", name, value);
	return out;
}

void program_settings(struct program_settings *out)
{
	static const char *const nics[] = { "rdma=nic0", "rdma=nic0,nic1", "rdma=nic0,nic1,nic2",
					    "rdma=nic0,nic1,nic2,nic3" };
	char(*numbers)[48] = out->numbers;
	const char *rows[] = {
		out->transports,
		sim_options.gpus ? "cuda=libcuda.so.1" : "cuda=off",
		sim_options.rdma ? nics[sim_options.rdma - 1] : "rdma=off",
		"verbs=libibverbs.so.1",
		"observe=off",
		"cufile=off",
		"window=off",
		"meet=off",
		KEY,
		sim_options.crc32c ? "integrity=crc32c" : "integrity=none",
		setting(numbers[0], "tls", sim_options.tls),
		setting(numbers[1], "timeout", sim_options.timeout_ms),
		setting(numbers[2], "idle", sim_options.idle_ms),
		setting(numbers[3], "slice", sim_options.slice),
		setting(numbers[4], "inline", sim_options.inline_bytes),
		setting(numbers[5], "connections", sim_options.connections),
		setting(numbers[6], "notifications", sim_options.notifications),
		setting(numbers[7], "rdma_connections", sim_options.nic_connections),
		setting(numbers[8], "rdma_answers", sim_options.nic_answers),
		setting(numbers[9], "lease", sim_options.lease_ms),
		NULL,
	};

	_Static_assert(sizeof(rows) <= sizeof(out->rows), "all settings fit");
	snprintf(out->transports, sizeof(out->transports), "transports=%s%s%s%stcp",
		 sim_options.transports >= WITH_SELF ? "self," : "",
		 sim_options.transports >= WITH_SELF && sim_options.gpus ? "cuda," : "",
		 sim_options.transports == WITH_SHM ? "shm," : "", sim_options.rdma ? "rdma," : "");
	memcpy(out->rows, rows, sizeof(rows));
}

bool program_engine_open(struct program *program)
{
	struct program_settings settings = { 0 };
	char listen[48];
	struct wh_engine_options options = {
		.size = sizeof(options),
		.name = program->name,
		.listen = listen,
		.registry = sim_options.registry == 0 ? NULL :
			    sim_options.registry == 1 ? "http://registry:1" :
							"etcd://registry:1",
		.config = settings.rows,
		.log = log_line,
		.log_arg = program,
		.log_level = WH_LOG_DEBUG,
		.flags = program_has_threads() ? 0 : WH_ENGINE_NO_THREADS,
	};
	int error;

	program->timeout = sim_options.timeout_ms * SIM_MS;
	if (sim_options.mooncake)
		return dropin_open(program);
	if (sim_options.gpus)
		sim_gpu_open(program->node);
	program_settings(&settings);
	/* Who is found by name may come back at another port. */
	snprintf(listen, sizeof(listen), sim_options.ipv6 ? "[fd00::%x]:%d" : "10.0.0.%d:%d",
		 place_host(program->place) + 1,
		 PROGRAM_PORT + program->place % sim_options.programs +
			 (sim_options.registry ? program->node % 3 * SIM_HOSTS : 0));
	error = wh_engine_open(&options, &program->engine);
	sim_trace("engine of node %d: %d %s", program->node, error, error ? wh_error_text() : "");
	if (error) {
		program->engine = NULL;
		return false;
	}
	if (sim_options.queue && wh_queue_new(program->engine, &program->queue))
		program->queue = NULL;
	for (int i = 0; i < PROGRAM_TARGETS && is_plain(); i++)
		target_open(program, i, 0);
	program->epoch = wh_engine_epoch(program->engine);
	return true;
}

static void close_queue(struct program *program)
{
	struct wh_completion left;
	int rc;

	if (!program->queue)
		return;
	/* A peer that was closed while it was being opened reports nothing. */
	while (wh_queue_take(program->queue, &left, 1, 0) > 0)
		sim_fail("queue", "a completion came after the end of what it is of");
	rc = wh_queue_free(program->queue);
	if (rc)
		sim_fail("call", "wh_queue_free = %d: %s", rc, wh_error_text());
	program->queue = NULL;
}

/* The engine has counted what the program has seen. */
static void check_counters(const struct program *program)
{
	struct wh_engine_counters engine = { .size = sizeof(engine) };
	struct wh_counters total = { .size = sizeof(total) };
	int rc = wh_engine_counters(program->engine, &engine, &total);

	if (rc)
		sim_fail("call", "wh_engine_counters = %d: %s", rc, wh_error_text());
	if (program->measured || !is_plain())
		return;
	if (total.batches != program->succeeded || total.failed != program->failed ||
	    total.cancelled != program->cancelled || total.large_in_flight)
		sim_fail("counters",
			 "%llu batches succeeded, %llu failed, %llu were cancelled, counted are "
			 "%llu, %llu, %llu; %llu bytes in flight",
			 (unsigned long long)program->succeeded,
			 (unsigned long long)program->failed,
			 (unsigned long long)program->cancelled, (unsigned long long)total.batches,
			 (unsigned long long)total.failed, (unsigned long long)total.cancelled,
			 (unsigned long long)total.large_in_flight);
}

/* A peer that stands still, or whose connection is cut, may keep memory for as long as its session
 * may be silent (docs/memory-model.md). */
/* How long the program, or a GPU that works for it, has stood still until now. */
static int64_t stalled_with_gpus(const struct program *program)
{
	return sim_node_stalled(program->node) + sim_gpu_stalled(place_host(program->place));
}

static void close_target(struct program *program, int slot)
{
	int64_t patience = program->timeout < SILENCE / 2 ? SILENCE : 2 * program->timeout;
	int64_t begun = sim_time - stalled_with_gpus(program), waited = 0;

	while (!target_close(program, slot, waited > patience)) {
		sim_idle(10 * SIM_MS);
		waited = sim_time - stalled_with_gpus(program) - begun;
	}
}

static void check_leaks(const struct program *program)
{
	int descriptors = sim_node_descriptors(program->node);
	int objects = sim_nic_objects(program->node);
	int gpus = sim_gpu_objects(program->node);
	int mappings = sim_node_mappings(program->node);

	if (descriptors || objects || gpus || mappings)
		sim_fail("leak",
			 "node %d has %d open descriptors, %d open objects of NICs, %d of GPUs and "
			 "%d mappings after wh_engine_close()",
			 program->node, descriptors, objects, gpus, mappings);
}

void program_check_ended(void)
{
	for (int i = 0; i < count; i++)
		check_leaks(programs[i]);
}

static void engine_close(struct program *program)
{
	struct call call;
	int rc;

	for (int i = 0; i < PROGRAM_PEERS; i++)
		if (program->peers[i].peer)
			peer_close(&program->peers[i]);
	if (!program->crashed)
		check_counters(program);
	for (int i = 0; i < PROGRAM_TARGETS; i++)
		if (program->targets[i])
			close_target(program, i);
	close_queue(program);
	call = call_begin(program);
	rc = wh_engine_close(program->engine);
	if (rc)
		sim_fail("call", "wh_engine_close = %d: %s", rc, wh_error_text());
	call_end_with_gpus(&call, "wh_engine_close", rc,
			   (sim_options.registry ? 3 : 2) * program->timeout);
}

void program_engine_close(struct program *program)
{
	int64_t start = sim_time;

	if (program->dropin)
		dropin_close(program);
	else
		engine_close(program);
	/* A file system that does not answer keeps the engine's memory and files (engine.h). */
	if ((!sim_options.files && !sim_options.folders) ||
	    !sim_disk_hung(place_host(program->place), start))
		check_leaks(program);
	program->engine = NULL;
	program->epoch = 0;
}

/* ---- one thing after the other --------------------------------------------------------------- */

static void step_peer(struct program *program)
{
	struct peer *peer = &program->peers[sim_draw_work(PROGRAM_PEERS)];

	if (!peer->peer)
		peer_open(program, peer);
	else if (!sim_draw_work(12))
		peer_close(peer); /* maybe while it is being opened */
}

static void step_batch(struct program *program)
{
	struct peer *peer = &program->peers[sim_draw_work(PROGRAM_PEERS)];
	struct batch *batch = &program->batches[sim_draw_work(PROGRAM_BATCHES)];

	if (batch->batch && !batch->running && sim_draw_work(3))
		batch_submit(batch);
	else if (batch->batch && !batch->running)
		batch_free(batch);
	else if (!batch->batch && peer->peer && !peer->opening && peer->epoch)
		batch_new(program, batch, peer);
}

static void step_region(struct program *program)
{
	static int generations;
	int slot = (int)sim_draw_work(PROGRAM_TARGETS);

	if (!sim_options.reregister || sim_draw_work(6))
		return;
	if (program->targets[slot] && sim_draw_work(2))
		target_toggle_rest(program, program->targets[slot]);
	else if (!program->targets[slot] || target_close(program, slot, false))
		target_open(program, slot, ++generations);
}

/* What is counted never becomes less. */
static void check_counters_grow(struct program *program)
{
	struct wh_engine_counters now = { .size = sizeof(now) }, *last = &program->counters;
	int rc = wh_engine_counters(program->engine, &now, NULL);

	if (rc)
		sim_fail("call", "wh_engine_counters = %d: %s", rc, wh_error_text());
	if (now.peers_opened < last->peers_opened || now.peers_lost < last->peers_lost ||
	    now.sessions_opened < last->sessions_opened || now.connections < last->connections ||
	    now.registrations < last->registrations ||
	    now.served_read_bytes < last->served_read_bytes ||
	    now.served_written_bytes < last->served_written_bytes ||
	    now.served_requests < last->served_requests || now.damaged < last->damaged)
		sim_fail("counters", "a counter of node %d has decreased", program->node);
	*last = now;
}

static void step(struct program *program)
{
	struct batch *batch = &program->batches[sim_draw_work(PROGRAM_BATCHES)];
	struct peer *peer = &program->peers[sim_draw_work(PROGRAM_PEERS)];
	int64_t wait = sim_draw_work(2) ? 0 : (int64_t)sim_draw_work(20 * SIM_MS);
	uint64_t what = sim_draw_work(18);

	if (what == 0)
		step_peer(program);
	else if (what <= 4)
		step_batch(program);
	else if (what <= 7 && batch->batch)
		batch_test(batch);
	else if (what == 8 && batch->batch && !sim_draw_work(3))
		batch_cancel(batch);
	else if (what == 9)
		queue_take(program, wait);
	else if (what == 10)
		note_take(program, wait);
	else if (what == 11)
		step_region(program);
	else if (what == 12 && peer->peer && !peer->opening && peer->epoch)
		peer_ask(peer);
	else if (what == 13 && sim_draw_work(6))
		check_counters_grow(program);
	else if (what == 13 && sim_options.queue_checks && !sim_draw_work(2))
		queue_check_busy(program);
	else if (what == 13)
		model_check_all();
	else if (what == 14)
		sim_sleep((int64_t)sim_draw_work(2 * SIM_MS)); /* it computes, and drives nothing */
	else if (what >= 15)
		program_progress(
			program,
			sim_draw_work(3) ?
				(int64_t)sim_draw_work((uint64_t)sim_options.patience_ms * SIM_MS) :
				0);
}

/* A second thread of the program: it waits and asks, and drives the engine as well. */
static void *helper_main(void *arg)
{
	struct program *program = arg;

	while (!program->helper_leaves) {
		struct batch *batch = &program->batches[sim_draw_work(PROGRAM_BATCHES)];
		uint64_t what = sim_draw_work(3), bytes;

		if (batch->batch && batch->running) {
			batch->pins++;
			if (what == 0)
				batch_wait(batch, (int64_t)sim_draw_work(30 * SIM_MS));
			else if (what == 1)
				wh_batch_test(batch->batch);
			else
				wh_batch_progress(batch->batch, &bytes);
			batch->pins--;
		}
		if (!sim_draw_work(3))
			program_progress(program, (int64_t)sim_draw_work(10 * SIM_MS));
		sim_sleep((int64_t)sim_draw_work(5 * SIM_MS));
	}
	program->helper_runs = false;
	return NULL;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* What a program still waits for. NULL: nothing. */
static const char *unsettled(const struct program *program)
{
	for (int i = 0; i < PROGRAM_BATCHES; i++)
		if (program->batches[i].running)
			return "a batch still runs";
	for (int i = 0; i < PROGRAM_PEERS; i++) {
		struct wh_peer_info info = { .size = sizeof(info) };

		if (!program->peers[i].peer)
			continue;
		wh_peer_info(program->peers[i].peer, &info);
		if (program->peers[i].opening || info.state == WH_PEER_CONNECTING)
			return "a peer is still being opened";
		if (info.state == WH_PEER_LOST)
			return "a peer is still lost";
		if (info.state == WH_PEER_UNREACHABLE &&
		    wh_peer_status(program->peers[i].peer) == -ECONNRESET)
			sim_fail("status", "a peer that is unreachable counts as lost");
	}
	return NULL;
}

static void print_running(const struct program *program)
{
	for (int i = 0; i < PROGRAM_BATCHES; i++) {
		const struct batch *batch = &program->batches[i];

		if (batch->running)
			fprintf(stderr,
				"  batch %d of node %d to place %d runs since %.6f, peer %d\n", i,
				program->node, batch->peer->place, (double)batch->submitted / 1e9,
				wh_peer_status(batch->peer->peer));
	}
}

static void serve(struct program *program)
{
	program_progress(program, 50 * SIM_MS);
	queue_take(program, 0);
	for (int i = 0; i < 20 && note_take(program, 0); i++)
		;
	for (int i = 0; i < PROGRAM_BATCHES; i++)
		if (program->batches[i].batch)
			batch_test(&program->batches[i]);
}

/* A connected peer has to take a batch now. */
static void check_peer_works(struct program *program, struct peer *peer)
{
	struct batch *batch = &program->batches[0];
	int64_t start = sim_time;

	for (int i = 0; i < PROGRAM_BATCHES && batch->batch; i++)
		batch = &program->batches[i];
	if (batch->batch)
		batch_free(batch);
	batch_new(program, batch, peer);
	while (batch->batch && batch->running) {
		if (sim_time - start > HEALED_MOST)
			sim_fail("hang", "a batch in a healed world takes %lld s",
				 HEALED_MOST / SIM_SEC);
		serve(program);
	}
}

/* The world is healed: everything has to end, and to work. */
static void drain_batches(struct program *program)
{
	const char *why;

	while ((why = unsettled(program))) {
		if (sim_time - program_healed_at > DRAIN_MOST) {
			print_running(program);
			sim_fail("hang", "%lld s after all was healed %s", DRAIN_MOST / SIM_SEC,
				 why);
		}
		serve(program);
	}
	for (int i = 0; i < PROGRAM_PEERS; i++)
		if (program->peers[i].peer && !wh_peer_status(program->peers[i].peer))
			check_peer_works(program, &program->peers[i]);
	if (sim_options.registry)
		for (int place = 0; place < place_count(); place++)
			peer_check_name(program, place);
}

/* When nobody sends any more, every notification has come. */
static void drain_notes(struct program *program)
{
	while (undrained) {
		program_progress(program, 20 * SIM_MS);
		note_take(program, 0);
	}
	for (int64_t end = sim_time + LISTEN_ON; sim_time < end;) {
		program_progress(program, 20 * SIM_MS);
		while (note_take(program, 0))
			;
	}
	note_check_received(program);
}

/* Nobody waits for this one any more. */
static void program_settled(struct program *program)
{
	if (!program->drained)
		undrained--;
	program->drained = true;
}

static void drain(struct program *program)
{
	if (sim_options.weights)
		member_drain(program);
	else if (sim_options.folders)
		folder_drain(program);
	else if (sim_options.mooncake)
		dropin_drain(program);
	else
		drain_batches(program);
	program_settled(program);
	if (is_plain())
		drain_notes(program);
	while (undrained)
		sim_options.folders  ? folder_serve(program) :
		sim_options.mooncake ? dropin_serve(program) :
				       sim_sleep(20 * SIM_MS);
	if (sim_options.mooncake)
		dropin_check_received(program);
	program->leaving = true;
}

/* ---- lives ----------------------------------------------------------------------------------- */

/* False: it crashed before its engine was open. */
static bool open_in_the_end(struct program *program)
{
	int tries = 0; /* since all was healed: a registry may be down for long before */

	while (!program_engine_open(program)) {
		sim_sleep(50 * SIM_MS);
		tries += program_phase != PHASE_FAULTS;
		if (tries > OPEN_TRIES)
			sim_fail("hang", "the engine cannot be opened: %s", wh_error_text());
		if (program->crashed)
			return false;
	}
	return true;
}

static void live(struct program *program)
{
	char name[32];

	if (sim_options.helper && is_plain()) {
		snprintf(name, sizeof(name), "p%d/n%d'", program->place, program->node);
		program->helper_runs = true;
		sim_spawn(program->node, name, helper_main, program);
	}
	while (program_phase == PHASE_FAULTS && !program->crashed && !program->leaving)
		sim_options.weights  ? member_work(program) :
		sim_options.folders  ? folder_work(program) :
		sim_options.mooncake ? dropin_work(program) :
				       step(program);
	program->helper_leaves = true;
	while (program->helper_runs)
		sim_sleep(100000);
	if (!program->crashed && !program->leaving)
		drain(program);
}

static void *program_main(void *arg)
{
	struct program *program = arg;

	if (!open_in_the_end(program)) {
		program_settled(program);
		return NULL;
	}
	live(program);
	if (sim_options.weights)
		member_leave(program);
	if (sim_options.folders)
		folder_leave(program);
	model_check_all();
	program_engine_close(program);
	sim_node_exit(program->node);
	program->ended = true;
	if (!program->crashed && !program->drained) {
		program_counts.restarts++;
		sim_sleep((int64_t)sim_draw_work(3 * SIM_SEC));
		/* Others wait for the next one from now on. */
		program_new(program->place);
	}
	program_settled(program);
	return NULL;
}

void program_new(int place)
{
	struct program *program = calloc(1, sizeof(*program));
	char name[32];

	program->place = place;
	program->node = sim_node_new(place_host(place));
	if (sim_options.malloc_nth && program_phase == PHASE_FAULTS)
		sim_node_fail_allocation(program->node,
					 1 + sim_draw_world((uint64_t)sim_options.malloc_nth));
	programs = sim_grow(programs, count + 1, sizeof(struct program *));
	programs[count++] = program;
	undrained++;
	snprintf(program->name, sizeof(program->name), "place%d", place);
	snprintf(name, sizeof(name), "p%d/n%d", place, program->node);
	sim_spawn(program->node, name, program_main, program);
}

static void crash(struct program *program, bool silent)
{
	program_counts.crashes++;
	program->crashed = true;
	program->epoch = 0;
	for (int i = 0; i < PROGRAM_TARGETS; i++)
		if (program->targets[i]) {
			program->targets[i]->dead = true;
			program->targets[i]->died = sim_time;
		}
	sim_node_crash(program->node, silent);
	if (silent)
		folder_lose_power(place_host(program->place));
}

unsigned program_crash(struct program *program, bool silent)
{
	unsigned crashed = 0;

	for (int i = 0; i < count; i++) {
		struct program *other = programs[i];

		if (other->crashed || other->ended ||
		    (other != program &&
		     !(silent && place_host(other->place) == place_host(program->place))))
			continue;
		crash(other, silent);
		crashed |= 1u << other->place;
	}
	return crashed;
}
