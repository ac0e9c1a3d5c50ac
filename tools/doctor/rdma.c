/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Write and read GPU memory through a NIC. Two engines of this process use that NIC only: one reads
 * bytes of the other's host memory into GPU memory, writes them back, and they must be the same.
 * The same is done with host memory first: if that fails, the GPU is not the cause.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <wherry/wherry.h>

#include "doctor/doctor.h"
#include "util/text.h"

#define BYTES ((size_t)1 << 20)
/* Seconds for a pair of NIC and GPU: with less it is not tried. */
#define PAIR_LEAST 0.1
#define PAIR_MOST 1.0

struct proof {
	struct wh_engine *owner, *engine;
	struct wh_peer *peer;
	unsigned char *theirs; /* host memory of `owner`: the source, then the destination */
	struct wh_region *region;
	struct wh_remote remote;
	int64_t wait; /* ns, for one transfer */
};

static struct wh_engine *proof_engine(const char *nic, const char *listen, char why[DOCTOR_WHY])
{
	char rdma[96];
	const char *config[] = { "transports=rdma", "require=rdma", "verbs=libibverbs.so.1",
				 "observe=off",     "registry=p2p", "rdma_gpu=dmabuf,peermem",
				 "timeout=1000",    rdma,           NULL };
	struct wh_engine_options options = { .size = sizeof(options),
					     .listen = listen,
					     .config = config };
	struct wh_engine *engine = NULL;

	snprintf(rdma, sizeof(rdma), "rdma=%s", nic);
	if (wh_engine_open(&options, &engine))
		snprintf(why, DOCTOR_WHY, "%s", wh_error_text());
	return engine;
}

static void proof_close(struct proof *proof)
{
	if (proof->peer)
		wh_peer_close(proof->peer);
	if (proof->region)
		wh_region_unregister(proof->region);
	if (proof->theirs)
		wh_memory_free(proof->owner, proof->theirs);
	if (proof->engine)
		wh_engine_close(proof->engine);
	if (proof->owner)
		wh_engine_close(proof->owner);
}

static int proof_open(struct proof *proof, const char *nic, char why[DOCTOR_WHY])
{
	struct wh_memory_options host = { .size = sizeof(host), .kind = WH_MEMORY_PAGEABLE };
	struct wh_region_options named = { .size = sizeof(named),
					   .name = "doctor",
					   .access = WH_ACCESS_READ | WH_ACCESS_WRITE };
	void *memory;
	int error;

	proof->owner = proof_engine(nic, "127.0.0.1:0", why);
	proof->engine = proof->owner ? proof_engine(nic, "none", why) : NULL;
	if (!proof->engine)
		return -ENODEV;
	error = wh_memory_alloc(proof->owner, 2 * BYTES, &host, &memory);
	if (!error) {
		proof->theirs = memory;
		for (size_t i = 0; i < BYTES; i++)
			proof->theirs[i] = (unsigned char)(i * 7 + i / 251);
		error = wh_region_register(proof->owner, memory, 2 * BYTES, &named, &proof->region);
	}
	if (!error)
		error = wh_peer_open(proof->engine, wh_engine_url(proof->owner), NULL,
				     &proof->peer);
	if (!error)
		error = wh_peer_find(proof->peer, "doctor", proof->wait, &proof->remote);
	if (error)
		snprintf(why, DOCTOR_WHY, "%s", wh_error_text());
	return error;
}

static int proof_transfer(struct proof *proof, struct wh_region *local, uint32_t op,
			  char why[DOCTOR_WHY])
{
	struct wh_transfer all = { .local = local,
				   .remote = proof->remote.id,
				   .op = op,
				   .length = BYTES,
				   .remote_offset = op == WH_WRITE ? BYTES : 0 };
	struct wh_batch *batch;
	int error = wh_batch_new(proof->peer, NULL, &batch);

	if (error) {
		snprintf(why, DOCTOR_WHY, "%s", wh_error_text());
		return error;
	}
	error = wh_batch_add(batch, &all, 1);
	if (!error)
		error = wh_batch_submit(batch);
	if (error) {
		snprintf(why, DOCTOR_WHY, "%s", wh_error_text());
	} else {
		error = wh_batch_wait_for(batch, proof->wait);
		if (error == -EAGAIN) {
			wh_batch_cancel(batch);
			snprintf(why, DOCTOR_WHY, "not done in %g s", (double)proof->wait / 1e9);
			error = -ETIMEDOUT;
		} else if (!error) {
			error = wh_batch_status(batch);
			if (error)
				snprintf(why, DOCTOR_WHY, "%s", wh_batch_error_text(batch));
		}
	}
	wh_batch_free(batch);
	return error;
}

/* Read into memory of a kind and write back from it. 0, or a positive errno. */
static int proof_round_trip(struct proof *proof, uint32_t kind, const char *location,
			    char why[DOCTOR_WHY])
{
	struct wh_memory_options options = { .size = sizeof(options),
					     .kind = kind,
					     .location = location };
	struct wh_region *region;
	void *memory;
	int error = wh_memory_alloc(proof->engine, BYTES, &options, &memory);

	if (error) {
		snprintf(why, DOCTOR_WHY, "%s", wh_error_text());
		return -error;
	}
	memset(proof->theirs + BYTES, 0, BYTES);
	error = wh_region_register(proof->engine, memory, BYTES, NULL, &region);
	if (error) {
		snprintf(why, DOCTOR_WHY, "%s", wh_error_text());
	} else {
		error = proof_transfer(proof, region, WH_READ, why);
		if (!error)
			error = proof_transfer(proof, region, WH_WRITE, why);
		wh_region_unregister(region);
	}
	wh_memory_free(proof->engine, memory);
	if (!error && memcmp(proof->theirs, proof->theirs + BYTES, BYTES) != 0) {
		snprintf(why, DOCTOR_WHY, "the bytes that came back differ from those sent");
		return EBADMSG;
	}
	return -error;
}

/* Open the engines and try host memory. */
static int proof_host(struct proof *proof, const char *nic, char why[DOCTOR_WHY])
{
	int error = proof_open(proof, nic, why);

	return error ? error : proof_round_trip(proof, WH_MEMORY_PAGEABLE, NULL, why);
}

/* Share the time left among the GPUs left. False: it is too short to try another. */
static bool proof_share_time(struct proof *proof, double until, int left)
{
	double share = (until - facts_now()) / left;

	share = share > PAIR_MOST ? PAIR_MOST : share;
	proof->wait = (int64_t)(share * 1e9);
	return share >= PAIR_LEAST;
}

void doctor_move(struct verbs_fact *nic, double until, void (*each)(void *arg), void *arg)
{
	struct proof proof = { 0 };
	char why[DOCTOR_WHY] = "";
	bool open = false;
	int error = 0;

	for (int i = 0; i < nic->gpu_count; i++) {
		struct gpu_fact *gpu = &nic->gpus[i];
		char location[40];

		if (!proof_share_time(&proof, until, nic->gpu_count - i))
			break;
		/* A failure may have broken the connection: the next GPU gets new engines. */
		if (!open && !error) {
			error = proof_host(&proof, nic->name, why);
			open = true;
		}
		snprintf(location, sizeof(location), "cuda:%.19s", gpu->address);
		gpu->moved = error ? -1 : proof_round_trip(&proof, WH_MEMORY_DEVICE, location, why);
		gpu->late = false;
		if (gpu->moved)
			snprintf(gpu->why, sizeof(gpu->why), "%s", why);
		wh_text_clean(gpu->why); /* it becomes one line of verbs.txt */
		each(arg);
		if (gpu->moved > 0) {
			proof_close(&proof);
			proof = (struct proof){ 0 };
			open = false;
		}
	}
	proof_close(&proof);
}
