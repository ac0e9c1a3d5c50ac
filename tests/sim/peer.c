/* SPDX-License-Identifier: Apache-2.0 */
/* Peers: opened, asked and closed, also while they are being opened; and the queue. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "program.h"

#define OPEN_TIMEOUT (5 * SIM_SEC) /* the least that wh_peer_open() waits without an option */
#define NAMES_MOST (120 * SIM_SEC)
#define MEASURE_MOST (12 * SIM_SEC)

struct program *peer_program(const struct peer *peer)
{
	for (int i = program_count() - 1; i >= 0; i--)
		if (program_at(i)->epoch && program_at(i)->epoch == peer->epoch)
			return program_at(i);
	return NULL;
}

static void peer_opened(struct peer *peer)
{
	struct wh_peer_info info = { .size = sizeof(info) };

	program_counts.opened++;
	wh_peer_info(peer->peer, &info);
	peer->epoch = info.epoch;
	if (atoi(info.name + strlen("place")) != peer->place)
		sim_fail("names", "place%d led to %s", peer->place, info.name);
}

/* Nobody is told that a peer does not answer before its time. */
static void check_patience(const struct peer *peer, int status)
{
	int64_t took = sim_time - peer->begun;

	/* A registry that does not answer has a time of its own. */
	if (status == -ETIMEDOUT && took < peer->patience && !sim_options.registry)
		sim_fail("patience", "a peer did not answer for %.3f s, and had %.3f s",
			 (double)took / 1e9, (double)peer->patience / 1e9);
}

void peer_open(struct program *program, struct peer *peer)
{
	struct wh_peer_options options = { .size = sizeof(options) };
	int64_t limit = program->timeout > OPEN_TIMEOUT ? program->timeout : OPEN_TIMEOUT;
	struct call call;
	char url[64];
	int rc;

	memset(peer, 0, sizeof(*peer));
	peer->program = program;
	peer->place = (int)sim_draw_work((uint64_t)place_count());
	if (peer->place == program->place && !sim_options.self)
		return;
	program_url(peer->place, url, sizeof(url));
	if (sim_draw_work(2))
		limit = options.timeout = 1 * SIM_MS + (int64_t)sim_draw_work(8 * SIM_SEC);
	/* Who is silent for as long as the setting `timeout` does not answer, either. */
	peer->patience = limit < program->timeout ? limit : program->timeout;
	if (program->queue && sim_draw_work(2)) {
		options.queue = program->queue;
		options.user = (uint64_t)(peer - program->peers);
		limit = 0;
	}
	peer->begun = sim_time;
	call = call_begin(program);
	rc = wh_peer_open(program->engine, url, &options, &peer->peer);
	sim_trace("open peer %ld at place %d: %d %s", (long)(peer - program->peers), peer->place,
		  rc, rc ? wh_error_text() : "");
	call_end(&call, "wh_peer_open", rc, limit);
	check_patience(peer, rc);
	if (rc)
		peer->peer = NULL;
	else if (options.queue)
		peer->opening = true;
	else
		peer_opened(peer);
}

void peer_close(struct peer *peer)
{
	struct program *program = peer->program;
	struct call call;
	int rc;

	for (int i = 0; i < PROGRAM_BATCHES; i++) {
		struct batch *batch = &program->batches[i];

		if (!batch->batch || batch->peer != peer)
			continue;
		batch_cancel(batch);
		batch_free(batch);
	}
	call = call_begin(program);
	rc = wh_peer_close(peer->peer);
	sim_trace("close peer %ld: %d", (long)(peer - program->peers), rc);
	if (rc)
		sim_fail("call", "wh_peer_close = %d: %s", rc, wh_error_text());
	/* It waits while the name is being looked up: there, and back. */
	call_end_with_gpus(&call, "wh_peer_close", rc,
			   (sim_options.registry ? 3 : 1) * program->timeout);
	memset(peer, 0, sizeof(*peer));
}

void peer_check_name(struct program *program, int place)
{
	struct wh_peer *peer;
	char url[64];
	int rc;

	if (place == program->place)
		return;
	program_url(place, url, sizeof(url));
	while ((rc = wh_peer_open(program->engine, url, NULL, &peer))) {
		if (sim_time - program_healed_at > NAMES_MOST)
			sim_fail("names", "%lld s after all was healed %s is not found: %d %s",
				 NAMES_MOST / SIM_SEC, url, rc, wh_error_text());
		program_progress(program, 100 * SIM_MS);
	}
	wh_peer_close(peer);
}

/* ---- questions ------------------------------------------------------------------------------- */

static struct batch *batch_to(struct peer *peer)
{
	for (int i = 0; i < PROGRAM_BATCHES; i++)
		if (peer->program->batches[i].batch && peer->program->batches[i].peer == peer)
			return &peer->program->batches[i];
	return NULL;
}

static void ask_find(struct peer *peer, const struct target *target, int64_t timeout)
{
	struct call call = call_begin(peer->program);
	struct wh_remote remote;
	int rc = wh_peer_find(peer->peer, target->name, timeout, &remote);

	call_end(&call, "wh_peer_find", rc, timeout);
	if (!rc && remote.id != target->remote)
		sim_fail("regions", "wh_peer_find() found another region");
}

static void ask_lookup(struct peer *peer, const struct target *target, int64_t timeout)
{
	uint64_t address = (uint64_t)(uintptr_t)target->memory;
	struct call call = call_begin(peer->program);
	struct wh_remote remote;
	uint64_t offset;
	int rc = wh_peer_lookup(peer->peer, address, 1, timeout, &remote, &offset);

	call_end(&call, "wh_peer_lookup", rc, timeout);
	if (!rc && !target->dead && (remote.id != target->remote || offset))
		sim_fail("regions", "wh_peer_lookup() found another region");
}

static void ask_list(struct peer *peer, int64_t timeout)
{
	struct call call = call_begin(peer->program);
	struct wh_remote remotes[8];
	uint64_t cursor = 0;
	size_t count = 8;
	int rc = wh_peer_list(peer->peer, &cursor, remotes, &count, timeout);

	call_end(&call, "wh_peer_list", rc, timeout);
}

static void ask_prepare(struct peer *peer, const struct target *target, int64_t timeout)
{
	struct batch *batch = sim_draw_work(2) ? batch_to(peer) : NULL;
	struct call call = call_begin(peer->program);
	char text[2000];
	int rc = wh_peer_prepare(peer->peer, batch ? &batch->region : NULL, batch ? 1 : 0,
				 &target->remote, 1, timeout);

	call_end(&call, "wh_peer_prepare", rc, timeout + program_probing());
	if (batch)
		wh_batch_explain(batch->batch, text, sizeof(text));
}

static void ask_measure(struct peer *peer, const struct target *target)
{
	const struct batch *batch = batch_to(peer);
	struct program *program = peer->program;
	struct call call = call_begin(program);
	/* An answer, a plan, the reads, and a cancel. */
	int64_t limit = 2 * PROGRAM_PLANNING + MEASURE_MOST + program->timeout + program_probing();
	int rc;

	if (!batch || sim_draw_work(8))
		return;
	program->measured = true;
	/* It may read a file of this host. */
	if (peer->place == program->place && sim_options.files)
		limit += PROGRAM_DISK;
	rc = wh_peer_measure(peer->peer, batch->region, target->remote);
	call_end(&call, "wh_peer_measure", rc, limit);
}

void peer_ask(struct peer *peer)
{
	const struct program *there = peer_program(peer);
	const struct target *target = there ? there->targets[sim_draw_work(PROGRAM_TARGETS)] : NULL;
	int64_t timeout = sim_draw_work(3) ? (int64_t)sim_draw_work(SIM_SEC) : 0;
	uint64_t what = sim_draw_work(5);

	if (what == 0)
		ask_list(peer, timeout + 1);
	else if (!target)
		return;
	else if (what == 1)
		ask_find(peer, target, timeout);
	else if (what == 2 && !target->file)
		ask_lookup(peer, target, timeout);
	else if (what == 3)
		ask_prepare(peer, target, timeout);
	else
		ask_measure(peer, target);
}

/* ---- queues ---------------------------------------------------------------------------------- */

static void completion_of_peer(struct program *program, const struct wh_completion *got)
{
	struct peer *peer = &program->peers[got->user];

	if (!peer->opening || peer->peer != got->peer)
		sim_fail("queue", "a completion for a peer that was not being opened");
	peer->opening = false;
	sim_trace("peer %d opened: %d", (int)got->user, got->status);
	check_patience(peer, got->status);
	if (!got->status)
		peer_opened(peer);
}

static bool queue_is_readable(const struct program *program)
{
	struct pollfd look = { .fd = wh_queue_fd(program->queue), .events = POLLIN };

	return sim_poll(&look, 1, 0) == 1;
}

void queue_check_busy(struct program *program)
{
	bool used = false;
	int rc;

	for (int i = 0; i < PROGRAM_BATCHES; i++)
		used |= program->batches[i].batch && program->batches[i].queued;
	if (!used)
		return;
	rc = wh_queue_free(program->queue);
	if (rc != -EBUSY)
		sim_fail("queue", "wh_queue_free() = %d of a queue that batches report to", rc);
}

void queue_take(struct program *program, int64_t timeout)
{
	struct wh_completion got[4];
	struct call call = call_begin(program);
	bool readable;
	int count;

	if (!program->queue)
		return;
	readable = sim_options.queue_checks && queue_is_readable(program);
	count = wh_queue_take(program->queue, got, 1 + sim_draw_work(4), timeout);
	call_end(&call, "wh_queue_take", count, timeout);
	if (readable && !count)
		sim_fail("queue", "the queue's descriptor is readable, and nothing is waiting");
	for (int i = 0; i < count; i++) {
		struct batch *batch;

		if (got[i].peer) {
			completion_of_peer(program, &got[i]);
			continue;
		}
		batch = &program->batches[got[i].user];
		if (!batch->queued || !batch->running || batch->batch != got[i].batch)
			sim_fail("queue", "a completion for batch %d, which does not run",
				 (int)got[i].user);
		batch_settle(batch, got[i].status, "queue");
	}
}
