/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU's memory as NICs know it. The ways, in the order of the knob `rdma_gpu`, each tried for the
 * memory and the NIC at hand:
 *
 * dmabuf   the driver of the GPU exports the range as a file descriptor, the kernel's driver of the
 * NIC takes it. One descriptor does for all NICs: each export would take as much of the GPU's BAR
 * again. peermem  the NIC is given the GPU's own address, which a module of the kernel
 * (nvidia-peermem) translates. staged   not at all: bytes go through pinned memory (stage.c), or,
 * if they are a peer's to reach, by another transport.
 *
 * Memory of several mappings (cuMemCreate) is tried as a whole, then mapping by mapping.
 *
 * What has been registered is shared by all regions of the same memory (the same registration,
 * which the driver's numbers of its allocations identify) that grant the same rights, and is given
 * up with the last.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/memory.h"
#include "transport/rdma/rdma.h"

/* A range of the memory as a dma-buf, which begins with the page that `start` lies in. */
struct rdma_export {
	uint64_t start, length;
	int fd;
};

/* What all NICs and regions of one registration share. Under register_lock. */
struct rdma_gpu {
	unsigned users; /* of the mrs below, and whoever is about to add some */
	struct rdma_mrs *mrs;
	struct rdma_export *exports; /* all of the range, in order; NULL: none yet */
	size_t export_count;
	bool apart; /* a mapping each */
};

/* ---- ways ------------------------------------------------------------------------------------ */

static const char *const names[] = {
	[WH_RDMA_HOST] = "host",
	[WH_RDMA_DMA_BUF] = "dmabuf",
	[WH_RDMA_PEERMEM] = "peermem",
	[WH_RDMA_STAGED] = "staged",
};

const char *rdma_method_name(enum wh_rdma_method method)
{
	return names[method];
}

int rdma_methods_parse(struct rdma *rdma)
{
	const char *setting = rdma->engine->config.text[WH_SETTING_RDMA_GPU];

	rdma->method_count = 0;
	for (const char *at = setting; *at; at += strcspn(at, ","), at += *at == ',') {
		size_t length = strcspn(at, ",");
		uint8_t method = WH_RDMA_DMA_BUF;

		while (method <= WH_RDMA_STAGED &&
		       (strlen(names[method]) != length || memcmp(names[method], at, length) != 0))
			method++;
		for (unsigned i = 0; i < rdma->method_count; i++)
			if (rdma->methods[i] == method)
				method = WH_RDMA_STAGED + 1;
		if (method > WH_RDMA_STAGED)
			return wh_fail(
				EINVAL,
				"rdma_gpu=%.60s: known are dmabuf, peermem and staged, each once",
				setting);
		rdma->methods[rdma->method_count++] = method;
	}
	return 0;
}

/* ---- reasons --------------------------------------------------------------------------------- */

/* One more way that it is not. */
static void note(char why[WH_REFUSAL], enum wh_rdma_method method, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

static void note(char why[WH_REFUSAL], enum wh_rdma_method method, const char *format, ...)
{
	size_t at = strlen(why);
	va_list list;

	at += (size_t)snprintf(why + at, WH_REFUSAL - at, "%s%s: ", at ? "; " : "", names[method]);
	if (at >= WH_REFUSAL)
		return;
	va_start(list, format);
	vsnprintf(why + at, WH_REFUSAL - at, format, list);
	va_end(list);
}

static const char *cuda_name(const struct wh_cuda *cuda, int result)
{
	const char *name;

	return cuda->cuGetErrorName(result, &name) ? "an unknown error" : name;
}

/* ---- dma-bufs -------------------------------------------------------------------------------- */

static uint64_t page_start(uint64_t address)
{
	return address & ~((uint64_t)sysconf(_SC_PAGESIZE) - 1);
}

/* Have the pages of a range. 0 or CUDA's error. */
static int export_range(struct wh_cuda *cuda, const struct wh_segment *segment, uint64_t start,
			uint64_t length, int *fd)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = page_start(start);
	uint64_t size = (start + length - first + page - 1) / page * page;
	struct wh_cuda_scope scope;
	int result = CUDA_NOT_SUPPORTED;

	if (wh_cuda_enter_context(cuda, segment->device, segment->context, &scope))
		return CUDA_INVALID_CONTEXT;
	/* Where the CPU reaches the memory by another way than PCIe, NICs still have to use that.
	 */
	if (segment->device->coherent)
		result = cuda->cuMemGetHandleForAddressRange(fd, first, size, CUDA_RANGE_DMA_BUF,
							     CUDA_RANGE_FLAG_PCIE);
	if (result)
		result =
			cuda->cuMemGetHandleForAddressRange(fd, first, size, CUDA_RANGE_DMA_BUF, 0);
	wh_cuda_leave(&scope);
	return result;
}

static void exports_close(struct rdma_gpu *gpu)
{
	while (gpu->export_count)
		close(gpu->exports[--gpu->export_count].fd);
	free(gpu->exports);
	gpu->exports = NULL;
}

/* Export all of it, in one or a mapping each. 0 or CUDA's error. */
static int exports_make(struct rdma_gpu *gpu, const struct wh_registration *registration,
			bool apart)
{
	size_t count = apart ? registration->segment_count : 1;
	int result = CUDA_OUT_OF_MEMORY;

	if (gpu->exports && gpu->apart == apart)
		return 0;
	exports_close(gpu);
	gpu->exports = calloc(count, sizeof(gpu->exports[0]));
	if (!gpu->exports)
		return result;
	gpu->apart = apart;
	for (result = 0; !result && gpu->export_count < count;) {
		const struct wh_segment *segment = &registration->segments[gpu->export_count];
		struct rdma_export *export = &gpu->exports[gpu->export_count];

		export->start = apart ? segment->start : registration->address;
		export->length = apart ? segment->length : registration->length;
		result = export_range(registration->domain->cuda, segment, export->start,
				      export->length, &export->fd);
		gpu->export_count += !result;
	}
	if (result)
		exports_close(gpu);
	return result;
}

static int add_export(struct rdma_mrs *mrs, const struct rdma_export *export)
{
	uint64_t chunk = mrs->nic->chunk, length;
	int error = 0;

	for (uint64_t at = 0; at < export->length && !error; at += length) {
		uint64_t address = export->start + at;

		length = export->length - at < chunk ? export->length - at : chunk;
		errno = 0;
		error = rdma_mrs_add(mrs,
				     mrs->nic->rdma->verbs->reg_dmabuf_mr(
					     mrs->nic->pd, address - page_start(export->start),
					     length, address, export->fd, mrs->rights),
				     length);
	}
	return error;
}

/* Does the NIC take any? Asked once. 0 or an errno. */
static int ask_nic(struct rdma_nic *nic)
{
	if (!nic->dma_buf) {
		int error = wh_verbs_dma_buf(nic->rdma->verbs, nic->pd);

		nic->dma_buf = error ? -error : 1;
	}
	return nic->dma_buf > 0 ? 0 : -nic->dma_buf;
}

static bool by_dma_buf(struct rdma_mrs *mrs, struct rdma_gpu *gpu,
		       const struct wh_registration *registration, char why[WH_REFUSAL])
{
	struct wh_cuda *cuda = registration->domain->cuda;
	int result = 0, error = ask_nic(mrs->nic);

	if (error) {
		note(why, WH_RDMA_DMA_BUF, "%s%s",
		     error == ENOSYS ? "libibverbs before 34" : "the NIC: ",
		     error == ENOSYS ? "" : strerror(error));
		return false;
	}
	if (!cuda->cuMemGetHandleForAddressRange || !registration->device->dma_buf) {
		note(why, WH_RDMA_DMA_BUF, "%s",
		     registration->device->dma_buf ?
			     "CUDA before 11.7" :
			     "the GPU's driver has none (its open modules do)");
		return false;
	}
	for (int apart = gpu->exports && gpu->apart; apart < 2; apart++) {
		if (apart && registration->segment_count == 1)
			break;
		error = 0;
		result = exports_make(gpu, registration, apart);
		for (size_t i = 0; !result && !error && i < gpu->export_count; i++)
			error = add_export(mrs, &gpu->exports[i]);
		if (!result && !error)
			return true;
	}
	note(why, WH_RDMA_DMA_BUF, "%s", error ? strerror(error) : cuda_name(cuda, result));
	return false;
}

/* ---- by address ------------------------------------------------------------------------------ */

static int add_range(struct rdma_mrs *mrs, uint64_t start, uint64_t length)
{
	uint64_t chunk = mrs->nic->chunk, part;
	int error = 0;

	for (; length && !error; start += part, length -= part) {
		part = length < chunk ? length : chunk;
		errno = 0;
		error = rdma_mrs_add(mrs,
				     wh_verbs_register(mrs->nic->rdma->verbs, mrs->nic->pd,
						       (void *)(uintptr_t)start, part, mrs->rights),
				     part);
	}
	return error;
}

static bool by_address(struct rdma_mrs *mrs, const struct wh_registration *registration,
		       char why[WH_REFUSAL])
{
	int error = add_range(mrs, registration->address, registration->length);

	if (error && registration->segment_count > 1) {
		error = 0;
		for (size_t i = 0; !error && i < registration->segment_count; i++)
			error = add_range(mrs, registration->segments[i].start,
					  registration->segments[i].length);
	}
	if (error)
		note(why, WH_RDMA_PEERMEM, "%s%s", strerror(error),
		     error == EFAULT ? " (modprobe nvidia-peermem)" : "");
	return !error;
}

/* ---- getting --------------------------------------------------------------------------------- */

static struct rdma_mrs *find(const struct rdma_gpu *gpu, const struct rdma_nic *nic, int rights)
{
	struct rdma_mrs *mrs = gpu->mrs;

	while (mrs && (mrs->nic != nic || mrs->rights != rights))
		mrs = mrs->next;
	return mrs;
}

/* Can a NIC have this memory at all? */
static bool can_be(const struct wh_registration *registration, char why[WH_REFUSAL],
		   enum wh_rdma_method method)
{
	const struct wh_cuda *cuda = registration->domain->cuda;

	if (registration->kind == WH_MEMORY_MANAGED) {
		note(why, method, "managed memory has no place of its own");
		return false;
	}
	if (rdma_flush_policy(cuda, registration->device) >= 0)
		return true;
	note(why, method, "cuda:%d neither orders nor flushes what NICs write",
	     registration->device->ordinal);
	return false;
}

/* By this way? */
static bool try_way(struct rdma_mrs *mrs, struct rdma_gpu *gpu,
		    const struct wh_registration *registration, enum wh_rdma_method method,
		    char why[WH_REFUSAL])
{
	mrs->method = method;
	return can_be(registration, why, method) &&
	       (method == WH_RDMA_DMA_BUF ? by_dma_buf(mrs, gpu, registration, why) :
					    by_address(mrs, registration, why));
}

static void drop(struct wh_registration *registration)
{
	struct rdma_gpu *gpu = registration->rdma;

	if (--gpu->users)
		return;
	exports_close(gpu);
	free(gpu);
	registration->rdma = NULL;
}

static int no_way(const struct rdma_nic *nic, const struct wh_registration *registration,
		  char why[WH_REFUSAL])
{
	char reasons[WH_REFUSAL];

	memcpy(reasons, why, sizeof(reasons));
	snprintf(why, WH_REFUSAL, "%.20s does not reach memory of cuda:%d: %.120s", nic->name,
		 registration->device ? registration->device->ordinal : 0,
		 *reasons ? reasons : "the knob rdma_gpu leaves no way");
	return -EOPNOTSUPP;
}

int rdma_gpu_get(struct rdma_nic *nic, struct wh_region *region, int rights, struct rdma_mrs **out,
		 char why[WH_REFUSAL])
{
	struct wh_registration *registration = region->registration;
	struct rdma *rdma = nic->rdma;
	struct rdma_mrs *mrs = NULL;
	bool staged = false, there = false;

	why[0] = 0;
	if (!registration->rdma)
		registration->rdma = calloc(1, sizeof(*registration->rdma));
	if (registration->rdma)
		mrs = find(registration->rdma, nic, rights);
	if (mrs) {
		mrs->users++;
		*out = mrs;
		return 0;
	}
	mrs = calloc(1, sizeof(*mrs));
	if (!registration->rdma || !mrs) {
		free(mrs);
		snprintf(why, WH_REFUSAL, "no memory");
		return -ENOMEM;
	}
	registration->rdma->users++;
	mrs->nic = nic;
	mrs->rights = rights;
	mrs->users = 1;
	for (unsigned i = 0; i < rdma->method_count && !there && !staged; i++) {
		staged = rdma->methods[i] == WH_RDMA_STAGED;
		there = !staged &&
			try_way(mrs, registration->rdma, registration, rdma->methods[i], why);
	}
	if (there) {
		mrs->next = registration->rdma->mrs;
		registration->rdma->mrs = mrs;
		if (rdma_flush_policy(rdma->engine->cuda, registration->device))
			atomic_store(&rdma->flushes, true);
		*out = mrs;
		return 0;
	}
	free(mrs->chunks);
	free(mrs);
	drop(registration);
	if (!staged)
		return no_way(nic, registration, why);
	*out = NULL;
	return 0;
}

void rdma_gpu_put(struct wh_registration *registration, struct rdma_mrs *mrs)
{
	struct rdma_mrs **at = &registration->rdma->mrs;

	if (--mrs->users)
		return;
	while (*at != mrs)
		at = &(*at)->next;
	*at = mrs->next;
	rdma_mrs_clear(mrs);
	free(mrs->chunks);
	free(mrs);
	drop(registration);
}
