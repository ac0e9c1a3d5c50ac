/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the libraries of the GPUs and NICs say. They may keep their caller waiting for ever, so each
 * is asked on a thread that can be given up. In a recorded tree the answers are lines of text:
 *
 * cuda.txt   "error ERRNO TEXT", or "version 13000" and a line for each GPU:
 *            "gpu ADDRESS rdma=1 dma_buf=1 rdma_vmm=1 fabric=0 l2=BYTES"
 * verbs.txt  "error ERRNO TEXT", or for each NIC "nic NAME dma_buf=ERRNO mtu=4096 mtu_most=4096",
 *            followed by "gpu ADDRESS exported=ERRNO registered=ERRNO peermem=ERRNO moved=ERRNO" for
 *            each GPU that was tried, with " why=TEXT" behind it if nothing was moved
 * crypto.txt "error ERRNO TEXT", or "HMAC-SHA-256"
 */
#include "doctor.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "platform/crypto.h"
#include "platform/cuda.h"
#include "util/error.h"

/* ---- a thread that can be given up ----------------------------------------------------------- */

struct job {
	void (*probe)(void *arg);
	void *arg;
	pthread_mutex_t lock;
	pthread_cond_t ended;
	bool done;
	bool abandoned; /* whoever is last frees it */
};

static void *run_job(void *arg)
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

static bool wait_for(struct job *job, double seconds)
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

bool bounded(void (*probe)(void *arg), void *arg, double seconds)
{
	struct job *job = calloc(1, sizeof(*job));
	pthread_t thread;
	bool done;

	if (!job)
		return false;
	*job = (struct job){ .probe = probe, .arg = arg, .lock = PTHREAD_MUTEX_INITIALIZER,
			     .ended = PTHREAD_COND_INITIALIZER };
	if (pthread_create(&thread, NULL, run_job, job)) {
		free(job);
		return false;
	}
	done = wait_for(job, seconds);
	if (done) {
		pthread_join(thread, NULL);
		free(job);
	} else {
		pthread_detach(thread);
	}
	return done;
}

/* ---- text ------------------------------------------------------------------------------------ */

static FILE *record_file(const struct wh_tree *tree, const char *name)
{
	char path[WH_TREE_PATH];

	if (!tree->record || !wh_tree_is_live(tree))
		return NULL;
	snprintf(path, sizeof(path), "%s/%s", tree->record, name);
	return fopen(path, "we");
}

/* The number behind " KEY=" in a line; -1: none. */
static long long value_of(const char *line, const char *key)
{
	size_t length = strlen(key);

	for (; (line = strchr(line, ' ')); line++)
		if (strncmp(line + 1, key, length) == 0 && line[1 + length] == '=')
			return strtoll(line + 2 + length, NULL, 10);
	return -1;
}

/* Call `each` with the lines of a file of a recorded tree. False: there is none. */
static bool each_line(const struct wh_tree *tree, const char *name,
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

/* "error ERRNO TEXT" */
static bool read_error(const char *line, int *error, char why[256])
{
	int used = 0;

	if (sscanf(line, "error %d %n", error, &used) != 1)
		return false;
	snprintf(why, 256, "%.255s", line + used);
	return true;
}

/* ---- CUDA ------------------------------------------------------------------------------------ */

#define CUDA_L2_SIZE 38 /* CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE */

static void read_cuda_line(const char *line, void *arg)
{
	struct cuda_facts *out = arg;
	struct cuda_fact *gpu = &out->gpus[out->count];
	long long l2;

	if (read_error(line, &out->error, out->why) ||
	    sscanf(line, "version %d", &out->version) == 1)
		return;
	if (out->count == FACTS_GPUS || sscanf(line, "gpu %19s", gpu->address) != 1)
		return;
	gpu->rdma = (int)value_of(line, "rdma");
	gpu->dma_buf = (int)value_of(line, "dma_buf");
	gpu->rdma_vmm = (int)value_of(line, "rdma_vmm");
	gpu->fabric = (int)value_of(line, "fabric");
	l2 = value_of(line, "l2");
	gpu->l2_bytes = l2 < 0 ? WH_UNKNOWN : (uint64_t)l2;
	out->count++;
}

static void ask_cuda(struct wh_cuda *cuda, struct cuda_facts *out)
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

static void record_cuda(const struct wh_tree *tree, const struct cuda_facts *facts)
{
	FILE *file = record_file(tree, "cuda.txt");

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
		out->known = each_line(tree, "/cuda.txt", read_cuda_line, out);
		return;
	}
	out->known = true;
	if (wh_cuda_open(NULL, &cuda)) {
		out->error = ENOMEM;
		return;
	}
	ask_cuda(cuda, out);
	wh_cuda_close(cuda);
	record_cuda(tree, out);
}

/* ---- libibverbs ------------------------------------------------------------------------------ */

/* All of these are ordinary functions of the library; none is inline in its headers. */
struct verbs {
	void **(*get_device_list)(int *count);
	void (*free_device_list)(void **list);
	const char *(*get_device_name)(void *device);
	void *(*open_device)(void *device);
	int (*close_device)(void *context);
	void *(*alloc_pd)(void *context);
	int (*dealloc_pd)(void *pd);
	/* only in libibverbs 34 and later */
	void *(*reg_dmabuf_mr)(void *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
			       int access);
	int (*dereg_mr)(void *mr);
	int (*query_port)(void *context, uint8_t port, void *attributes);
	void *(*reg_mr)(void *pd, void *address, size_t length, int access);
};

#define ACCESS_ALL 7 /* local write, remote write, remote read */
#define TRIED_BYTES (2U << 20)

static bool load_verbs(void *library, struct verbs *out)
{
	static const char *const names[] = {
		"ibv_get_device_list", "ibv_free_device_list", "ibv_get_device_name",
		"ibv_open_device",     "ibv_close_device",     "ibv_alloc_pd",
		"ibv_dealloc_pd",      "ibv_reg_dmabuf_mr",    "ibv_dereg_mr",
		"ibv_query_port",      "ibv_reg_mr",
	};
	void **slots = (void **)out;

	_Static_assert(sizeof(*out) == sizeof(names) / sizeof(names[0]) * sizeof(void *),
		       "a name for each");
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		slots[i] = dlsym(library, names[i]);
	return out->get_device_list && out->free_device_list && out->get_device_name &&
	       out->open_device && out->close_device && out->alloc_pd && out->dealloc_pd &&
	       out->dereg_mr;
}

/* 1 to 5 stand for 256 to 4096 bytes. */
static int mtu_bytes(uint32_t code)
{
	return code >= 1 && code <= 5 ? 128 << code : -1;
}

static void ask_port(const struct verbs *verbs, void *context, struct verbs_fact *nic)
{
	uint32_t attributes[64] = { 0 }; /* state, most MTU, active MTU, and more than is needed */

	nic->mtu = nic->mtu_most = -1;
	if (!verbs->query_port || verbs->query_port(context, 1, attributes))
		return;
	nic->mtu_most = mtu_bytes(attributes[1]);
	nic->mtu = mtu_bytes(attributes[2]);
}

/* As a module like nvidia-peermem makes it possible. */
static void try_address(const struct verbs *verbs, void *pd, CUdeviceptr address, int *out)
{
	void *mr;

	if (!verbs->reg_mr)
		return;
	errno = 0;
	mr = verbs->reg_mr(pd, (void *)(uintptr_t)address, TRIED_BYTES, ACCESS_ALL);
	*out = mr ? 0 : errno ? errno : EIO;
	if (mr)
		verbs->dereg_mr(mr);
}

/* A piece of the GPU's memory, as a dma-buf, and by its address, known to the NIC. */
static void try_gpu(const struct verbs *verbs, void *pd, struct wh_cuda *cuda,
		    struct wh_cuda_device *device, struct verbs_fact *nic)
{
	int at = nic->gpu_count++, fd = -1, result;
	struct wh_cuda_scope scope;
	CUdeviceptr address = 0;
	void *mr = NULL;

	snprintf(nic->gpus[at].address, sizeof(nic->gpus[at].address), "%.19s", device->pci);
	nic->gpus[at].exported = nic->gpus[at].registered = nic->gpus[at].peermem = -1;
	nic->gpus[at].moved = -1;
	if (wh_cuda_enter(cuda, device, &scope))
		return;
	result = cuda->cuMemAlloc(&address, TRIED_BYTES);
	if (!result)
		try_address(verbs, pd, address, &nic->gpus[at].peermem);
	if (!result && verbs->reg_dmabuf_mr && cuda->cuMemGetHandleForAddressRange) {
		result = cuda->cuMemGetHandleForAddressRange(&fd, address, TRIED_BYTES,
							     CUDA_RANGE_DMA_BUF, 0);
		nic->gpus[at].exported = wh_cuda_errno(result);
	}
	if (!result && fd >= 0) {
		errno = 0;
		mr = verbs->reg_dmabuf_mr(pd, 0, TRIED_BYTES, address, fd, ACCESS_ALL);
		nic->gpus[at].registered = mr ? 0 : errno ? errno : EIO;
	}
	if (mr)
		verbs->dereg_mr(mr);
	if (fd >= 0)
		close(fd);
	if (address)
		cuda->cuMemFree(address);
	wh_cuda_leave(&scope);
}

static void ask_nic(const struct verbs *verbs, void *device, struct wh_cuda *cuda,
		    struct verbs_fact *nic)
{
	void *context = verbs->open_device(device), *pd, *mr;

	snprintf(nic->name, sizeof(nic->name), "%.63s", verbs->get_device_name(device));
	nic->dma_buf = nic->mtu = nic->mtu_most = -1;
	if (!context)
		return;
	ask_port(verbs, context, nic);
	pd = verbs->alloc_pd(context);
	if (pd && verbs->reg_dmabuf_mr) {
		errno = 0;
		mr = verbs->reg_dmabuf_mr(pd, 0, 4096, 0, -1, ACCESS_ALL);
		nic->dma_buf = mr ? 0 : errno;
		if (mr)
			verbs->dereg_mr(mr);
	}
	for (unsigned i = 0; pd && cuda && i < cuda->device_count && i < FACTS_GPUS; i++)
		try_gpu(verbs, pd, cuda, &cuda->devices[i], nic);
	if (pd)
		verbs->dealloc_pd(pd);
	verbs->close_device(context);
	if (nic->gpu_count)
		doctor_move(nic);
}

static void ask_verbs(void *library, struct verbs_facts *out)
{
	struct wh_cuda *cuda = NULL;
	struct verbs verbs;
	void **list;
	int count = 0;

	if (!load_verbs(library, &verbs)) {
		out->error = ELIBBAD;
		snprintf(out->why, sizeof(out->why), "libibverbs.so.1 lacks functions: it is none");
		return;
	}
	list = verbs.get_device_list(&count);
	if (!list) {
		out->error = errno ? errno : ENODEV;
		snprintf(out->why, sizeof(out->why), "ibv_get_device_list: %s",
			 strerror(out->error));
		return;
	}
	/* Without a NIC there is no need to wake the GPUs. */
	if (count && !wh_cuda_open(NULL, &cuda) && wh_cuda_ready(cuda)) {
		wh_cuda_close(cuda);
		cuda = NULL;
	}
	for (int i = 0; i < count && out->count < FACTS_NICS; i++)
		ask_nic(&verbs, list[i], cuda, &out->nics[out->count++]);
	verbs.free_device_list(list);
	wh_cuda_close(cuda);
}

static void read_verbs_line(const char *line, void *arg)
{
	struct verbs_facts *out = arg;
	struct verbs_fact *nic;
	char address[WH_ADDRESS];

	if (read_error(line, &out->error, out->why))
		return;
	if (sscanf(line, "gpu %19s", address) == 1 && out->count) {
		const char *why = strstr(line, " why=");

		nic = &out->nics[out->count - 1];
		if (nic->gpu_count == FACTS_GPUS)
			return;
		memcpy(nic->gpus[nic->gpu_count].address, address, sizeof(address));
		nic->gpus[nic->gpu_count].exported = (int)value_of(line, "exported");
		nic->gpus[nic->gpu_count].registered = (int)value_of(line, "registered");
		nic->gpus[nic->gpu_count].peermem = (int)value_of(line, "peermem");
		nic->gpus[nic->gpu_count].moved = (int)value_of(line, "moved");
		snprintf(nic->gpus[nic->gpu_count++].why, DOCTOR_WHY, "%s", why ? why + strlen(" why=") : "");
		return;
	}
	nic = &out->nics[out->count];
	if (out->count == FACTS_NICS || sscanf(line, "nic %63s", nic->name) != 1)
		return;
	nic->dma_buf = (int)value_of(line, "dma_buf");
	nic->mtu = (int)value_of(line, "mtu");
	nic->mtu_most = (int)value_of(line, "mtu_most");
	out->count++;
}

static void record_verbs(const struct wh_tree *tree, const struct verbs_facts *facts)
{
	FILE *file = record_file(tree, "verbs.txt");

	if (!file)
		return;
	if (facts->error)
		fprintf(file, "error %d %s\n", facts->error, facts->why);
	for (int i = 0; i < facts->count; i++) {
		const struct verbs_fact *nic = &facts->nics[i];

		fprintf(file, "nic %s dma_buf=%d mtu=%d mtu_most=%d\n", nic->name, nic->dma_buf,
			nic->mtu, nic->mtu_most);
		for (int k = 0; k < nic->gpu_count; k++)
			fprintf(file, "gpu %s exported=%d registered=%d peermem=%d moved=%d%s%s\n",
				nic->gpus[k].address, nic->gpus[k].exported, nic->gpus[k].registered,
				nic->gpus[k].peermem, nic->gpus[k].moved, *nic->gpus[k].why ? " why=" : "",
				nic->gpus[k].why);
	}
	fclose(file);
}

void facts_verbs(const struct wh_tree *tree, struct verbs_facts *out)
{
	void *library;

	memset(out, 0, sizeof(*out));
	if (!wh_tree_is_live(tree)) {
		out->known = each_line(tree, "/verbs.txt", read_verbs_line, out);
		return;
	}
	out->known = true;
	library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	if (library) {
		ask_verbs(library, out);
		/* Not closed: its drivers leave threads and handlers behind. */
	} else {
		const char *why = dlerror();

		out->error = ENOENT;
		snprintf(out->why, sizeof(out->why), "%s", why ? why : "dlopen failed");
	}
	record_verbs(tree, out);
}

/* ---- libcrypto ------------------------------------------------------------------------------- */

static void read_crypto_line(const char *line, void *arg)
{
	struct crypto_facts *out = arg;

	out->known = out->known || !strcmp(line, "HMAC-SHA-256") ||
		     read_error(line, &out->error, out->why);
}

void facts_crypto(const struct wh_tree *tree, struct crypto_facts *out)
{
	uint8_t mac[WH_MAC_SIZE];
	struct wh_crypto crypto;
	FILE *file;

	memset(out, 0, sizeof(*out));
	if (!wh_tree_is_live(tree)) {
		each_line(tree, "/crypto.txt", read_crypto_line, out);
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
	file = record_file(tree, "crypto.txt");
	if (!file)
		return;
	if (out->error)
		fprintf(file, "error %d %s\n", out->error, out->why);
	else
		fputs("HMAC-SHA-256\n", file);
	fclose(file);
}
