/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/region-window.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <wherry/error.h>

#include "gpu/stream.h"
#include "memory/memory.h"
#include "transport/cuda/cuda.h"

/* What has gone through a slot is in place when the GPU's word has been seen, and the receiving
 * thread has been woken: at least so many ns. */
#define HAND_OVER 5000

_Static_assert(WH_SLOT >= WH_WINDOW_PROBE, "a slot is room for the probe");

/* ---- which way ---------------------------------------------------------------------------------
 */

/* Up to how many bytes is the first way the faster one? Both cost a price and so much a byte. */
static uint64_t meet(double price, double byte, double price2, double byte2)
{
	double bytes;

	if (price >= price2)
		return 0;
	if (byte <= byte2)
		return UINT64_MAX;
	bytes = (price2 - price) / (byte - byte2);
	return bytes < (double)INT64_MAX ? (uint64_t)bytes : UINT64_MAX;
}

static void choose(struct wh_region_window *pane, const struct wh_window_cost *cost)
{
	size_t engine = wh_windows_threshold(pane->view);
	double ring = cost->engine + HAND_OVER;

	pane->receive_most =
		meet(cost->window, cost->window_byte, ring, cost->engine_byte + cost->host_byte);
	/* While one slot is copied by the engine, the next one is received. */
	if (pane->receive_most > WH_SLOT)
		pane->receive_most =
			meet(cost->window, cost->window_byte,
			     ring + cost->engine_byte * (double)WH_SLOT, cost->host_byte);
	pane->cost = *cost;
	pane->measured = cost->measured;
	pane->put_most = meet(cost->window, cost->window_byte, cost->engine, cost->engine_byte);
	pane->put_most =
		pane->put_most < WH_REGION_WINDOW_FEW ? pane->put_most : WH_REGION_WINDOW_FEW;
	pane->get_most = engine < WH_REGION_WINDOW_FEW ? engine : WH_REGION_WINDOW_FEW;
}

/* ---- opening and closing -----------------------------------------------------------------------
 */

/* Whose memory it is that a pane is wanted for. */
struct wanted {
	struct wh_engine *engine;
	const struct wh_region_entry *place;
	uint64_t address; /* as CUDA calls it in this process */
	bool foreign; /* another process's */
	int (*ask)(void *arg, struct wh_cuda_objects *out);
	void *arg;
};

/* What the owner of foreign memory says when it is asked. */
struct answer {
	char why[WH_REFUSAL]; /* no window opens without */
	int error; /* 0: it has sent `objects` */
	char text[WH_REFUSAL];
	struct wh_cuda_objects sent;
	struct wh_view_object objects[WH_CUDA_OBJECTS];
};

/* `answer`: NULL if nobody has been asked. */
static int open_window(const struct wanted *wanted, const struct answer *answer,
		       struct wh_region_window *pane)
{
	struct wh_engine *engine = wanted->engine;
	const char *order = engine->config.text[WH_SETTING_WINDOW];
	struct wh_view_request request = { .address = wanted->address,
					   .length = wanted->place->length,
					   .order = order,
					   .foreign = wanted->foreign,
					   .holds = true,
					   .map = true };
	struct wh_windows *windows;
	struct wh_window_cost cost;
	struct wh_slot *slot;
	int error;

	if (!strcmp(order, WH_WINDOW_OFF))
		return wh_fail(EOPNOTSUPP, "windows are switched off by the knob window");
	if (answer && answer->error)
		return wh_fail(-answer->error, "%.90s; its owner: %.90s", answer->why,
			       answer->text);
	if (answer) {
		request.objects = answer->objects;
		request.object_count = answer->sent.count;
	}
	error = wh_windows_of(engine, &windows);
	if (!error)
		error = wh_view_open(windows, &request, &pane->view);
	if (error)
		return error;
	if (!pane->view->base) {
		wh_view_close(pane->view);
		pane->view = NULL;
		return wh_fail(EOPNOTSUPP, "the knob window is %s, which has no mapping", order);
	}
	wh_count_add(&engine->tally.windows_opened, 1);
	wh_count_add(&engine->tally.panes, 1);
	pane->address = wanted->place->address;
	pane->base = wh_view_at(pane->view, wanted->address);
	slot = wh_slots_prepare(engine->gpus, WH_SLOT_SERVES) ?
		       NULL :
		       wh_slot_take(engine->gpus, WH_SLOT_SERVES, NULL);
	wh_windows_cost(windows, pane->view->device, order, slot ? slot->host : NULL, &cost);
	if (slot)
		wh_slot_give(engine->gpus, slot);
	choose(pane, &cost);
	if (wanted->foreign) /* its owner receives */
		pane->receive_most = 0;
	return 0;
}

/* Under engine.pane_lock. */
static struct wh_region_window *make(const struct wanted *wanted, const struct answer *answer)
{
	struct wh_region_window *pane = calloc(1, sizeof(*pane));

	if (!pane)
		return NULL;
	if (wanted->place->kind == WH_MEMORY_MANAGED)
		snprintf(pane->refused, sizeof(pane->refused),
			 "managed memory moves between host and GPU by itself");
	else if (open_window(wanted, answer, pane))
		snprintf(pane->refused, sizeof(pane->refused), "%.*s", WH_REFUSAL - 1,
			 wh_error_text());
	return pane;
}

static bool tell(const struct wh_region_window *pane, char *line, size_t size)
{
	char most[80] = "";

	if (!pane)
		return false;
	if (!pane->view) {
		snprintf(line, size, "no CPU window: %s", pane->refused);
		return true;
	}
	if (pane->receive_most == UINT64_MAX)
		snprintf(most, sizeof(most), "for received requests of any length; ");
	else if (pane->receive_most)
		snprintf(most, sizeof(most), "for received requests of up to %llu bytes; ",
			 (unsigned long long)pane->receive_most);
	snprintf(line, size,
		 "CPU window (%s): %sthe CPU itself writes up to %llu bytes and reads up to %llu%s",
		 pane->view->backend->name, most, (unsigned long long)pane->put_most,
		 (unsigned long long)pane->get_most, pane->measured ? "" : "; not measured");
	return true;
}

/* Is its owner worth asking, before it is refused for good? */
static bool is_to_ask(const struct wanted *wanted, const struct wh_region_window *pane)
{
	struct wh_windows *windows;

	return pane && !pane->view && wanted->ask && !wh_windows_of(wanted->engine, &windows) &&
	       wh_windows_imports(windows, wanted->engine->config.text[WH_SETTING_WINDOW]);
}

/* Open it, if nobody has meanwhile. NULL: no memory, or, with the reason in ask->why, `ask` the
 * owner. */
static struct wh_region_window *install(struct wh_region_window *_Atomic *kept,
					const struct wanted *wanted, const struct answer *answer,
					struct answer *ask)
{
	char line[WH_REFUSAL + 32];
	struct wh_region_window *pane;
	bool made = false;

	pthread_mutex_lock(&wanted->engine->pane_lock);
	pane = atomic_load(kept);
	if (!pane) {
		pane = make(wanted, answer);
		made = pane;
		if (ask && is_to_ask(wanted, pane)) {
			memcpy(ask->why, pane->refused, sizeof(ask->why));
			free(pane);
			pane = NULL;
			made = false;
		}
		atomic_store_explicit(kept, pane, memory_order_release);
	}
	pthread_mutex_unlock(&wanted->engine->pane_lock);
	if (made && tell(pane, line, sizeof(line)))
		wh_engine_log(wanted->engine, "region %#llx%s: %s",
			      (unsigned long long)wh_region_entry_id(wanted->place),
			      wanted->foreign ? " of a peer" : "", line);
	return pane;
}

/* The owner is asked under no lock, for it may be waiting for us. */
static struct wh_region_window *install_foreign(struct wh_region_window *_Atomic *kept,
						const struct wanted *wanted)
{
	struct answer *answer = calloc(1, sizeof(*answer));
	struct wh_region_window *pane;

	if (!answer)
		return NULL;
	pane = install(kept, wanted, NULL, answer);
	if (!pane && *answer->why) {
		answer->error = wanted->ask(wanted->arg, &answer->sent);
		if (answer->error)
			snprintf(answer->text, sizeof(answer->text), "%.*s", WH_REFUSAL - 1,
				 wh_error_text());
		for (unsigned i = 0; i < answer->sent.count; i++)
			answer->objects[i] = (struct wh_view_object){ answer->sent.fd[i],
								      answer->sent.offset[i] };
		pane = install(kept, wanted, answer, NULL);
		while (answer->sent.count)
			close(answer->sent.fd[--answer->sent.count]);
	}
	free(answer);
	return pane;
}

static const struct wh_region_window *get(struct wh_region_window *_Atomic *kept,
					  const struct wanted *wanted)
{
	struct wh_region_window *pane = atomic_load_explicit(kept, memory_order_acquire);

	if (!pane)
		pane = wanted->foreign ? install_foreign(kept, wanted) :
					 install(kept, wanted, NULL, NULL);
	return pane && pane->view ? pane : NULL;
}

static void close_pane(struct wh_engine *engine, struct wh_region_window *_Atomic *kept)
{
	struct wh_region_window *pane;

	/* Somebody may be explaining. */
	pthread_mutex_lock(&engine->pane_lock);
	pane = atomic_exchange(kept, NULL);
	pthread_mutex_unlock(&engine->pane_lock);
	if (pane && pane->view) {
		/* Others may have written last: nothing of it is to arrive after this. */
		wh_region_window_flush(pane);
		wh_view_close(pane->view);
		wh_count_add(&engine->tally.panes, UINT64_MAX);
	}
	free(pane);
}

/* ---- a region of ours --------------------------------------------------------------------------
 */

const struct wh_region_window *wh_region_window_get(struct wh_region *region)
{
	return get(&region->pane, &(struct wanted){ .engine = region->engine,
						    .place = &region->place,
						    .address = region->place.address });
}

const struct wh_region_window *wh_region_window_peek(const struct wh_region *region)
{
	const struct wh_region_window *pane =
		atomic_load_explicit(&region->pane, memory_order_acquire);

	return pane && pane->view ? pane : NULL;
}

bool wh_region_window_describe(const struct wh_region *region, char *line, size_t size)
{
	return tell(atomic_load_explicit(&region->pane, memory_order_acquire), line, size);
}

void wh_region_window_close(struct wh_region *region)
{
	close_pane(region->engine, &region->pane);
}

/* ---- a peer's ----------------------------------------------------------------------------------
 */

const struct wh_region_window *
wh_region_window_get_remote(struct wh_engine *engine, struct wh_remote_region *region,
			    uint64_t address, int (*ask)(void *arg, struct wh_cuda_objects *out),
			    void *arg)
{
	return get(&region->pane, &(struct wanted){ .engine = engine,
						    .place = &region->place,
						    .address = address,
						    .foreign = true,
						    .ask = ask,
						    .arg = arg });
}

const struct wh_region_window *wh_region_window_peek_remote(const struct wh_remote_region *region)
{
	const struct wh_region_window *pane =
		atomic_load_explicit(&region->pane, memory_order_acquire);

	return pane && pane->view ? pane : NULL;
}

bool wh_region_window_describe_remote(const struct wh_remote_region *region, char *line,
				      size_t size)
{
	return tell(atomic_load_explicit(&region->pane, memory_order_acquire), line, size);
}

void wh_region_window_close_remote(struct wh_engine *engine, struct wh_remote_region *region)
{
	if (atomic_load(&region->pane))
		close_pane(engine, &region->pane);
}
