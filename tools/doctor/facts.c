/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts from libraries of GPUs and NICs. A library may block its caller for ever, so each is asked
 * on a thread that can be abandoned. A recorded tree has the answers as lines of text:
 *
 * cuda.txt    "error ERRNO TEXT", or "version 13000" and for each GPU
 *             "gpu ADDRESS rdma=1 dma_buf=1 rdma_vmm=1 fabric=0 l2=BYTES"
 * verbs.txt   "error ERRNO TEXT", or for each NIC "nic NAME dma_buf=ERRNO mtu=4096 mtu_most=4096",
 *             then "port 2 mtu=4096 mtu_most=4096" for each further port, and for each GPU that was
 *             tried "gpu ADDRESS exported=ERRNO registered=ERRNO peermem=ERRNO moved=ERRNO", with
 *             " why=TEXT" if nothing was moved; " late=1" follows what was not answered in time,
 * and "cuda late=1" is a line of its own crypto.txt  "error ERRNO TEXT", or "HMAC-SHA-256"
 */
#include "doctor/doctor.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "platform/crypto.h"
#include "platform/cuda.h"
#include "util/error.h"

/* ---- a thread that can be abandoned ---------------------------------------------------------- */

struct job {
	void (*probe)(void *arg);
	void *arg;
	pthread_mutex_t lock;
	pthread_cond_t ended;
	bool done;
	bool abandoned; /* the thread frees the job */
};

static _Atomic bool hangs;

bool facts_hang(void)
{
	return atomic_load(&hangs);
}

static void *job_run(void *arg)
{
	struct job *job = arg;
	bool abandoned;

	job->probe(job->arg);
	pthread_mutex_lock(&job->lock);
	job->done = true;
	abandoned = job->abandoned;
	pthread_cond_signal(&job->ended);
	pthread_mutex_unlock(&job->lock);
	if (abandoned)
		free(job);
	return NULL;
}

static bool job_wait(struct job *job, double seconds)
{
	struct timespec until;
	bool done;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += (time_t)seconds;
	until.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
	if (until.tv_nsec >= 1000000000) {
		until.tv_sec++;
		until.tv_nsec -= 1000000000;
	}
	pthread_mutex_lock(&job->lock);
	while (!job->done && pthread_cond_timedwait(&job->ended, &job->lock, &until) != ETIMEDOUT)
		;
	done = job->done;
	job->abandoned = !done;
	pthread_mutex_unlock(&job->lock);
	return done;
}

double facts_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

bool facts_bounded(void (*probe)(void *arg), void *arg, double seconds)
{
	struct job *job = calloc(1, sizeof(*job));
	pthread_t thread;
	bool done;

	if (!job)
		return false;
	*job = (struct job){ .probe = probe,
			     .arg = arg,
			     .lock = PTHREAD_MUTEX_INITIALIZER,
			     .ended = PTHREAD_COND_INITIALIZER };
	if (pthread_create(&thread, NULL, job_run, job)) {
		free(job);
		return false;
	}
	done = job_wait(job, seconds);
	if (done) {
		pthread_join(thread, NULL);
		free(job);
	} else {
		atomic_store(&hangs, true);
		pthread_detach(thread);
	}
	return done;
}

/* ---- text ------------------------------------------------------------------------------------ */

FILE *facts_file(const struct wh_tree *tree, const char *name)
{
	char path[WH_TREE_PATH];

	if (!tree->record || !wh_tree_is_live(tree))
		return NULL;
	snprintf(path, sizeof(path), "%s/%s", tree->record, name);
	return fopen(path, "we");
}

long long facts_value(const char *line, const char *key)
{
	size_t length = strlen(key);

	for (; (line = strchr(line, ' ')); line++)
		if (strncmp(line + 1, key, length) == 0 && line[1 + length] == '=')
			return strtoll(line + 2 + length, NULL, 10);
	return -1;
}

bool facts_lines(const struct wh_tree *tree, const char *name,
		 void (*each)(const char *line, void *arg), void *arg)
{
	char *text = malloc(65536), *next, *line;

	if (!text || wh_tree_read(tree, name, text, 65536) < 0) {
		free(text);
		return false;
	}
	for (next = text; (line = strsep(&next, "\n"));)
		each(line, arg);
	free(text);
	return true;
}

bool facts_error(const char *line, int *error, char why[256])
{
	int used = 0;

	if (sscanf(line, "error %d %n", error, &used) != 1)
		return false;
	snprintf(why, 256, "%.255s", line + used);
	return true;
}

/* ---- CUDA ------------------------------------------------------------------------------------ */

#define CUDA_L2_SIZE 38 /* CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE */

static void cuda_read_line(const char *line, void *arg)
{
	struct cuda_facts *out = arg;
	struct cuda_fact *gpu = &out->gpus[out->count];
	long long l2;

	if (facts_error(line, &out->error, out->why) ||
	    sscanf(line, "version %d", &out->version) == 1)
		return;
	if (out->count == FACTS_GPUS || sscanf(line, "gpu %19s", gpu->address) != 1)
		return;
	gpu->rdma = (int)facts_value(line, "rdma");
	gpu->dma_buf = (int)facts_value(line, "dma_buf");
	gpu->rdma_vmm = (int)facts_value(line, "rdma_vmm");
	gpu->fabric = (int)facts_value(line, "fabric");
	l2 = facts_value(line, "l2");
	gpu->l2_bytes = l2 < 0 ? WH_UNKNOWN : (uint64_t)l2;
	out->count++;
}

static void cuda_ask(struct wh_cuda *cuda, struct cuda_facts *out)
{
	int error = wh_cuda_ready(cuda), l2;

	out->version = cuda->version;
	if (error) {
		out->error = -error;
		snprintf(out->why, sizeof(out->why), "%s", wh_fail_text());
		return;
	}
	for (unsigned i = 0; i < cuda->device_count && out->count < FACTS_GPUS; i++) {
		const struct wh_cuda_device *device = &cuda->devices[i];
		struct cuda_fact *gpu = &out->gpus[out->count++];

		snprintf(gpu->address, sizeof(gpu->address), "%.19s", device->pci);
		gpu->rdma = device->rdma;
		gpu->dma_buf = device->dma_buf;
		gpu->rdma_vmm = device->rdma_vmm;
		gpu->fabric = device->fabric;
		gpu->l2_bytes = WH_UNKNOWN;
		if (!cuda->cuDeviceGetAttribute(&l2, CUDA_L2_SIZE, device->handle) && l2 > 0)
			gpu->l2_bytes = (uint64_t)l2;
	}
}

static void cuda_record(const struct wh_tree *tree, const struct cuda_facts *facts)
{
	FILE *file = facts_file(tree, "cuda.txt");

	if (!file)
		return;
	if (facts->error)
		fprintf(file, "error %d %s\n", facts->error, facts->why);
	else
		fprintf(file, "version %d\n", facts->version);
	for (int i = 0; i < facts->count; i++)
		fprintf(file, "gpu %s rdma=%d dma_buf=%d rdma_vmm=%d fabric=%d l2=%lld\n",
			facts->gpus[i].address, facts->gpus[i].rdma, facts->gpus[i].dma_buf,
			facts->gpus[i].rdma_vmm, facts->gpus[i].fabric,
			(long long)facts->gpus[i].l2_bytes);
	fclose(file);
}

void facts_cuda(const struct wh_tree *tree, struct cuda_facts *out)
{
	struct wh_cuda *cuda;

	memset(out, 0, sizeof(*out));
	if (!wh_tree_is_live(tree)) {
		out->known = facts_lines(tree, "/cuda.txt", cuda_read_line, out);
		return;
	}
	out->known = true;
	if (wh_cuda_open(NULL, &cuda)) {
		out->error = ENOMEM;
		return;
	}
	cuda_ask(cuda, out);
	wh_cuda_close(cuda);
	cuda_record(tree, out);
}

/* ---- libcrypto ------------------------------------------------------------------------------- */

static void crypto_read_line(const char *line, void *arg)
{
	struct crypto_facts *out = arg;

	out->known = out->known || !strcmp(line, "HMAC-SHA-256") ||
		     facts_error(line, &out->error, out->why);
}

void facts_crypto(const struct wh_tree *tree, struct crypto_facts *out)
{
	uint8_t mac[WH_MAC_SIZE];
	struct wh_crypto crypto;
	FILE *file;

	memset(out, 0, sizeof(*out));
	if (!wh_tree_is_live(tree)) {
		facts_lines(tree, "/crypto.txt", crypto_read_line, out);
		return;
	}
	out->known = true;
	out->error = -wh_crypto_open(&crypto, NULL);
	if (!out->error) {
		out->error = -wh_crypto_hmac(&crypto, mac, 0, mac, 0, mac);
		wh_crypto_close(&crypto);
	}
	if (out->error)
		snprintf(out->why, sizeof(out->why), "%s", wh_fail_text());
	file = facts_file(tree, "crypto.txt");
	if (!file)
		return;
	if (out->error)
		fprintf(file, "error %d %s\n", out->error, out->why);
	else
		fputs("HMAC-SHA-256\n", file);
	fclose(file);
}
