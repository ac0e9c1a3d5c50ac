/* SPDX-License-Identifier: Apache-2.0 */
/* rdma: register GPU memory with NICs. The methods, tried in the order of the setting `rdma_gpu`:
 *
 *   dmabuf    The GPU's driver exports the range as a file descriptor, which the NIC's driver
 *             imports. One descriptor serves all NICs: every export would take as much of the
 *             GPU's BAR again.
 *   peermem   The NIC is given the GPU's own address, which a kernel module (nvidia-peermem)
 *             translates.
 *   staged    Not registered. Bytes go through pinned memory (stage.c, bounce-server.c).
 *
 * Memory of several mappings (cuMemCreate) is tried as a whole, then mapping by mapping. MRs are
 * shared by all regions of the same registration that grant the same rights; the last region
 * deregisters. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/memory.h"
#include "transport/rdma/rdma.h"

/* A range of the memory as a dma-buf, which begins with the page of `start`. */
struct rdma_export {
	uint64_t start, length;
	int fd;
};

/* What all NICs and regions of one registration share. By one thread at a time: claims in memory.c.
 */
struct rdma_gpu {
	unsigned users; /* of `mrs`, and callers about to add some */
	struct rdma_mrs *mrs;
	struct rdma_export *exports; /* they cover the range, in order; NULL: none yet */
	size_t export_count;
	bool apart; /* one export for each mapping */
};

/* ---- methods --------------------------------------------------------------------------------- */

static const char *const method_names[] = {
	[WH_RDMA_HOST] = "host",
	[WH_RDMA_DMA_BUF] = "dmabuf",
	[WH_RDMA_PEERMEM] = "peermem",
	[WH_RDMA_STAGED] = "staged",
};

const char *rdma_method_name(enum wh_rdma_method method)
{
	return method_names[method];
}

int rdma_methods_parse(struct rdma *rdma)
{
	const char *setting = wh_engine_config(rdma->engine)->text[WH_SETTING_RDMA_GPU];

	rdma->method_count = 0;
	for (const char *at = setting; *at; at += strcspn(at, ","), at += *at == ',') {
		size_t length = strcspn(at, ",");
		uint8_t method = WH_RDMA_DMA_BUF;

		while (method <= WH_RDMA_STAGED && (strlen(method_names[method]) != length ||
						    memcmp(method_names[method], at, length) != 0))
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

/* Append why a method does not work. */
static void gpu_note_reason(char why[WH_REFUSAL], enum wh_rdma_method method, const char *format,
			    ...) __attribute__((format(printf, 3, 4)));

static void gpu_note_reason(char why[WH_REFUSAL], enum wh_rdma_method method, const char *format,
			    ...)
{
	size_t at = strlen(why);
	va_list list;

	at += (size_t)snprintf(why + at, WH_REFUSAL - at, "%s%s: ", at ? "; " : "",
			       method_names[method]);
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

/* Export a range. 0 or CUDA's error. */
static int export_range(struct wh_cuda *cuda, const struct wh_segment *segment, uint64_t start,
			uint64_t length, int *fd)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = page_start(start);
	uint64_t size = (start + length - first + page - 1) / page * page;
	struct wh_cuda_scope scope;
	int result = CUDA_NOT_SUPPORTED;

	if (wh_cuda_enter_context(cuda, segment->device, segment->context, &scope))
		return CUDA_INVALID_CONTEXT;
	/* On coherent platforms the CPU does not reach the memory by PCIe, but NICs must. */
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

/* Export all of it, as one or mapping by mapping. 0 or CUDA's error. */
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

static int mrs_add_export(struct rdma_mrs *mrs, const struct rdma_export *export)
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

/* Does the NIC import dma-bufs? Asked once. 0 or an errno. */
static int nic_check_dma_buf(struct rdma_nic *nic)
{
	if (!nic->dma_buf) {
		int error = wh_verbs_dma_buf(nic->rdma->verbs, nic->pd);

		nic->dma_buf = error ? -error : 1;
	}
	return nic->dma_buf > 0 ? 0 : -nic->dma_buf;
}

static bool gpu_register_dma_buf(struct rdma_mrs *mrs, struct rdma_gpu *gpu,
				 const struct wh_registration *registration, char why[WH_REFUSAL])
{
	struct wh_cuda *cuda = registration->domain->cuda;
	int result = 0, error = nic_check_dma_buf(mrs->nic);

	if (error) {
		gpu_note_reason(why, WH_RDMA_DMA_BUF, "%s%s",
				error == ENOSYS ? "libibverbs before 34" : "the NIC: ",
				error == ENOSYS ? "" : strerror(error));
		return false;
	}
	if (!cuda->cuMemGetHandleForAddressRange || !registration->device->dma_buf) {
		gpu_note_reason(why, WH_RDMA_DMA_BUF, "%s",
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
			error = mrs_add_export(mrs, &gpu->exports[i]);
		if (!result && !error)
			return true;
	}
	gpu_note_reason(why, WH_RDMA_DMA_BUF, "%s",
			error ? strerror(error) : cuda_name(cuda, result));
	return false;
}

/* ---- peermem --------------------------------------------------------------------------------- */

static int mrs_add_range(struct rdma_mrs *mrs, uint64_t start, uint64_t length)
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

static bool gpu_register_address(struct rdma_mrs *mrs, const struct wh_registration *registration,
				 char why[WH_REFUSAL])
{
	int error = mrs_add_range(mrs, registration->address, registration->length);

	if (error && registration->segment_count > 1) {
		error = 0;
		for (size_t i = 0; !error && i < registration->segment_count; i++)
			error = mrs_add_range(mrs, registration->segments[i].start,
					      registration->segments[i].length);
	}
	if (error)
		gpu_note_reason(why, WH_RDMA_PEERMEM, "%s%s", strerror(error),
				error == EFAULT ? " (modprobe nvidia-peermem)" : "");
	return !error;
}

/* ---- shared registrations -------------------------------------------------------------------- */

static struct rdma_mrs *gpu_find_mrs(const struct rdma_gpu *gpu, const struct rdma_nic *nic,
				     int rights)
{
	struct rdma_mrs *mrs = gpu->mrs;

	while (mrs && (mrs->nic != nic || mrs->rights != rights))
		mrs = mrs->next;
	return mrs;
}

/* Can any NIC register this memory? */
static bool gpu_is_registrable(const struct wh_registration *registration, char why[WH_REFUSAL],
			       enum wh_rdma_method method)
{
	const struct wh_cuda *cuda = registration->domain->cuda;

	if (registration->kind == WH_MEMORY_MANAGED) {
		gpu_note_reason(why, method, "managed memory migrates, so NICs cannot register it");
		return false;
	}
	if (rdma_flush_policy(cuda, registration->device) >= 0)
		return true;
	gpu_note_reason(why, method, "cuda:%d neither orders nor flushes what NICs write",
			registration->device->ordinal);
	return false;
}

static bool gpu_try_method(struct rdma_mrs *mrs, struct rdma_gpu *gpu,
			   const struct wh_registration *registration, enum wh_rdma_method method,
			   char why[WH_REFUSAL])
{
	mrs->method = method;
	return gpu_is_registrable(registration, why, method) &&
	       (method == WH_RDMA_DMA_BUF ? gpu_register_dma_buf(mrs, gpu, registration, why) :
					    gpu_register_address(mrs, registration, why));
}

static void gpu_put_shared(struct wh_registration *registration)
{
	struct rdma_gpu *gpu = registration->rdma;

	if (--gpu->users)
		return;
	exports_close(gpu);
	free(gpu);
	registration->rdma = NULL;
}

static int gpu_refuse(const struct rdma_nic *nic, const struct wh_registration *registration,
		      char why[WH_REFUSAL])
{
	char reasons[WH_REFUSAL];

	memcpy(reasons, why, sizeof(reasons));
	snprintf(why, WH_REFUSAL, "%.20s does not reach memory of cuda:%d: %.120s", nic->name,
		 registration->device ? registration->device->ordinal : 0,
		 *reasons ? reasons : "the setting rdma_gpu names no method that works");
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
		mrs = gpu_find_mrs(registration->rdma, nic, rights);
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
		there = !staged && gpu_try_method(mrs, registration->rdma, registration,
						  rdma->methods[i], why);
	}
	if (there) {
		mrs->next = registration->rdma->mrs;
		registration->rdma->mrs = mrs;
		if (rdma_flush_policy(wh_engine_cuda(rdma->engine), registration->device))
			atomic_store(&rdma->flushes, true);
		*out = mrs;
		return 0;
	}
	free(mrs->chunks);
	free(mrs);
	gpu_put_shared(registration);
	if (!staged)
		return gpu_refuse(nic, registration, why);
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
	gpu_put_shared(registration);
}
