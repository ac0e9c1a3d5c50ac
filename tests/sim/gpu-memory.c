/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that GPUs reach: their own, that of other processes, and locked pages of the host. */
#include <string.h>
#include <sys/mman.h>

#include "calls.h"
#include "gpu.h"

#define STILL_MOST (10 * SIM_SEC) /* longer than GPUs stand still */

static struct gpu_range *ranges;
static uint64_t numbers;

/* ---- addresses ------------------------------------------------------------------------------- */

struct gpu_range *gpu_range_find(int node, uint64_t address)
{
	for (struct gpu_range *r = ranges; r; r = r->next)
		if (r->context->node == node && address - r->base < r->size)
			return r;
	return NULL;
}

uint8_t *gpu_translate(const struct gpu_context *context, uint64_t address, size_t *length,
		       bool by_kernel)
{
	const struct gpu_range *range = gpu_range_find(context->node, address);
	uint64_t offset = range ? address - range->base : 0;
	int device;

	if (!range)
		return NULL;
	if (*length > range->size - offset)
		*length = range->size - offset;
	if (!range->memory)
		return (uint8_t *)(uintptr_t)address;
	/* What was imported is mapped on the GPU that has imported it. */
	device = range->kind == GPU_IMPORTED ? range->context->device : range->memory->device;
	if (by_kernel && device != context->device && !(context->peers >> device & 1))
		return NULL;
	if (range->memory->withdrawn)
		sim_fail("gpu",
			 "cuda:%d of node %d moves bytes of memory that its owner has "
			 "taken back",
			 context->device, context->node);
	return range->memory->bytes + offset;
}

static size_t whole_pages(size_t size)
{
	return (size + 4095) / 4096 * 4096;
}

static void *reserve(size_t size, int prot)
{
	void *base = mmap(NULL, whole_pages(size), prot,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (base == MAP_FAILED)
		sim_die("no memory for a GPU's");
	return base;
}

/* The addresses stay taken: whoever still touches them faults. */
static void seal(void *base, size_t size)
{
	if (mmap(base, whole_pages(size), PROT_NONE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED)
		sim_die("memory of a GPU cannot be sealed");
}

static struct gpu_range *range_new(struct gpu_context *context, enum gpu_kind kind, uint64_t base,
				   size_t size)
{
	struct gpu_range *range = calloc(1, sizeof(*range));

	*range = (struct gpu_range){ .next = ranges,
				     .base = base,
				     .size = size,
				     .kind = kind,
				     .context = context,
				     .number = ++numbers };
	ranges = range;
	return range;
}

static void memory_release(struct gpu_memory *memory)
{
	if (--memory->references)
		return;
	seal(memory->bytes, memory->size);
	free(memory);
}

static void range_free(struct gpu_range *range)
{
	struct gpu_range **at = &ranges;

	while (*at != range)
		at = &(*at)->next;
	*at = range->next;
	if (range->memory)
		memory_release(range->memory);
	else if (range->kind == GPU_PINNED)
		seal((void *)(uintptr_t)range->base, range->size);
	free(range);
}

int gpu_live_ranges(int node)
{
	int count = 0;

	for (const struct gpu_range *r = ranges; r; r = r->next)
		count += r->context->node == node && !r->program;
	return count;
}

/* ---- a GPU's own ----------------------------------------------------------------------------- */

static struct gpu_range *memory_new(struct gpu_context *context, size_t size)
{
	struct gpu_range *range =
		range_new(context, GPU_ALLOCATED, (uintptr_t)reserve(size, PROT_NONE), size);

	range->memory = calloc(1, sizeof(*range->memory));
	*range->memory = (struct gpu_memory){ .id = range->number,
					      .host = sim_node_host(context->node),
					      .device = context->device,
					      .bytes = reserve(size, PROT_READ | PROT_WRITE),
					      .size = size,
					      .references = 1 };
	memset(range->memory->bytes, 0xa5, size < 4096 ? size : 4096);
	return range;
}

void sim_gpu_open(int node)
{
	struct gpu_process *process = gpu_process(node);

	process->initialised = process->program = true;
}

uint8_t *sim_gpu_alloc(int node, int device, size_t size, uint64_t *address)
{
	struct gpu_context *context = &gpu_process(node)->contexts[device];
	struct gpu_range *range;

	if (context->error)
		return NULL;
	range = memory_new(context, size);
	range->program = true;
	*address = range->base;
	return range->memory->bytes;
}

void sim_gpu_peer_left(int node)
{
	gpu_process(node)->peer_left = sim_time;
}

void sim_gpu_free(int node, uint64_t address)
{
	struct gpu_range *range = gpu_range_find(node, address);
	int64_t left = gpu_process(node)->peer_left;

	if (node_of(node)->alive && !(left && sim_time - left < STILL_MOST))
		range->memory->withdrawn = true;
	range_free(range);
}

bool sim_gpu_pinned(int node, const void *address, size_t length)
{
	uint64_t from = (uintptr_t)address;

	for (const struct gpu_range *r = ranges; r; r = r->next)
		if (r->context->node == node && !r->context->error && r->base < from + length &&
		    from < r->base + r->size)
			return true;
	return false;
}

int gpu_mem_get_info(size_t *available, size_t *total)
{
	int error;

	gpu_enter("cuMemGetInfo", &error);
	*available = *total = (size_t)1 << 40;
	return error;
}

int gpu_mem_alloc(CUdeviceptr *out, size_t bytes)
{
	int error;
	struct gpu_context *context = gpu_enter("cuMemAlloc", &error);

	if (!context)
		return error;
	if (gpu_lacks_memory("cuMemAlloc"))
		return CUDA_OUT_OF_MEMORY;
	*out = memory_new(context, bytes)->base;
	return 0;
}

/* Freeing waits for the streams of the context. */
static int range_give_back(const char *call, uint64_t address, enum gpu_kind kind)
{
	int error;
	struct gpu_context *context = gpu_enter(call, &error);
	struct gpu_range *range;

	if (!context)
		return error;
	range = gpu_range_find(context->node, address);
	if (!range || range->kind != kind || (range->base != address && kind != GPU_REGISTERED))
		sim_fail("gpu", "%s of %#llx, which is not to be freed", call,
			 (unsigned long long)address);
	gpu_context_wait(range->context);
	range_free(range);
	return 0;
}

int gpu_mem_free(CUdeviceptr address)
{
	return range_give_back("cuMemFree", address, GPU_ALLOCATED);
}

int gpu_mem_get_address_range(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
	int error;
	const struct gpu_context *context = gpu_enter("cuMemGetAddressRange", &error);
	const struct gpu_range *range = context ? gpu_range_find(context->node, address) : NULL;

	if (!range)
		return error ? error : CUDA_NOT_FOUND;
	if (base)
		*base = range->base;
	if (size)
		*size = range->size;
	return 0;
}

/* ---- the host's ------------------------------------------------------------------------------ */

int gpu_mem_host_alloc(void **out, size_t bytes, unsigned flags)
{
	int error;
	struct gpu_context *context = gpu_enter("cuMemHostAlloc", &error);

	(void)flags;
	if (!context)
		return error;
	if (gpu_lacks_memory("cuMemHostAlloc"))
		return CUDA_OUT_OF_MEMORY;
	*out = reserve(bytes, PROT_READ | PROT_WRITE);
	range_new(context, GPU_PINNED, (uintptr_t)*out, bytes);
	return 0;
}

int gpu_mem_free_host(void *address)
{
	return range_give_back("cuMemFreeHost", (uintptr_t)address, GPU_PINNED);
}

int gpu_mem_host_register(void *address, size_t bytes, unsigned flags)
{
	int error;
	struct gpu_context *context = gpu_enter("cuMemHostRegister", &error);

	(void)flags;
	if (!context)
		return error;
	if (sim_gpu_pinned(context->node, address, bytes))
		return CUDA_HOST_MEMORY_ALREADY_REGISTERED;
	if (gpu_lacks_memory("cuMemHostRegister"))
		return CUDA_OUT_OF_MEMORY;
	range_new(context, GPU_REGISTERED, (uintptr_t)address, bytes);
	return 0;
}

int gpu_mem_host_unregister(void *address)
{
	return range_give_back("cuMemHostUnregister", (uintptr_t)address, GPU_REGISTERED);
}

int gpu_mem_host_get_device_pointer(CUdeviceptr *out, void *address, unsigned flags)
{
	int error;
	const struct gpu_context *context = gpu_enter("cuMemHostGetDevicePointer", &error);

	(void)flags;
	if (!context)
		return error;
	if (!gpu_range_find(context->node, (uintptr_t)address))
		return CUDA_INVALID_VALUE;
	*out = (uintptr_t)address;
	return 0;
}

/* ---- of other processes ---------------------------------------------------------------------- */

int gpu_ipc_get_mem_handle(struct wh_cuda_ipc_handle *out, CUdeviceptr address)
{
	int error;
	const struct gpu_context *context = gpu_enter("cuIpcGetMemHandle", &error);
	const struct gpu_range *range = context ? gpu_range_find(context->node, address) : NULL;

	if (error)
		return error;
	if (!range || range->kind != GPU_ALLOCATED)
		return CUDA_INVALID_VALUE;
	memset(out, 0, sizeof(*out));
	memcpy(out->bytes, &range->memory->id, sizeof(range->memory->id));
	return 0;
}

/* The memory with that number, of a process of this host that is there. */
static const struct gpu_range *range_exported(const struct gpu_context *context, uint64_t id)
{
	for (const struct gpu_range *r = ranges; r; r = r->next)
		if (r->kind == GPU_ALLOCATED && r->memory->id == id &&
		    node_of(r->context->node)->alive &&
		    r->memory->host == sim_node_host(context->node))
			return r;
	return NULL;
}

int gpu_ipc_open_mem_handle(CUdeviceptr *out, struct wh_cuda_ipc_handle handle, unsigned flags)
{
	int error;
	struct gpu_context *context = gpu_enter("cuIpcOpenMemHandle", &error);
	const struct gpu_range *exported;
	struct gpu_range *range;
	uint64_t id;

	(void)flags;
	if (!context)
		return error;
	memcpy(&id, handle.bytes, sizeof(id));
	exported = range_exported(context, id);
	if (!exported || exported->context->node == context->node)
		return CUDA_INVALID_VALUE;
	if (exported->memory->device != context->device && sim_options.gpu_apart)
		return CUDA_PEER_ACCESS_UNSUPPORTED;
	if (gpu_lacks_memory("cuIpcOpenMemHandle"))
		return CUDA_OUT_OF_MEMORY;
	for (struct gpu_range *r = ranges; r; r = r->next)
		if (r->kind == GPU_IMPORTED && r->context == context &&
		    r->memory == exported->memory) {
			r->opened++;
			*out = r->base;
			return 0;
		}
	range = range_new(context, GPU_IMPORTED, (uintptr_t)reserve(exported->size, PROT_NONE),
			  exported->size);
	range->memory = exported->memory;
	range->memory->references++;
	range->opened = 1;
	*out = range->base;
	return 0;
}

int gpu_ipc_close_mem_handle(CUdeviceptr address)
{
	int error;
	const struct gpu_context *context = gpu_enter("cuIpcCloseMemHandle", &error);
	struct gpu_range *range = context ? gpu_range_find(context->node, address) : NULL;

	if (error)
		return error;
	if (!range || range->kind != GPU_IMPORTED || range->base != address)
		sim_fail("gpu", "cuIpcCloseMemHandle of %#llx, which is not open",
			 (unsigned long long)address);
	gpu_context_wait(range->context);
	if (!--range->opened)
		range_free(range);
	return 0;
}

/* ---- attributes ------------------------------------------------------------------------------ */

static int attribute_of(const struct gpu_range *range, int attribute, uint64_t address,
			uint64_t *value)
{
	bool on_gpu = range->memory;

	*value = 0;
	switch (attribute) {
	case CUDA_POINTER_CONTEXT:
		*value = (uintptr_t)range->context;
		return 0;
	case CUDA_POINTER_MEMORY_TYPE:
		*value = on_gpu ? CUDA_MEMORY_DEVICE : CUDA_MEMORY_HOST;
		return 0;
	case CUDA_POINTER_DEVICE_ADDRESS:
		*value = address;
		return 0;
	case CUDA_POINTER_HOST_ADDRESS:
		*value = address;
		return on_gpu ? CUDA_INVALID_VALUE : 0;
	case CUDA_POINTER_SYNC_MEMOPS:
		*value = (uint64_t)range->sync;
		return 0;
	case CUDA_POINTER_BUFFER_ID:
		*value = range->number;
		return 0;
	case CUDA_POINTER_IS_MANAGED:
	case CUDA_POINTER_HANDLE_TYPES:
	case CUDA_POINTER_RDMA_CAPABLE:
	case CUDA_POINTER_POOL:
		return 0;
	case CUDA_POINTER_DEVICE_ORDINAL:
		*value = (uint64_t)(on_gpu ? range->memory->device : range->context->device);
		return 0;
	case CUDA_POINTER_IPC_CAPABLE:
		*value = range->kind == GPU_ALLOCATED;
		return 0;
	case CUDA_POINTER_RANGE_START:
	case CUDA_POINTER_MAPPING_BASE:
		*value = range->base;
		return 0;
	case CUDA_POINTER_RANGE_SIZE:
	case CUDA_POINTER_MAPPING_SIZE:
		*value = range->size;
		return 0;
	case CUDA_POINTER_MAPPED:
		*value = 1;
		return 0;
	case CUDA_POINTER_MEMORY_ID:
		*value = on_gpu ? range->memory->id : range->number;
		return 0;
	default:
		return CUDA_INVALID_VALUE;
	}
}

static size_t attribute_size(int attribute)
{
	switch (attribute) {
	case CUDA_POINTER_MEMORY_TYPE:
	case CUDA_POINTER_SYNC_MEMOPS:
	case CUDA_POINTER_IS_MANAGED:
	case CUDA_POINTER_DEVICE_ORDINAL:
	case CUDA_POINTER_IPC_CAPABLE:
	case CUDA_POINTER_MAPPED:
	case CUDA_POINTER_RDMA_CAPABLE:
		return 4;
	default:
		return 8;
	}
}

int gpu_pointer_get_attribute(void *out, int attribute, CUdeviceptr address)
{
	int node = node_self(), error;
	const struct gpu_range *range;
	uint64_t value;

	call_point("cuPointerGetAttribute", (uint64_t)attribute);
	if (!gpu_process(node)->initialised)
		return CUDA_NOT_INITIALIZED;
	range = gpu_range_find(node, address);
	if (!range)
		return CUDA_INVALID_VALUE;
	if (range->context->error)
		return range->context->error;
	error = attribute_of(range, attribute, address, &value);
	if (!error)
		memcpy(out, &value, attribute_size(attribute));
	return error;
}

int gpu_pointer_set_attribute(const void *value, int attribute, CUdeviceptr address)
{
	struct gpu_range *range = gpu_range_find(node_self(), address);

	call_point("cuPointerSetAttribute", (uint64_t)attribute);
	if (!range || attribute != CUDA_POINTER_SYNC_MEMOPS)
		return CUDA_INVALID_VALUE;
	if (range->context->error)
		return range->context->error;
	memcpy(&range->sync, value, sizeof(range->sync));
	return 0;
}
