/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport cuda: a few bytes between memory of the host and of a GPU, both of this process. The CPU
 * moves them itself, through the GPU region's window, before a copy engine would have begun: the piece is
 * done when it has been submitted.
 */
#include <errno.h>

#include "core/core.h"
#include "memory/memory.h"
#include "transport/cuda.h"
#include "transport/pane.h"

#define RUNS (WH_PANE_FEW / WH_PANE_RUN)

/* One run with both of its regions entered. */
struct crossing {
	struct wh_place *local, *remote;
	const struct wh_pane *pane; /* of the side that is a GPU's; NULL: there is none, or not one */
	char *host, *window;
	bool put; /* from the host to the GPU */
};

static void leave(struct crossing *crossing)
{
	if (crossing->local)
		wh_place_leave(crossing->local);
	if (crossing->remote)
		wh_place_leave(crossing->remote);
}

static uint64_t local_id(const struct wh_piece *piece, uint64_t index)
{
	return piece->blocks ? piece->blocks->bases[index].local_id :
			       piece->batch->items[index].local_id;
}

/* False: one of them is gone. */
static bool enter(const struct wh_piece *piece, const struct wh_run *run, bool open,
		  struct crossing *out)
{
	struct wh_places *places = &piece->batch->peer->engine->regions;
	bool here;
	struct wh_region *gpu;

	*out = (struct crossing){ .local = wh_place_enter(places, local_id(piece, run->index)),
				  .remote = wh_place_enter(places, run->remote) };
	if (!out->local || !out->remote) {
		leave(out);
		return false;
	}
	here = !wh_kind_on_host(out->local->kind); /* the GPU's side is ours */
	if (here == !wh_kind_on_host(out->remote->kind))
		return true;
	gpu = wh_container(here ? out->local : out->remote, struct wh_region, place);
	out->pane = open ? wh_pane_get(gpu) : wh_pane_peek(gpu);
	if (!out->pane || wh_registration_check(gpu->registration)) {
		out->pane = NULL;
		return true;
	}
	out->put = (piece->op == WH_WRITE) != here;
	out->host = here ? (char *)(uintptr_t)out->remote->address + run->offset : run->local;
	out->window = wh_pane_at(out->pane, here ? (uint64_t)(uintptr_t)run->local :
						   out->remote->address + run->offset);
	return true;
}

/* What a run that counts as so many bytes takes. Loads are as quick as the copy engine at get_most. */
static double time_of(const struct wh_pane *pane, bool put, uint64_t bytes)
{
	const struct wh_window_cost *cost = &pane->cost;

	if (put)
		return cost->window_byte * (double)bytes;
	return (cost->engine + cost->engine_byte * (double)pane->get_most) * (double)bytes /
	       (double)pane->get_most;
}

/* True, with the backend's name in *backend, if all of it goes that way. */
static bool decide(const struct wh_piece *piece, bool open, const char **backend,
		   struct wh_cuda_time *time)
{
	const struct wh_engine *engine = piece->batch->peer->engine;
	uint64_t sum = 0, most = WH_PANE_FEW;
	struct wh_cuda_time total = { .measured = true };
	struct crossing crossing;
	struct wh_cursor at;
	struct wh_run run;

	if (!piece->batch->peer->self || piece->transfers > RUNS || piece->bytes > WH_PANE_FEW ||
	    piece->bytes > (uint64_t)engine->config.number[WH_KNOB_INLINE])
		return false;
	wh_piece_start(piece, &at);
	while (wh_piece_next(piece, &at, UINT64_MAX, &run)) {
		uint64_t limit = 0;

		if (!enter(piece, &run, open, &crossing))
			return false;
		if (crossing.pane) {
			limit = crossing.put ? crossing.pane->put_most : crossing.pane->get_most;
			*backend = crossing.pane->view->backend->name;
			total.measured = total.measured && crossing.pane->measured;
			/* Until the first one has been shown to have arrived. */
			total.ns = total.ns > 0 || !crossing.put ? total.ns : crossing.pane->cost.window;
			total.ns += limit ? time_of(crossing.pane, crossing.put,
						    wh_pane_run(run.length)) :
					    0;
		}
		leave(&crossing);
		most = limit < most ? limit : most;
		sum += wh_pane_run(run.length);
		if (sum > most)
			return false;
	}
	if (time)
		*time = total;
	return true;
}

bool wh_cuda_few_told(const struct wh_piece *piece, bool open, const char **backend,
		      struct wh_cuda_time *time)
{
	return decide(piece, open, backend, time);
}

bool wh_cuda_few(struct wh_piece *piece)
{
	struct wh_pane_flushed flushed = { 0 };
	struct crossing crossings[RUNS];
	unsigned count = 0;
	const char *backend;
	struct wh_cursor at;
	struct wh_run run;

	if (atomic_load(&piece->cancelled) || !decide(piece, true, &backend, NULL))
		return false;
	wh_piece_start(piece, &at);
	while (wh_piece_next(piece, &at, UINT64_MAX, &run)) {
		struct crossing *c = &crossings[count];

		if (!enter(piece, &run, false, c)) {
			wh_piece_fail(piece, run.index, -ESTALE, "region %#llx is gone",
				      (unsigned long long)run.remote);
			continue;
		}
		count++;
		if (!c->pane)
			wh_piece_fail(piece, run.index, -ESTALE, "%s", wh_error_text());
		else if (c->put)
			wh_pane_put(c->pane, c->window, c->host, run.length);
		else
			wh_pane_read(c->pane, c->host, c->window, run.length);
	}
	wh_pane_fence();
	for (unsigned i = 0; i < count; i++) {
		if (crossings[i].pane && crossings[i].put)
			wh_pane_flush_once(&flushed, crossings[i].pane);
		leave(&crossings[i]);
	}
	wh_piece_done(piece);
	return true;
}
