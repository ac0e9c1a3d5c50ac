/* SPDX-License-Identifier: Apache-2.0 */
/* core-fake.h: an engine without threads, itself as its peer, and three transports that do what the
 * test says, instead of rdma, shm and tcp */
#ifndef TESTS_UNIT_CORE_FAKE_H
#define TESTS_UNIT_CORE_FAKE_H

#include "unit.h"

#include <errno.h>
#include <stdio.h>

#include <wherry/wherry.h>

#include "core/batch.h"
#include "core/engine.h"
#include "core/peer.h"
#include "core/region.h"
#include "transport/blocks.h"
#include "transport/fragment.h"
#include "transport/transport.h"
#include "util/clock.h"

enum fake_submit {
	FAKE_HOLDS, /* until fake_end() */
	FAKE_ENDS, /* by wh_fragment_done() */
	FAKE_ENDS_AT_ONCE,
	FAKE_FAILS, /* its first transfer, or all with `all` */
	FAKE_REROUTES,
};

static struct fake {
	int reach; /* what is_reachable says */
	const char *why;
	uint64_t only; /* it reaches this region alone; 0: all */
	enum fake_submit on_submit;
	bool all;
	int error; /* of FAIL and REROUTE */
	bool ends_on_cancel, reroutes_on_cancel, ends_on_progress, ends_on_abort;
	int abort_error, prepare_error;
	struct wh_description says;
	struct wh_estimate costs; /* of each batch; duration 0: not known */
	/* What was called: */
	unsigned asked, submitted, cancelled, progressed, aborted, again, closed, prepared;
	struct wh_fragment *held[8];
	unsigned held_count;
} fakes[WH_TRANSPORT_COUNT];

#define RDMA (&fakes[WH_TRANSPORT_RDMA])
#define SHM (&fakes[WH_TRANSPORT_SHM])
#define TCP (&fakes[WH_TRANSPORT_TCP])

static const uint8_t fake_order[] = { WH_TRANSPORT_RDMA, WH_TRANSPORT_SHM, WH_TRANSPORT_TCP };
#define FAKES (sizeof(fake_order) / sizeof(fake_order[0]))

static struct wh_engine *engine;
static struct wh_peer *self;
static struct wh_region *here, *there; /* all of source, all of target */
static char source[1 << 17] __attribute__((aligned(4096)));
static char target[1 << 17] __attribute__((aligned(4096)));

static inline int fake_is_reachable(struct wh_peer *peer, void *state,
				    const struct wh_region *local, struct wh_region_entry *remote,
				    uint32_t op, char why[WH_REFUSAL])
{
	struct fake *fake = state;
	bool other = fake->only && fake->only != wh_region_entry_id(remote);

	(void)peer;
	(void)local;
	(void)op;
	fake->asked++;
	snprintf(why, WH_REFUSAL, "%s", other ? "not this region" : fake->why ? fake->why : "");
	return other ? -EOPNOTSUPP : fake->reach;
}

/* End what is held, oldest first. */
static inline void fake_end(struct fake *fake, int error)
{
	struct wh_fragment *fragment = fake->held[0];

	assert_true(fake->held_count);
	memmove(fake->held, fake->held + 1, --fake->held_count * sizeof(fake->held[0]));
	if (error)
		wh_fragment_fail(fragment, UINT64_MAX, error, "ended by the test");
	wh_fragment_done(fragment);
}

static inline void fake_submit(struct wh_peer *peer, void *state, struct wh_fragment *fragment)
{
	struct fake *fake = state;

	(void)peer;
	fake->submitted++;
	switch (fake->on_submit) {
	case FAKE_HOLDS:
		fake->held[fake->held_count++] = fragment;
		break;
	case FAKE_ENDS:
		wh_fragment_done(fragment);
		break;
	case FAKE_ENDS_AT_ONCE:
		wh_fragment_done_at_once(fragment);
		break;
	case FAKE_FAILS:
		wh_fragment_fail(fragment, fake->all ? UINT64_MAX : fragment->first, fake->error,
				 "refused with %d", fake->error);
		wh_fragment_done(fragment);
		break;
	case FAKE_REROUTES:
		wh_fragment_reroute(fragment, fake->error, fake->why);
		break;
	}
}

static inline void fake_progress(struct wh_peer *peer, void *state, struct wh_batch *batch,
				 int64_t deadline)
{
	struct fake *fake = state;

	(void)peer;
	(void)batch;
	(void)deadline;
	fake->progressed++;
	while (fake->ends_on_progress && fake->held_count)
		fake_end(fake, 0);
}

static inline void fake_cancel(struct wh_peer *peer, void *state, struct wh_fragment *fragment)
{
	struct fake *fake = state;

	(void)peer;
	assert_true(atomic_load(&fragment->cancelled));
	fake->cancelled++;
	if (fake->reroutes_on_cancel) {
		fake->held_count = 0;
		wh_fragment_reroute(fragment, -EIO, "does not want it");
	} else if (fake->ends_on_cancel) {
		fake_end(fake, -ECANCELED);
	}
}

static inline int fake_abort(struct wh_peer *peer, void *state, struct wh_batch *batch,
			     int64_t deadline)
{
	struct fake *fake = state;

	(void)peer;
	(void)batch;
	(void)deadline;
	fake->aborted++;
	while (fake->ends_on_abort && fake->held_count)
		fake_end(fake, -ECANCELED);
	return fake->abort_error;
}

static inline void fake_again(struct wh_batch *batch, void *state)
{
	struct fake *fake = state;

	(void)batch;
	fake->again++;
}

static inline void fake_closed(struct wh_batch *batch, void *state)
{
	struct fake *fake = state;

	(void)batch;
	fake->closed++;
}

static inline int fake_prepare(struct wh_peer *peer, void *state, const struct wh_batch *batch,
			       int64_t deadline, char why[WH_REFUSAL])
{
	struct fake *fake = state;

	(void)peer;
	(void)batch;
	(void)deadline;
	fake->prepared++;
	snprintf(why, WH_REFUSAL, "%s", fake->why ? fake->why : "");
	return fake->prepare_error;
}

static inline void fake_describe(struct wh_peer *peer, void *state, const struct wh_batch *batch,
				 struct wh_description *out)
{
	struct fake *fake = state;
	bool briefly = out->briefly;

	(void)peer;
	(void)batch;
	*out = fake->says;
	out->briefly = briefly;
}

static inline bool fake_estimate(struct wh_peer *peer, enum wh_transport_id id,
				 const struct wh_batch *batch, struct wh_estimate *out)
{
	const struct wh_estimate *costs = &fakes[id].costs;

	(void)peer;
	(void)batch;
	if (!costs->duration)
		return false;
	out->duration += costs->duration;
	out->measured = costs->measured;
	out->age = costs->age > out->age ? costs->age : out->age;
	return true;
}

static struct wh_transport fake_kept[WH_TRANSPORT_COUNT];
static char fake_off[WH_TRANSPORT_COUNT][WH_REFUSAL];

/* The list of transports is in writable memory; const is how the library sees it. */
static inline struct wh_transport *fake_table(unsigned id)
{
	return (struct wh_transport *)(uintptr_t)wh_transport(id);
}

/* fakes_give() opens it. */
static inline int fake_peer_open(struct wh_peer *peer, void **state, char why[WH_REFUSAL])
{
	(void)peer;
	(void)state;
	(void)why;
	return -ENXIO;
}

static inline void fake_peer_close(struct wh_peer *peer, void *state)
{
	(void)peer;
	(void)state;
}

static inline void fakes_replace(void)
{
	memcpy(fake_off, engine->transport_off, sizeof(fake_off));
	memset(fakes, 0, sizeof(fakes));
	memset(engine->not_here, 0, sizeof(engine->not_here));
	memset(engine->transport_off, 0, sizeof(engine->transport_off));
	memset(engine->rank, WH_TRANSPORT_COUNT, sizeof(engine->rank));
	engine->order_count = FAKES;
	for (unsigned i = 0; i < FAKES; i++) {
		unsigned id = fake_order[i];
		struct wh_transport *table = fake_table(id);

		fake_kept[id] = *table;
		/* Defaults, where self has none of its own. */
		*table = *wh_transport(WH_TRANSPORT_SELF);
		table->name = fake_kept[id].name;
		table->role = fake_kept[id].role;
		table->engine_open = NULL;
		table->engine_close = NULL;
		table->peer_open = fake_peer_open;
		table->peer_close = fake_peer_close;
		table->peer_lost = NULL;
		table->peer_again = NULL;
		engine->order[i] = (uint8_t)id;
		engine->rank[id] = (uint8_t)i;
		table->capabilities = WH_CAN_READ | WH_CAN_WRITE | WH_CAN_PROGRESS | WH_CAN_ABORT |
				      (id == WH_TRANSPORT_SHM ? 0 : WH_IS_NETWORKED);
		table->is_reachable = fake_is_reachable;
		table->submit = fake_submit;
		table->progress = fake_progress;
		table->cancel = fake_cancel;
		table->abort = fake_abort;
		table->batch_again = fake_again;
		table->batch_closed = fake_closed;
		table->prepare = fake_prepare;
		table->describe = fake_describe;
		table->estimate = fake_estimate;
	}
}

/* The peer can be reached by the three and no other. */
static inline void fakes_give(struct wh_peer *peer)
{
	for (unsigned id = 0; id < WH_TRANSPORT_COUNT; id++)
		atomic_store(&peer->usable[id], false);
	for (unsigned i = 0; i < FAKES; i++) {
		unsigned id = fake_order[i];

		peer->transport[id] = &fakes[id];
		peer->refused[id][0] = 0;
		peer->not_for[id] = false;
		atomic_store(&peer->opened[id], true);
		atomic_store(&peer->usable[id], true);
	}
	atomic_fetch_add(&peer->plan_version, 1);
}

static inline void fakes_take(struct wh_peer *peer)
{
	for (unsigned i = 0; i < FAKES; i++)
		atomic_store(&peer->opened[fake_order[i]], false);
}

static inline int fake_setup(void **state)
{
	const char *const config[] = { "observe=off", "timeout=1000", NULL };
	const struct wh_engine_options options = {
		.size = sizeof(options),
		.name = "alone",
		.listen = "none",
		.flags = WH_ENGINE_NO_THREADS,
		.config = config,
	};

	(void)state;
	if (wh_engine_open(&options, &engine) || wh_peer_open(engine, "self", NULL, &self) ||
	    wh_region_register(engine, source, sizeof(source), NULL, &here) ||
	    wh_region_register(engine, target, sizeof(target), NULL, &there))
		return -1;
	fakes_replace();
	fakes_give(self);
	return 0;
}

static inline int fake_teardown(void **state)
{
	(void)state;
	fakes_take(self);
	for (unsigned i = 0; i < FAKES; i++)
		*fake_table(fake_order[i]) = fake_kept[fake_order[i]];
	memcpy(engine->transport_off, fake_off, sizeof(fake_off));
	return wh_peer_close(self) || wh_region_unregister(here) || wh_region_unregister(there) ||
	       wh_engine_close(engine);
}

/* A peer that is connected, as far as the core knows: another engine of this machine, with a region
 * of each of the ids that the test opens in it. The transports reach it. */
static inline struct wh_peer *peer_new(const char *name)
{
	struct wh_peer *peer;

	assert_int_equal(wh_peer_new(engine, name, &peer), 0);
	memcpy(peer->welcome.host, engine->identity.host, sizeof(peer->welcome.host));
	peer->welcome.epoch = engine->identity.epoch + 1;
	fakes_give(peer);
	peer->listed = true;
	atomic_store(&peer->state, WH_PEER_CONNECTED);
	return peer;
}

#define PEER_REGION(n) ((UINT64_C(7) << WH_REGION_TABLE_INDEX_BITS) + (n))

static inline struct wh_region_entry *peer_region(struct wh_peer *peer, unsigned n, uint64_t length,
						  uint8_t access)
{
	struct wh_region_entry *entry = wh_region_table_claim(&peer->regions, PEER_REGION(n));

	assert_non_null(entry);
	entry->address = (uint64_t)(n + 1) << 32;
	entry->length = length;
	entry->access = access;
	entry->kind = WH_MEMORY_PAGEABLE;
	assert_int_equal(wh_region_table_publish(&peer->regions, entry, PEER_REGION(n)), 0);
	return entry;
}

static inline void peer_drop(struct wh_peer *peer)
{
	fakes_take(peer);
	wh_peer_free(peer);
}

static inline struct wh_batch *batch_new(void)
{
	struct wh_batch *batch;

	assert_int_equal(wh_batch_new(self, NULL, &batch), 0);
	return batch;
}

static inline struct wh_transfer transfer_of(uint32_t op, uint64_t at, uint64_t length)
{
	return (struct wh_transfer){
		.local = here,
		.local_offset = at,
		.remote = wh_region_id(there),
		.remote_offset = at,
		.length = length,
		.op = op,
	};
}

static inline void add(struct wh_batch *batch, uint32_t op, uint64_t at, uint64_t length)
{
	struct wh_transfer transfer = transfer_of(op, at, length);

	assert_int_equal(wh_batch_add(batch, &transfer, 1), 0);
}

/* A batch of one write of `length` bytes. */
static inline struct wh_batch *batch_of(uint64_t length)
{
	struct wh_batch *batch = batch_new();

	add(batch, WH_WRITE, 0, length);
	return batch;
}

static inline void drop_batch(struct wh_batch *batch)
{
	assert_int_equal(wh_batch_free(batch), 0);
}

/* What the library has logged since fake_logs(), a line each. */
static char fake_log[4096];

static inline void fake_log_line(void *at, const struct wh_log_record *record)
{
	size_t used = strlen(fake_log);

	(void)at;
	snprintf(fake_log + used, sizeof(fake_log) - used, "%u %s: %s\n", record->level,
		 record->area, record->text);
}

static inline void fake_logs(void)
{
	fake_log[0] = 0;
	engine->log = (struct wh_log){ fake_log_line, NULL, WH_LOG_DEBUG, NULL };
}

/* It has logged this, as "1 area: text" with the level in front. */
static inline void logged(const char *text)
{
	if (!strstr(fake_log, text))
		fail_msg("\"%s\" is not in \"%s\"", text, fake_log);
}

static inline void said(const char *text)
{
	if (!strstr(wh_error_text(), text))
		fail_msg("\"%s\" is not in \"%s\"", text, wh_error_text());
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, fake_setup, fake_teardown)

#endif
