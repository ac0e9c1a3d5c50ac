/* SPDX-License-Identifier: Apache-2.0 */
/* What libibverbs says of the NICs, and of each with each GPU's memory. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doctor.h"
#include "platform/cuda.h"

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

	if (facts_error(line, &out->error, out->why))
		return;
	if (sscanf(line, "gpu %19s", address) == 1 && out->count) {
		const char *why = strstr(line, " why=");

		nic = &out->nics[out->count - 1];
		if (nic->gpu_count == FACTS_GPUS)
			return;
		memcpy(nic->gpus[nic->gpu_count].address, address, sizeof(address));
		nic->gpus[nic->gpu_count].exported = (int)facts_value(line, "exported");
		nic->gpus[nic->gpu_count].registered = (int)facts_value(line, "registered");
		nic->gpus[nic->gpu_count].peermem = (int)facts_value(line, "peermem");
		nic->gpus[nic->gpu_count].moved = (int)facts_value(line, "moved");
		snprintf(nic->gpus[nic->gpu_count++].why, DOCTOR_WHY, "%s", why ? why + strlen(" why=") : "");
		return;
	}
	nic = &out->nics[out->count];
	if (out->count == FACTS_NICS || sscanf(line, "nic %63s", nic->name) != 1)
		return;
	nic->dma_buf = (int)facts_value(line, "dma_buf");
	nic->mtu = (int)facts_value(line, "mtu");
	nic->mtu_most = (int)facts_value(line, "mtu_most");
	out->count++;
}

static void record_verbs(const struct wh_tree *tree, const struct verbs_facts *facts)
{
	FILE *file = facts_file(tree, "verbs.txt");

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
		out->known = facts_lines(tree, "/verbs.txt", read_verbs_line, out);
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
