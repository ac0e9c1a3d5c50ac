/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions of ours as NICs know them, and the keys of a peer's.
 *
 * A region is registered with a NIC when it is first used with it, by us or for a peer, and stays so until
 * it is unregistered. All of a peer's connections reach it by the same keys, which only those are told
 * that have a session; taking the region back takes the keys back.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/rdma.h"
#include "util/clock.h"
#include "wire/bytes.h"

#define JOBS_MOST 4096u
#define ASK_AGAIN (5 * WH_SECOND) /* after a refusal */

/* ---- registering ------------------------------------------------------------------------------- */

struct rdma_memory *rdma_registered(const struct wh_region *region, const struct rdma_nic *nic)
{
	struct rdma_memory *memory = atomic_load_explicit(&region->rdma, memory_order_acquire);

	while (memory && memory->nic != nic)
		memory = memory->next;
	return memory;
}

static void release(struct rdma_memory *memory)
{
	const struct wh_verbs *verbs = memory->nic->rdma->verbs;

	while (memory->count)
		verbs->dereg_mr(memory->mrs[--memory->count]);
	free(memory);
}

static int refuse(const struct rdma_nic *nic, const struct wh_region *region, int error,
		  char why[WH_REFUSAL])
{
	const char *hint = error == ENOMEM ? "; raise ulimit -l (memlock)" :
			   error == EFAULT ? "; it is not, or not all, mapped" :
					     "";

	snprintf(why, WH_REFUSAL, "%.40s cannot register region %#llx (%llu bytes at %#llx): %s%s",
		 nic->name, (unsigned long long)wh_place_id(&region->place),
		 (unsigned long long)region->place.length, (unsigned long long)region->place.address,
		 strerror(error), hint);
	return -error;
}

static int rights_of(const struct wh_region *region)
{
	int rights = IBV_ACCESS_LOCAL_WRITE;

	if (region->place.access & WH_ACCESS_READ)
		rights |= IBV_ACCESS_REMOTE_READ;
	if (region->place.access & WH_ACCESS_WRITE)
		rights |= IBV_ACCESS_REMOTE_WRITE;
	return rights;
}

/* Register all chunks. 0 or an errno. */
static int fill(struct rdma_memory *memory, const struct wh_region *region, uint32_t count, int rights)
{
	const struct rdma_nic *nic = memory->nic;
	uint64_t left = region->place.length;
	char *at = (char *)(uintptr_t)region->place.address;
	int error;

	for (; memory->count < count; at += memory->chunk, left -= memory->chunk) {
		struct ibv_mr *mr = nic->rdma->verbs->reg_mr(
			nic->pd, at, left < memory->chunk ? left : memory->chunk, rights);

		error = errno;
		if (mr) {
			memory->mrs[memory->count++] = mr;
			continue;
		}
		while (memory->count)
			nic->rdma->verbs->dereg_mr(memory->mrs[--memory->count]);
		return error ? error : EIO;
	}
	return 0;
}

/* Under rdma.register_lock. */
static int register_now(struct rdma_nic *nic, struct wh_region *region, struct rdma_memory **out,
			char why[WH_REFUSAL])
{
	uint64_t count = (region->place.length - 1) / nic->chunk + 1;
	int rights = rights_of(region), error;
	struct rdma_memory *memory;

	if (count > WH_RDMA_KEYS_MAX)
		return refuse(nic, region, EFBIG, why);
	memory = calloc(1, sizeof(*memory) + count * sizeof(memory->mrs[0]));
	if (!memory)
		return refuse(nic, region, ENOMEM, why);
	memory->nic = nic;
	memory->chunk = nic->chunk;
	memory->writable = true;
	error = fill(memory, region, (uint32_t)count, rights);
	if (error && error != ENOMEM && !(rights & IBV_ACCESS_REMOTE_WRITE)) {
		/* Memory that can only be read is good for that. */
		memory->writable = false;
		error = fill(memory, region, (uint32_t)count, rights & ~IBV_ACCESS_LOCAL_WRITE);
	}
	if (error) {
		free(memory);
		return refuse(nic, region, error, why);
	}
	memory->distance = rdma_distance(nic, region); /* its pages are there now */
	memory->next = atomic_load_explicit(&region->rdma, memory_order_relaxed);
	atomic_store_explicit(&region->rdma, memory, memory_order_release);
	*out = memory;
	return 0;
}

int rdma_register(struct rdma_nic *nic, struct wh_region *region, struct rdma_memory **out,
		  char why[WH_REFUSAL])
{
	struct rdma_memory *memory = rdma_registered(region, nic);
	int error = 0;

	if (!memory) {
		pthread_mutex_lock(&nic->rdma->register_lock);
		memory = rdma_registered(region, nic);
		if (!memory)
			error = register_now(nic, region, &memory, why);
		pthread_mutex_unlock(&nic->rdma->register_lock);
	}
	if (!error)
		*out = memory;
	return error;
}

/* No batch uses it, and nobody registers it: it has been closed. */
void rdma_region_closed(struct wh_engine *engine, void *state, struct wh_region *region)
{
	struct rdma_memory *memory = atomic_exchange(&region->rdma, NULL), *next;

	(void)engine;
	(void)state;
	for (; memory; memory = next) {
		next = memory->next;
		release(memory);
	}
}

/* ---- keys of a peer's regions -------------------------------------------------------------------- */

struct rdma_keys *rdma_keys_of(const struct wh_remote_region *region, uint32_t nic)
{
	struct rdma_keys *keys = atomic_load_explicit(&region->rdma, memory_order_acquire);

	while (keys && keys->nic != nic)
		keys = keys->next;
	return keys;
}

/* Nobody is inside. Must work without the transport's state for the peer. */
void rdma_region_gone(struct wh_peer *peer, void *state, struct wh_remote_region *region)
{
	struct rdma_keys *keys = atomic_exchange(&region->rdma, NULL), *next;

	(void)peer;
	(void)state;
	for (; keys; keys = next) {
		next = keys->next;
		free(keys);
	}
}

/* Inside the region. Answers are kept until the region goes, for others may be reading them; a later one
 * stands before them. */
static int keep(struct wh_remote_region *region, const struct wh_rdma_keyed *keyed)
{
	struct rdma_keys *keys = calloc(1, sizeof(*keys) + keyed->count * sizeof(keys->keys[0]));

	if (!keys)
		return -ENOMEM;
	keys->nic = keyed->nic;
	keys->error = keyed->error;
	memcpy(keys->why, keyed->text, strnlen(keyed->text, sizeof(keys->why) - 1));
	keys->until = wh_now() + ASK_AGAIN;
	keys->chunk = keyed->chunk;
	keys->count = keyed->count;
	for (uint32_t i = 0; i < keyed->count; i++)
		keys->keys[i] = wh_get32(keyed->keys + 4 * (size_t)i);
	keys->next = atomic_load_explicit(&region->rdma, memory_order_relaxed);
	atomic_store_explicit(&region->rdma, keys, memory_order_release);
	return 0;
}

int rdma_keyed(struct wh_peer *peer, const struct wh_rdma_keyed *keyed)
{
	struct wh_place *place = wh_place_enter(&peer->regions, keyed->id);
	struct wh_remote_region *region = wh_container(place, struct wh_remote_region, place);
	struct rdma_keys *known;
	int error = 0;

	if (!place)
		return 0; /* it has gone meanwhile */
	known = rdma_keys_of(region, keyed->nic);
	if (!keyed->error && (place->length - 1) / keyed->chunk + 1 != keyed->count)
		error = -EPROTO;
	else if (!known || (known->error && wh_now() > known->until)) /* several may have asked */
		error = keep(region, keyed);
	wh_place_leave(place);
	return error;
}

/* ---- the worker ---------------------------------------------------------------------------------- */

/* One region to be registered for a peer. Pinning takes too long for loop 0, where the answer is sent. */
struct rdma_job {
	struct wh_list link;
	struct wh_task answer;
	struct rdma *rdma;
	uint64_t session, id;
	char peer[WH_NAME_MAX]; /* the session's */
	uint32_t nic;
	struct wh_rdma_keyed keyed;
	uint32_t *keys; /* keyed.count of them */
};

static void job_free(struct rdma_job *job)
{
	free(job->keys);
	free(job);
}

/* On loop 0. */
static void answer(struct wh_task *task)
{
	struct rdma_job *job = wh_container(task, struct rdma_job, answer);
	struct wh_session *session = wh_session_find(job->rdma->engine, job->session);
	size_t room = WH_RDMA_KEYED_HEAD + WH_REFUSAL_MAX + 4 * (size_t)job->keyed.count, length;
	uint8_t *bytes = session ? malloc(room) : NULL;

	if (bytes) {
		length = wh_rdma_keyed_encode(bytes, &job->keyed);
		for (uint32_t i = 0; i < job->keyed.count; i++, length += 4)
			wh_put32(bytes + length, job->keys[i]);
		wh_control_send(&session->control, WH_FRAME_RDMA_KEYED, 0, bytes, length);
	}
	free(bytes);
	pthread_mutex_lock(&job->rdma->jobs_lock);
	job->rdma->job_count--;
	pthread_mutex_unlock(&job->rdma->jobs_lock);
	job_free(job);
}

static int look_up(struct rdma_job *job, char why[WH_REFUSAL])
{
	struct wh_place *place = wh_place_enter(&job->rdma->engine->regions, job->id);
	struct wh_region *region = wh_container(place, struct wh_region, place);
	struct rdma_memory *memory = NULL;
	uint8_t access = place ? wh_region_access(region, job->peer) : WH_ACCESS_NONE;
	int error = 0;

	if (!place || (access & WH_ACCESS_NONE)) {
		snprintf(why, WH_REFUSAL, "region %#llx is not published any more",
			 (unsigned long long)job->id);
		error = -ESTALE;
	} else if (!wh_kind_on_host(place->kind)) {
		snprintf(why, WH_REFUSAL, "a GPU's memory is not registered with NICs");
		error = -EOPNOTSUPP;
	} else if (access != place->access) {
		/* There is one key for all. */
		snprintf(why, WH_REFUSAL, "other peers have more rights to it, so it has no key");
		error = -EOPNOTSUPP;
	} else {
		error = rdma_register(job->rdma->nics[job->nic], region, &memory, why);
	}
	if (!error) {
		job->keys = calloc(memory->count, sizeof(job->keys[0]));
		error = job->keys ? 0 : -ENOMEM;
		if (error)
			snprintf(why, WH_REFUSAL, "no memory");
	}
	for (uint32_t i = 0; !error && i < memory->count; i++)
		job->keys[i] = memory->mrs[i]->rkey;
	if (!error) {
		job->keyed.chunk = memory->chunk;
		job->keyed.count = memory->count;
	}
	if (place)
		wh_place_leave(place);
	return error;
}

static void *work(void *argument)
{
	struct rdma *rdma = argument;
	struct rdma_job *job;

	pthread_mutex_lock(&rdma->jobs_lock);
	while (!rdma->stop) {
		char why[WH_REFUSAL] = "";

		if (wh_list_empty(&rdma->jobs)) {
			pthread_cond_wait(&rdma->jobs_come, &rdma->jobs_lock);
			continue;
		}
		job = wh_container(wh_list_take(&rdma->jobs), struct rdma_job, link);
		pthread_mutex_unlock(&rdma->jobs_lock);
		job->keyed.id = job->id;
		job->keyed.nic = job->nic;
		job->keyed.error = look_up(job, why);
		snprintf(job->keyed.text, sizeof(job->keyed.text), "%s", why);
		wh_loop_post(&rdma->engine->loops[0], &job->answer);
		pthread_mutex_lock(&rdma->jobs_lock);
	}
	pthread_mutex_unlock(&rdma->jobs_lock);
	return NULL;
}

int rdma_serve_keys(struct wh_session *session, uint32_t nic, uint64_t id)
{
	struct rdma *rdma = session->engine->transport[WH_TRANSPORT_RDMA];
	struct rdma_job *job;
	bool full;

	if (nic >= rdma->nic_count)
		return -EPROTO;
	job = calloc(1, sizeof(*job));
	if (!job)
		return -ENOMEM;
	job->rdma = rdma;
	job->answer.run = answer;
	job->session = session->id;
	memcpy(job->peer, session->hello.name, sizeof(job->peer));
	job->id = id;
	job->nic = nic;
	pthread_mutex_lock(&rdma->jobs_lock);
	full = rdma->job_count++ >= JOBS_MOST;
	if (!full && !rdma->working)
		rdma->working = !pthread_create(&rdma->worker, NULL, work, rdma);
	full = full || !rdma->working;
	if (!full) {
		wh_list_append(&rdma->jobs, &job->link);
		pthread_cond_signal(&rdma->jobs_come);
	}
	pthread_mutex_unlock(&rdma->jobs_lock);
	if (full) {
		job->keyed = (struct wh_rdma_keyed){ .id = id, .nic = nic, .error = -EBUSY,
						     .text = "too many regions are being registered" };
		answer(&job->answer);
	}
	return 0;
}

static void flushed(void *argument)
{
	(void)argument;
}

void rdma_worker_stop(struct rdma *rdma)
{
	pthread_mutex_lock(&rdma->jobs_lock);
	rdma->stop = true;
	pthread_cond_signal(&rdma->jobs_come);
	pthread_mutex_unlock(&rdma->jobs_lock);
	if (rdma->working)
		pthread_join(rdma->worker, NULL);
	/* Answers that have been handed to loop 0 are before this. */
	wh_loop_call(&rdma->engine->loops[0], flushed, NULL);
	while (!wh_list_empty(&rdma->jobs))
		job_free(wh_container(wh_list_take(&rdma->jobs), struct rdma_job, link));
}
