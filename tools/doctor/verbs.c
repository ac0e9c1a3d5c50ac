/* SPDX-License-Identifier: Apache-2.0 */
/* Facts from libibverbs: about each NIC, and about each NIC with each GPU's memory. Every NIC is
 * asked on a thread of its own. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doctor/doctor.h"
#include "platform/cuda.h"

/* Ordinary functions of the library: none is inline in its headers. */
struct verbs {
	void **(*get_device_list)(int *count);
	void (*free_device_list)(void **list);
	const char *(*get_device_name)(void *device);
	void *(*open_device)(void *device);
	int (*close_device)(void *context);
	void *(*alloc_pd)(void *context);
	int (*dealloc_pd)(void *pd);
	/* since libibverbs 34 */
	void *(*reg_dmabuf_mr)(void *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
			       int access);
	int (*dereg_mr)(void *mr);
	int (*query_port)(void *context, uint8_t port, void *attributes);
	void *(*reg_mr)(void *pd, void *address, size_t length, int access);
};

#define ACCESS_ALL 7 /* local write, remote write, remote read */
#define TRIED_BYTES (2U << 20)

static bool verbs_load(void *library, struct verbs *out)
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

/* The codes 1 to 5 mean 256 to 4096 bytes. */
static int mtu_bytes(uint32_t code)
{
	return code >= 1 && code <= 5 ? 128 << code : -1;
}

static void nic_ask_ports(const struct verbs *verbs, void *context, struct verbs_fact *nic)
{
	uint32_t attributes[64]; /* state, maximum MTU, active MTU; larger than needed */

	for (uint8_t i = 0; verbs->query_port && i < FACTS_PORTS; i++) {
		memset(attributes, 0, sizeof(attributes));
		/* No such port. */
		if (verbs->query_port(context, i + 1, attributes))
			return;
		nic->mtu_most[i] = mtu_bytes(attributes[1]);
		nic->mtu[i] = mtu_bytes(attributes[2]);
	}
}

static void verbs_fact_init(struct verbs_fact *nic)
{
	*nic = (struct verbs_fact){ .dma_buf = -1 };
	for (int i = 0; i < FACTS_PORTS; i++)
		nic->mtu[i] = nic->mtu_most[i] = -1;
}

/* Register GPU memory by its address, as nvidia-peermem allows. */
static void gpu_try_address(const struct verbs *verbs, void *pd, CUdeviceptr address, int *out)
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

/* Register some memory of a GPU with the NIC, by its address and as a dma-buf. */
static void gpu_try(const struct verbs *verbs, void *pd, struct wh_cuda *cuda,
		    struct wh_cuda_device *device, struct gpu_fact *gpu)
{
	int fd = -1, result;
	struct wh_cuda_scope scope;
	CUdeviceptr address = 0;
	void *mr = NULL;

	if (wh_cuda_enter(cuda, device, &scope))
		return;
	result = cuda->cuMemAlloc(&address, TRIED_BYTES);
	if (!result)
		gpu_try_address(verbs, pd, address, &gpu->peermem);
	if (!result && verbs->reg_dmabuf_mr && cuda->cuMemGetHandleForAddressRange) {
		result = cuda->cuMemGetHandleForAddressRange(&fd, address, TRIED_BYTES,
							     CUDA_RANGE_DMA_BUF, 0);
		gpu->exported = wh_cuda_errno(result);
	}
	if (!result && fd >= 0) {
		errno = 0;
		mr = verbs->reg_dmabuf_mr(pd, 0, TRIED_BYTES, address, fd, ACCESS_ALL);
		gpu->registered = mr ? 0 : errno ? errno : EIO;
	}
	if (mr)
		verbs->dereg_mr(mr);
	if (fd >= 0)
		close(fd);
	if (address)
		cuda->cuMemFree(address);
	wh_cuda_leave(&scope);
}

/* ---- all NICs at once ------------------------------------------------------------------------ */

/* What the threads share. Never freed if they were abandoned. */
struct work {
	pthread_mutex_t lock;
	pthread_cond_t cuda_answered;
	struct verbs_facts facts;
	bool memory, move; /* register GPU memory, too; write and read it, too */
	double until;
	struct verbs verbs;
	struct wh_cuda *cuda; /* NULL: no CUDA, or not started yet */
};

struct nic_work {
	struct work *work;
	void *device;
	struct verbs_fact *out; /* in work->facts, under its lock */
	struct verbs_fact nic;
	pthread_t thread;
	bool started;
};

static void nic_publish(void *arg)
{
	struct nic_work *own = arg;

	pthread_mutex_lock(&own->work->lock);
	*own->out = own->nic;
	pthread_mutex_unlock(&own->work->lock);
}

/* Ask about the NIC itself, without waiting for GPUs. Its protection domain, NULL: it has none. */
static void *nic_ask_device(struct nic_work *own, void *context)
{
	const struct verbs *verbs = &own->work->verbs;
	void *pd, *mr;

	nic_ask_ports(verbs, context, &own->nic);
	pd = verbs->alloc_pd(context);
	if (pd && verbs->reg_dmabuf_mr) {
		errno = 0;
		mr = verbs->reg_dmabuf_mr(pd, 0, 4096, 0, -1, ACCESS_ALL);
		own->nic.dma_buf = mr ? 0 : errno;
		if (mr)
			verbs->dereg_mr(mr);
	}
	own->nic.late = false;
	nic_publish(own);
	return pd;
}

/* Try each GPU. Pairs are late until they are done, so partial facts say what is missing. */
static void nic_try_gpus(struct nic_work *own, void *pd)
{
	struct work *work = own->work;
	struct wh_cuda *cuda;

	pthread_mutex_lock(&work->lock);
	while (work->facts.cuda_late)
		pthread_cond_wait(&work->cuda_answered, &work->lock);
	cuda = work->cuda;
	pthread_mutex_unlock(&work->lock);
	for (unsigned i = 0; cuda && i < cuda->device_count && i < FACTS_GPUS; i++) {
		struct gpu_fact *gpu = &own->nic.gpus[own->nic.gpu_count++];

		*gpu = (struct gpu_fact){
			.exported = -1, .registered = -1, .peermem = -1, .moved = -1, .late = true
		};
		snprintf(gpu->address, sizeof(gpu->address), "%.19s", cuda->devices[i].pci);
	}
	nic_publish(own);
	for (int i = 0; i < own->nic.gpu_count; i++) {
		gpu_try(&work->verbs, pd, cuda, &cuda->devices[i], &own->nic.gpus[i]);
		own->nic.gpus[i].late = work->move;
		nic_publish(own);
	}
}

static void *nic_ask(void *arg)
{
	struct nic_work *own = arg;
	const struct work *work = own->work;
	void *context = work->verbs.open_device(own->device), *pd;

	if (!context) {
		own->nic.late = false;
		nic_publish(own);
		return NULL;
	}
	pd = nic_ask_device(own, context);
	if (pd && work->memory)
		nic_try_gpus(own, pd);
	if (pd)
		work->verbs.dealloc_pd(pd);
	work->verbs.close_device(context);
	if (own->nic.gpu_count && work->move)
		doctor_move(&own->nic, work->until, nic_publish, own);
	return NULL;
}

static void work_start_cuda(struct work *work)
{
	struct wh_cuda *cuda = NULL;

	if (!wh_cuda_open(NULL, &cuda) && wh_cuda_ready(cuda)) {
		wh_cuda_close(cuda);
		cuda = NULL;
	}
	pthread_mutex_lock(&work->lock);
	work->cuda = cuda;
	work->facts.cuda_late = false;
	pthread_cond_broadcast(&work->cuda_answered);
	pthread_mutex_unlock(&work->lock);
}

static void work_ask_nics(struct work *work, void **list, int count)
{
	struct nic_work *all = calloc((size_t)count + 1, sizeof(*all));

	count = !all ? 0 : count < FACTS_NICS ? count : FACTS_NICS;
	pthread_mutex_lock(&work->lock);
	for (int i = 0; i < count; i++) {
		all[i] = (struct nic_work){ .work = work,
					    .device = list[i],
					    .out = &work->facts.nics[i] };
		verbs_fact_init(&all[i].nic);
		all[i].nic.late = true;
		snprintf(all[i].nic.name, sizeof(all[i].nic.name), "%.63s",
			 work->verbs.get_device_name(list[i]));
		work->facts.nics[i] = all[i].nic;
	}
	work->facts.count = count;
	/* Without a NIC there is no need to wake the GPUs. */
	work->facts.cuda_late = count && work->memory;
	work->facts.known = true;
	pthread_mutex_unlock(&work->lock);
	for (int i = 0; i < count; i++)
		all[i].started = !pthread_create(&all[i].thread, NULL, nic_ask, &all[i]);
	if (count && work->memory)
		work_start_cuda(work);
	for (int i = 0; i < count; i++)
		if (all[i].started)
			pthread_join(all[i].thread, NULL);
	wh_cuda_close(work->cuda);
	free(all);
}

static void work_fail(struct work *work, int error, const char *why)
{
	pthread_mutex_lock(&work->lock);
	work->facts.known = true;
	work->facts.error = error;
	snprintf(work->facts.why, sizeof(work->facts.why), "%s", why);
	pthread_mutex_unlock(&work->lock);
}

static void work_run(void *arg)
{
	struct work *work = arg;
	/* Never closed: its drivers leave threads and handlers behind. */
	void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL), **list;
	char why[256];
	int count = 0, error;

	if (!library) {
		const char *text = dlerror();

		work_fail(work, ENOENT, text ? text : "dlopen failed");
		return;
	}
	if (!verbs_load(library, &work->verbs)) {
		work_fail(work, ELIBBAD,
			  "libibverbs.so.1 lacks functions of libibverbs: is it another library?");
		return;
	}
	errno = 0;
	list = work->verbs.get_device_list(&count);
	if (!list) {
		error = errno ? errno : ENODEV;
		snprintf(why, sizeof(why), "ibv_get_device_list: %s", strerror(error));
		work_fail(work, error, why);
		return;
	}
	work_ask_nics(work, list, count);
	work->verbs.free_device_list(list);
}

/* ---- recorded trees -------------------------------------------------------------------------- */

static void verbs_read_gpu(const char *line, const char *address, struct verbs_fact *nic)
{
	const char *why = strstr(line, " why=");
	struct gpu_fact *gpu = &nic->gpus[nic->gpu_count];

	if (nic->gpu_count == FACTS_GPUS)
		return;
	nic->gpu_count++;
	snprintf(gpu->address, sizeof(gpu->address), "%s", address);
	gpu->exported = (int)facts_value(line, "exported");
	gpu->registered = (int)facts_value(line, "registered");
	gpu->peermem = (int)facts_value(line, "peermem");
	gpu->moved = (int)facts_value(line, "moved");
	gpu->late = facts_value(line, "late") == 1;
	snprintf(gpu->why, sizeof(gpu->why), "%s", why ? why + strlen(" why=") : "");
}

/* "port 2 mtu=4096 mtu_most=4096", of the NIC named last. False: another line. */
static bool verbs_read_port(const char *line, struct verbs_fact *nic)
{
	unsigned port;

	if (sscanf(line, "port %u", &port) != 1)
		return false;
	if (port >= 1 && port <= FACTS_PORTS) {
		nic->mtu[port - 1] = (int)facts_value(line, "mtu");
		nic->mtu_most[port - 1] = (int)facts_value(line, "mtu_most");
	}
	return true;
}

static void verbs_read_line(const char *line, void *arg)
{
	struct verbs_facts *out = arg;
	struct verbs_fact *nic;
	char address[WH_ADDRESS];

	if (facts_error(line, &out->error, out->why))
		return;
	if (strcmp(line, "cuda late=1") == 0) {
		out->cuda_late = true;
		return;
	}
	if (sscanf(line, "gpu %19s", address) == 1 && out->count) {
		verbs_read_gpu(line, address, &out->nics[out->count - 1]);
		return;
	}
	if (out->count && verbs_read_port(line, &out->nics[out->count - 1]))
		return;
	if (out->count == FACTS_NICS)
		return;
	nic = &out->nics[out->count];
	verbs_fact_init(nic);
	if (sscanf(line, "nic %63s", nic->name) != 1)
		return;
	nic->dma_buf = (int)facts_value(line, "dma_buf");
	nic->mtu[0] = (int)facts_value(line, "mtu");
	nic->mtu_most[0] = (int)facts_value(line, "mtu_most");
	nic->late = facts_value(line, "late") == 1;
	out->count++;
}

static void verbs_record_gpu(FILE *file, const struct gpu_fact *gpu)
{
	fprintf(file, "gpu %s exported=%d registered=%d peermem=%d moved=%d%s%s%s\n", gpu->address,
		gpu->exported, gpu->registered, gpu->peermem, gpu->moved,
		gpu->late ? " late=1" : "", *gpu->why ? " why=" : "", gpu->why);
}

static void verbs_record(const struct wh_tree *tree, const struct verbs_facts *facts)
{
	FILE *file = facts->known ? facts_file(tree, "verbs.txt") : NULL;

	if (!file)
		return;
	if (facts->error)
		fprintf(file, "error %d %s\n", facts->error, facts->why);
	if (facts->cuda_late)
		fputs("cuda late=1\n", file);
	for (int i = 0; i < facts->count; i++) {
		const struct verbs_fact *nic = &facts->nics[i];

		fprintf(file, "nic %s dma_buf=%d mtu=%d mtu_most=%d%s\n", nic->name, nic->dma_buf,
			nic->mtu[0], nic->mtu_most[0], nic->late ? " late=1" : "");
		for (int k = 1; k < FACTS_PORTS; k++)
			if (nic->mtu_most[k] >= 0)
				fprintf(file, "port %d mtu=%d mtu_most=%d\n", k + 1, nic->mtu[k],
					nic->mtu_most[k]);
		for (int k = 0; k < nic->gpu_count; k++)
			verbs_record_gpu(file, &nic->gpus[k]);
	}
	fclose(file);
}

bool facts_verbs(const struct wh_tree *tree, bool memory, bool move, double seconds,
		 struct verbs_facts *out)
{
	struct work *work;
	bool ended;

	memset(out, 0, sizeof(*out));
	if (!wh_tree_is_live(tree)) {
		out->known = facts_lines(tree, "/verbs.txt", verbs_read_line, out);
		return true;
	}
	work = calloc(1, sizeof(*work));
	if (!work)
		return true;
	*work = (struct work){ .lock = PTHREAD_MUTEX_INITIALIZER,
			       .memory = memory,
			       .move = move,
			       .cuda_answered = PTHREAD_COND_INITIALIZER,
			       .until = facts_now() + seconds };
	ended = facts_bounded(work_run, work, seconds);
	pthread_mutex_lock(&work->lock);
	*out = work->facts;
	pthread_mutex_unlock(&work->lock);
	if (ended)
		free(work);
	verbs_record(tree, out);
	return ended;
}
