/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport cuda: the initiator's side of fabric handles. It asks the owner for a region's handles
 * over the control connection, and maps what they open.
 *
 * No alive page tells of an owner on another host: the control connection does, by its end or by
 * its heartbeat. Then batches in flight fail, and the imports end as soon as no copy uses them. If
 * the same owner comes back, each import that is left is used again only after the owner has
 * confirmed, in the new session, that it still has the region; so it knows whom to tell when the
 * region goes.
 */
#include "transport/cuda/fabric.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "memory/region-table.h"
#include "memory/region.h"
#include "net/control.h"
#include "transport/core.h"
#include "transport/cuda/cuda.h"
#include "transport/transport.h"
#include "util/clock.h"
#include "util/error.h"
#include "util/turns.h"

/* For the answers to all segments of a region. */
#define ANSWERS_TIMEOUT (10 * WH_SECOND)
/* How often a waiter looks whether the region is going. */
#define WAIT_SLICE (20 * WH_MS)
/* A refusal holds for so long. */
#define ASK_AGAIN (5 * WH_SECOND)
/* How often to look whether copies have left the imports of a lost peer. */
#define SWEEP_PAUSE (10 * WH_MS)
/* And whether a thread that was mapping memory meanwhile has added one. */
#define LATE_PAUSE WH_SECOND
/* Bytes: the least of a segment of GPU memory, except for the first and last of a region. */
#define SEGMENT_MIN 65536

/* An ASK that waits for its answers. Under cuda.lock. */
struct question {
	struct wh_list link; /* wh_fabric_peer.questions */
	uint64_t token;
	uint32_t first; /* segment */
	uint32_t count; /* answers that have come */
	bool complete;
	struct wh_fabric_answer answers[WH_EXPORTS];
};

static struct wh_turns *fabric_turns(const struct wh_cuda_peer *cuda)
{
	return wh_engine_turns(wh_peer_engine(cuda->peer));
}

/* ---- refusals -------------------------------------------------------------------------------- */

/* Has the owner refused the region a moment ago? 0: no. */
static int refusal_find(struct wh_cuda_peer *cuda, uint64_t id, char why[WH_REFUSAL])
{
	int error = 0;

	pthread_mutex_lock(&cuda->lock);
	for (unsigned i = 0; i < WH_FABRIC_REFUSALS && !error; i++) {
		const struct wh_fabric_refusal *refusal = &cuda->fabric.refusals[i];

		if (refusal->id != id || wh_now() > refusal->until)
			continue;
		memcpy(why, refusal->why, WH_REFUSAL);
		error = refusal->error;
	}
	pthread_mutex_unlock(&cuda->lock);
	return error;
}

static void refusal_keep(struct wh_cuda_peer *cuda, uint64_t id, int error, const char *why)
{
	struct wh_fabric_peer *fabric = &cuda->fabric;
	struct wh_fabric_refusal *refusal;

	pthread_mutex_lock(&cuda->lock);
	refusal = &fabric->refusals[fabric->next_refusal++ % WH_FABRIC_REFUSALS];
	refusal->id = id;
	refusal->error = error;
	refusal->until = wh_now() + ASK_AGAIN;
	snprintf(refusal->why, sizeof(refusal->why), "%s", why);
	pthread_mutex_unlock(&cuda->lock);
}

/* ---- asking ---------------------------------------------------------------------------------- */

static int question_send(struct wh_cuda_peer *cuda, uint64_t id, const struct question *question,
			 struct wh_fabric_ask *ask)
{
	uint8_t bytes[WH_FABRIC_ASK_MAX];

	ask->token = question->token;
	ask->id = id;
	ask->segment = question->first;
	return wh_control_send(wh_peer_control(cuda->peer), WH_FRAME_FABRIC_ASK, 0, bytes,
			       wh_fabric_ask_encode(bytes, ask));
}

/* Wait for the answers. Under cuda.lock. */
static int question_wait(struct wh_cuda_peer *cuda, const struct wh_remote_region *region,
			 uint64_t id, const struct question *question, int64_t deadline,
			 char why[WH_REFUSAL])
{
	while (!question->complete) {
		if (cuda->lost) {
			snprintf(why, WH_REFUSAL, "the peer is lost");
			return -ECONNRESET;
		}
		/* The owner removes the region, and waits until we leave it. */
		if (atomic_load(&region->entry.id) != id) {
			snprintf(why, WH_REFUSAL, "region %#llx is gone", (unsigned long long)id);
			return -ESTALE;
		}
		if (wh_now() >= deadline) {
			snprintf(why, WH_REFUSAL, "%.63s does not answer for its fabric handles",
				 wh_peer_name(cuda->peer));
			return -ETIMEDOUT;
		}
		wh_turns_cond_wait(fabric_turns(cuda), &cuda->fabric.changed, &cuda->lock,
				   wh_now() + WAIT_SLICE);
	}
	return 0;
}

/* Ask for the segments from question.first on. */
static int question_ask(struct wh_cuda_peer *cuda, const struct wh_remote_region *region,
			struct question *question, struct wh_fabric_ask *ask, int64_t deadline,
			char why[WH_REFUSAL])
{
	uint64_t id = wh_region_entry_id(&region->entry);
	int error = 0;

	pthread_mutex_lock(&cuda->lock);
	question->token = ++cuda->fabric.tokens;
	question->count = 0;
	question->complete = false;
	wh_list_append(&cuda->fabric.questions, &question->link);
	pthread_mutex_unlock(&cuda->lock);
	if (question_send(cuda, id, question, ask)) {
		snprintf(why, WH_REFUSAL, "the peer is lost");
		error = -ECONNRESET;
	}
	pthread_mutex_lock(&cuda->lock);
	if (!error)
		error = question_wait(cuda, region, id, question, deadline, why);
	wh_list_remove(&question->link);
	pthread_mutex_unlock(&cuda->lock);
	return error;
}

/* Is it the answer that was asked for? */
static bool answer_is_valid(const struct wh_remote_region *region, const struct wh_fabric_ask *ask,
			    const struct wh_fabric_answer *answer, uint32_t index, uint32_t count)
{
	const struct wh_exported *e = &answer->exported;

	if (e->id != wh_region_entry_id(&region->entry))
		return false;
	return e->error || (e->index == index && (!index || e->segments == count) &&
			    e->segments <= region->entry.length / SEGMENT_MIN + 2 &&
			    answer->domain < ask->domain_count);
}

/* The domains of this process's GPUs, each once. */
static void ask_add_domains(struct wh_device_mappings *mappings, struct wh_fabric_ask *ask)
{
	const struct wh_cuda *cuda = wh_gpus_cuda(mappings->gpus);
	struct wh_fabric_domain domain;
	char why[WH_REFUSAL];

	for (unsigned d = 0; d < cuda->device_count && ask->domain_count < WH_FABRIC_DOMAINS; d++) {
		bool known = *cuda->devices[d].skipped ||
			     !wh_fabric_domain_of(mappings, &cuda->devices[d], &domain, why);

		for (uint32_t i = 0; i < ask->domain_count; i++)
			known = known || wh_fabric_domains_equal(&domain, &ask->domains[i]);
		if (!known)
			ask->domains[ask->domain_count++] = domain;
	}
}

int wh_fabric_exports(struct wh_cuda_peer *cuda, struct wh_remote_region *region,
		      int (*each)(void *arg, const struct wh_exported *exported,
				  const struct wh_fabric_domain *domain, char why[WH_REFUSAL]),
		      void *arg, char why[WH_REFUSAL])
{
	int64_t deadline = wh_deadline(ANSWERS_TIMEOUT);
	struct question *question = calloc(1, sizeof(*question));
	struct wh_fabric_ask ask = { .domain_count = 0 };
	uint32_t index = 0, count = 1;
	int error = question ? 0 : -ENOMEM;

	if (error)
		snprintf(why, WH_REFUSAL, "no memory");
	ask_add_domains(cuda->mappings, &ask);
	while (!error && index < count) {
		question->first = index;
		error = question_ask(cuda, region, question, &ask, deadline, why);
		for (uint32_t i = 0; !error && i < question->count; i++, index++) {
			const struct wh_fabric_answer *answer = &question->answers[i];
			const struct wh_exported *e = &answer->exported;

			if (!answer_is_valid(region, &ask, answer, index, count)) {
				snprintf(why, WH_REFUSAL,
					 "the peer's answers for its fabric handles contradict "
					 "each other");
				error = -EPROTO;
			} else if (e->error) {
				snprintf(why, WH_REFUSAL, "%s", e->text);
				error = e->error;
			} else {
				count = e->segments;
				error = each(arg, e, &ask.domains[answer->domain], why);
			}
		}
	}
	free(question);
	return error;
}

/* An answer without a question belongs to a thread that has given up. */
int wh_fabric_peer_frame(struct wh_peer *peer, void *state, const struct wh_frame *frame,
			 const uint8_t *payload)
{
	struct wh_cuda_peer *cuda = state;
	struct wh_fabric_answer answer;
	int error = 0;

	(void)peer;
	if (!cuda || frame->type != WH_FRAME_FABRIC_ANSWER ||
	    wh_fabric_answer_decode(payload, frame->length, &answer))
		return -EPROTO;
	pthread_mutex_lock(&cuda->lock);
	for (struct wh_list *l = cuda->fabric.questions.next; l != &cuda->fabric.questions;
	     l = l->next) {
		struct question *question = wh_container(l, struct question, link);
		const struct wh_exported *e = &answer.exported;

		if (question->token != answer.token)
			continue;
		if (question->complete) {
			error = -EPROTO;
			break;
		}
		question->answers[question->count++] = answer;
		question->complete =
			e->error || e->index + 1 == e->segments || question->count == WH_EXPORTS;
		break;
	}
	pthread_cond_broadcast(&cuda->fabric.changed);
	pthread_mutex_unlock(&cuda->lock);
	return error;
}

/* ---- reaching a region ----------------------------------------------------------------------- */

bool wh_fabric_is_apart(const struct wh_peer *peer)
{
	return !wh_peer_is_self(peer) &&
	       wh_engine_nearness(wh_peer_engine(peer), wh_peer_welcome(peer)) == WH_ELSEWHERE;
}

/* What can be said without asking the owner. 0, or a negative errno with the reason. */
static int remote_check(struct wh_cuda_peer *cuda, const struct wh_region_entry *entry,
			char why[WH_REFUSAL])
{
	struct wh_engine *engine = wh_peer_engine(cuda->peer);
	int error = wh_cuda_ready(wh_gpus_cuda(cuda->mappings->gpus));

	if (entry->kind != WH_MEMORY_VMM) {
		snprintf(why, WH_REFUSAL,
			 "GPUs of different machines share memory of the kind vmm only, in one "
			 "NVLink domain");
		return -EOPNOTSUPP;
	}
	if (error)
		return wh_cuda_refuse(why, error);
	if (wh_engine_inside(engine)) {
		/* The answers arrive on the engine's own threads. */
		snprintf(why, WH_REFUSAL, "it is not mapped yet, and a callback does not wait");
		return -EAGAIN;
	}
	error = wh_fabric_domains_look(cuda->mappings, why);
	if (!error)
		error = wh_fabric_check_setting(engine, why);
	if (!error && !(wh_peer_welcome(cuda->peer)->capabilities & WH_CAPABLE_FABRIC_HOSTS)) {
		snprintf(why, WH_REFUSAL,
			 "%.63s does not share GPU memory with other machines: its Wherry is "
			 "older, or cuda is off there",
			 wh_peer_name(cuda->peer));
		error = -EOPNOTSUPP;
	}
	return error;
}

/* The memory is mapped already: tell the owner on the new connection. */
static int remote_forget_segment(void *arg, const struct wh_exported *exported,
				 const struct wh_fabric_domain *domain, char why[WH_REFUSAL])
{
	(void)arg;
	(void)exported;
	(void)domain;
	(void)why;
	return 0;
}

/* Another thread may have mapped the region at the same time: the first one counts. */
static void remote_publish(struct wh_cuda_peer *cuda, struct wh_device_mapping *mapping)
{
	_Atomic(void *) *slot = &mapping->region->transport[WH_TRANSPORT_CUDA];

	pthread_mutex_lock(&cuda->mappings->lock);
	if (atomic_load(slot)) {
		wh_device_mapping_free(cuda->mappings, mapping);
	} else {
		wh_list_append(&cuda->fabric.imports, &mapping->link);
		atomic_store(slot, mapping);
	}
	pthread_mutex_unlock(&cuda->mappings->lock);
}

static int remote_map(struct wh_cuda_peer *cuda, struct wh_remote_region *region,
		      char why[WH_REFUSAL])
{
	uint32_t generation = atomic_load(&cuda->fabric.generation);
	struct wh_device_mapping *mapping = atomic_load(&region->transport[WH_TRANSPORT_CUDA]);
	int error;

	if (mapping) {
		error = wh_fabric_exports(cuda, region, remote_forget_segment, NULL, why);
		if (!error)
			atomic_store(&mapping->generation, generation);
		return error;
	}
	error = wh_fabric_import(cuda, region, &mapping, why);
	if (error)
		return error;
	atomic_store(&mapping->generation, generation);
	remote_publish(cuda, mapping);
	return 0;
}

int wh_fabric_remote(struct wh_cuda_peer *cuda, struct wh_region_entry *entry,
		     struct wh_device_mapping **out, char why[WH_REFUSAL])
{
	struct wh_remote_region *region = wh_container(entry, struct wh_remote_region, entry);
	/* Sequentially consistent, as import_end() takes it away. */
	struct wh_device_mapping *mapping = atomic_load(&region->transport[WH_TRANSPORT_CUDA]);
	uint64_t id = wh_region_entry_id(entry);
	int error;

	if (!mapping ||
	    atomic_load(&mapping->generation) != atomic_load(&cuda->fabric.generation)) {
		error = remote_check(cuda, entry, why);
		if (!error)
			error = refusal_find(cuda, id, why);
		if (error)
			return error;
		if (!wh_plan_may_linger()) {
			snprintf(why, WH_REFUSAL, "%.63s is still to be asked for its handles",
				 wh_peer_name(cuda->peer));
			return -EINPROGRESS;
		}
		error = remote_map(cuda, region, why);
		if (error && error != -ECONNRESET && error != -ESTALE)
			refusal_keep(cuda, id, error, why);
		if (error)
			return error;
		mapping = atomic_load(&region->transport[WH_TRANSPORT_CUDA]);
	}
	*out = mapping;
	return 0;
}

/* ---- losing the owner; on loop 0 ------------------------------------------------------------- */

/* End the import unless a copy uses its region. The region stays known: its entry is closed for the
 * moment of the look only. Under mappings.lock. */
static void import_end(struct wh_cuda_peer *cuda, struct wh_device_mapping *mapping)
{
	struct wh_region_table *table = wh_peer_regions(cuda->peer);
	struct wh_remote_region *region = mapping->region;
	uint64_t id = wh_region_entry_id(&region->entry);

	if (!wh_region_table_close(table, &region->entry, id))
		return; /* it is going anyway */
	if (wh_region_entry_left(&region->entry, 0)) {
		atomic_store(&region->transport[WH_TRANSPORT_CUDA], NULL);
		wh_device_mapping_free(cuda->mappings, mapping);
	}
	wh_region_table_reopen(table, &region->entry, id);
}

/* End all imports that can be ended. True: some are left. */
static bool imports_sweep(struct wh_cuda_peer *cuda)
{
	struct wh_list *imports = &cuda->fabric.imports, *next;
	bool left;

	pthread_mutex_lock(&cuda->mappings->lock);
	for (struct wh_list *l = imports->next; l != imports; l = next) {
		next = l->next;
		import_end(cuda, wh_container(l, struct wh_device_mapping, link));
	}
	left = !wh_list_empty(imports);
	pthread_mutex_unlock(&cuda->mappings->lock);
	return left;
}

static void imports_sweep_again(struct wh_timer *timer)
{
	struct wh_fabric_peer *fabric = wh_container(timer, struct wh_fabric_peer, sweep);
	struct wh_cuda_peer *cuda = wh_container(fabric, struct wh_cuda_peer, fabric);

	bool left = imports_sweep(cuda);

	wh_timer_set(wh_engine_first_loop(wh_peer_engine(cuda->peer)), timer,
		     wh_now() + (left ? SWEEP_PAUSE : LATE_PAUSE));
}

void wh_fabric_peer_lost(struct wh_cuda_peer *cuda)
{
	bool used;

	pthread_mutex_lock(&cuda->lock);
	used = cuda->fabric.tokens;
	pthread_cond_broadcast(&cuda->fabric.changed);
	pthread_mutex_unlock(&cuda->lock);
	if (used)
		imports_sweep_again(&cuda->fabric.sweep);
}

void wh_fabric_peer_again(struct wh_cuda_peer *cuda)
{
	wh_timer_clear(&cuda->fabric.sweep);
	imports_sweep(cuda);
	pthread_mutex_lock(&cuda->lock);
	memset(cuda->fabric.refusals, 0, sizeof(cuda->fabric.refusals));
	pthread_mutex_unlock(&cuda->lock);
	atomic_fetch_add(&cuda->fabric.generation, 1);
}

void wh_fabric_peer_open(struct wh_cuda_peer *cuda)
{
	pthread_condattr_t clock;

	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&cuda->fabric.changed, &clock);
	pthread_condattr_destroy(&clock);
	wh_list_init(&cuda->fabric.questions);
	wh_list_init(&cuda->fabric.imports);
	cuda->fabric.sweep.fire = imports_sweep_again;
}

void wh_fabric_peer_close(struct wh_cuda_peer *cuda)
{
	wh_timer_clear(&cuda->fabric.sweep);
	pthread_cond_destroy(&cuda->fabric.changed);
}
