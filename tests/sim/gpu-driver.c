/* SPDX-License-Identifier: Apache-2.0 */
/* libcuda, as libwherry finds it by dlsym(): devices, contexts, kernels by name. */
#include <string.h>

#include "calls.h"
#include "gpu.h"
#include "kernels/blocks.h"

#define DEPTH 8 /* contexts that a thread has pushed, at most */
#define VERSION 13000

static struct gpu gpus[SIM_HOSTS][GPUS];
/* Of hosts: until when a GPU stands still, and how long that has been or will be. */
static struct {
	int64_t until, total;
} still[SIM_HOSTS];
static struct gpu_process **processes; /* by node */
static int process_count;

/* Of the running thread, as all thread-local variables are: fiber.c. */
static _Thread_local struct gpu_context *stack[DEPTH];
static _Thread_local int depth;

struct gpu *gpu_of(int host, int device)
{
	return &gpus[host][device];
}

struct gpu_process *gpu_process(int node)
{
	while (process_count <= node) {
		struct gpu_process *process = calloc(1, sizeof(*process));

		for (int i = 0; i < GPUS; i++)
			process->contexts[i] =
				(struct gpu_context){ .node = process_count, .device = i };
		processes = sim_grow(processes, (size_t)process_count + 1,
				     sizeof(struct gpu_process *));
		processes[process_count++] = process;
	}
	return processes[node];
}

/* ---- faults ---------------------------------------------------------------------------------- */

bool gpu_lacks_memory(const char *call)
{
	if (!sim_chance(sim_options.gpu_memory))
		return false;
	sim_trace("# gpu: %s fails", call);
	return true;
}

void gpu_context_fail(struct gpu_context *context, int error)
{
	if (context->error)
		return;
	sim_trace("# gpu: cuda:%d of node %d is lost: %d", context->device, context->node, error);
	sim_counts.gpu_errors++;
	context->error = error;
	gpu_streams_drop(context);
}

void sim_gpu_stall(int host, int index, int64_t ns)
{
	struct gpu *gpu = gpu_of(host, index % GPUS);
	int64_t begin = sim_time > still[host].until ? sim_time : still[host].until;

	if (gpu->stalled_until > sim_time)
		return;
	sim_trace("# gpu: cuda:%d of host %d stands still for %.3f s", index % GPUS, host,
		  (double)ns / 1e9);
	gpu->stalled_until = sim_time + ns;
	if (gpu->stalled_until > begin) {
		still[host].total += gpu->stalled_until - begin;
		still[host].until = gpu->stalled_until;
	}
}

int64_t sim_gpu_stalled(int host)
{
	int64_t left = still[host].until - sim_time;

	return still[host].total - (left > 0 ? left : 0);
}

void sim_gpu_heal(void)
{
	memset(gpus, 0, sizeof(gpus));
}

/* Its process has no GPUs any more. */
void gpu_crash(int node)
{
	for (int i = 0; i < GPUS && sim_options.gpus; i++)
		gpu_context_fail(&gpu_process(node)->contexts[i], CUDA_DEINITIALIZED);
}

bool sim_gpu_lost(int node)
{
	for (int i = 0; i < GPUS; i++)
		if (gpu_process(node)->contexts[i].error)
			return true;
	return false;
}

int sim_gpu_objects(int node)
{
	const struct gpu_process *process;
	int count;

	/* What a lost context has is not to be freed. */
	if (!sim_options.gpus || sim_gpu_lost(node))
		return 0;
	process = gpu_process(node);
	count = process->objects + gpu_live_ranges(node);
	for (int i = 0; i < GPUS; i++)
		count += (int)process->contexts[i].references;
	return count;
}

/* ---- the library ----------------------------------------------------------------------------- */

static struct gpu_process *process_enter(const char *call, uint64_t argument, int *error)
{
	struct gpu_process *process = gpu_process(node_self());

	call_point(call, argument);
	*error = process->initialised ? 0 : CUDA_NOT_INITIALIZED;
	return process;
}

struct gpu_context *gpu_enter(const char *call, int *error)
{
	struct gpu_context *context = depth ? stack[depth - 1] : NULL;

	process_enter(call, context ? (uint64_t)context->device : 9, error);
	if (!*error)
		*error = !context ? CUDA_INVALID_CONTEXT : context->error;
	return *error ? NULL : context;
}

static int init(unsigned flags)
{
	int error;

	process_enter("cuInit", flags, &error)->initialised = true;
	return 0;
}

static int driver_get_version(int *out)
{
	*out = VERSION;
	return 0;
}

static int get_error_name(int result, const char **out)
{
	*out = result == CUDA_OUT_OF_MEMORY     ? "CUDA_ERROR_OUT_OF_MEMORY" :
	       result == CUDA_LAUNCH_FAILED     ? "CUDA_ERROR_LAUNCH_FAILED" :
	       result == CUDA_INVALID_VALUE     ? "CUDA_ERROR_INVALID_VALUE" :
	       result == CUDA_NO_BINARY_FOR_GPU ? "CUDA_ERROR_NO_BINARY_FOR_GPU" :
						  "CUDA_ERROR_UNKNOWN";
	return 0;
}

static int get_error_string(int result, const char **out)
{
	(void)result;
	*out = "the simulation says so";
	return 0;
}

/* ---- devices --------------------------------------------------------------------------------- */

static int device_get_count(int *out)
{
	int error;

	process_enter("cuDeviceGetCount", 0, &error);
	*out = sim_options.gpus < GPUS ? sim_options.gpus : GPUS;
	return error;
}

static int device_get(int *out, int ordinal)
{
	*out = ordinal;
	return 0;
}

static int device_get_name(char *out, int length, int device)
{
	(void)device;
	snprintf(out, (size_t)length, "Simulated");
	return 0;
}

static int device_get_uuid(struct wh_cuda_uuid *out, int device)
{
	memset(out, 0x51, sizeof(*out));
	out->bytes[0] = (unsigned char)sim_node_host(node_self());
	out->bytes[1] = (unsigned char)device;
	return 0;
}

static int device_get_attribute(int *out, int attribute, int device)
{
	switch (attribute) {
	case CUDA_DEVICE_MULTIPROCESSORS:
		*out = 4;
		return 0;
	case CUDA_DEVICE_PCI_DOMAIN: /* no machine has that one */
		*out = 0xfade;
		return 0;
	case CUDA_DEVICE_PCI_BUS:
		*out = 1 + device;
		return 0;
	case CUDA_DEVICE_CAPABILITY_MAJOR:
		*out = 9;
		return 0;
	case CUDA_DEVICE_COPY_ENGINES:
		*out = 3;
		return 0;
	case CUDA_DEVICE_UNIFIED_ADDRESSING:
	case CUDA_DEVICE_HOST_REGISTER:
	case CUDA_DEVICE_READ_ONLY_REGISTER:
		*out = 1;
		return 0;
	default:
		*out = 0;
		return 0;
	}
}

static int device_total_mem(size_t *out, int device)
{
	(void)device;
	*out = (size_t)1 << 40;
	return 0;
}

static int device_can_access_peer(int *out, int device, int peer)
{
	*out = device != peer && !sim_options.gpu_apart;
	return 0;
}

/* ---- contexts -------------------------------------------------------------------------------- */

static int primary_retain(CUcontext *out, int device)
{
	int error;
	struct gpu_process *process =
		process_enter("cuDevicePrimaryCtxRetain", (uint64_t)device, &error);

	if (!error && gpu_lacks_memory("cuDevicePrimaryCtxRetain"))
		error = CUDA_OUT_OF_MEMORY;
	if (error)
		return error;
	process->contexts[device].references++;
	*out = (CUcontext)&process->contexts[device];
	return 0;
}

static int primary_release(int device)
{
	int error;
	struct gpu_process *process =
		process_enter("cuDevicePrimaryCtxRelease", (uint64_t)device, &error);

	if (!process->contexts[device].references)
		sim_fail("gpu", "cuDevicePrimaryCtxRelease of a context that nobody has retained");
	process->contexts[device].references--;
	return error;
}

static int primary_get_state(int device, unsigned *flags, int *active)
{
	int error;
	const struct gpu_process *process =
		process_enter("cuDevicePrimaryCtxGetState", (uint64_t)device, &error);

	*flags = 0;
	*active = process->program || process->contexts[device].references;
	return error;
}

static int ctx_get_current(CUcontext *out)
{
	*out = depth ? (CUcontext)stack[depth - 1] : NULL;
	return 0;
}

static int ctx_set_current(CUcontext context)
{
	depth -= depth > 0;
	if (context)
		stack[depth++] = (struct gpu_context *)context;
	return 0;
}

static int ctx_push_current(CUcontext context)
{
	int error;

	process_enter("cuCtxPushCurrent", 0, &error);
	if (depth == DEPTH)
		sim_die("a thread has %d contexts", depth);
	if (!error)
		stack[depth++] = (struct gpu_context *)context;
	return error;
}

static int ctx_pop_current(CUcontext *out)
{
	if (!depth)
		sim_fail("gpu", "cuCtxPopCurrent of a thread without a context");
	*out = (CUcontext)stack[--depth];
	return 0;
}

static int ctx_get_device(int *out)
{
	int error;
	const struct gpu_context *context = gpu_enter("cuCtxGetDevice", &error);

	if (context)
		*out = context->device;
	return error;
}

static int ctx_enable_peer_access(CUcontext peer, unsigned flags)
{
	const struct gpu_context *other = (struct gpu_context *)peer;
	int error;
	struct gpu_context *context = gpu_enter("cuCtxEnablePeerAccess", &error);

	(void)flags;
	if (!context)
		return error;
	if (sim_options.gpu_apart)
		return CUDA_PEER_ACCESS_UNSUPPORTED;
	if (context->peers >> other->device & 1)
		return CUDA_PEER_ACCESS_ALREADY_ENABLED;
	context->peers |= 1u << other->device;
	return 0;
}

static int get_stream_priority_range(int *least, int *greatest)
{
	*least = 0;
	*greatest = -5;
	return 0;
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* All kernels of the library do the same, with different alignments: their number is enough. */
static int module_load(CUmodule *out, const void *image, unsigned count, int *options,
		       void **values)
{
	int error;
	const struct gpu_context *context = gpu_enter("cuModuleLoadDataEx", &error);

	(void)image;
	(void)count;
	(void)options;
	(void)values;
	if (!context)
		return error;
	if (sim_options.gpu_plain)
		return CUDA_NO_BINARY_FOR_GPU;
	if (gpu_lacks_memory("cuModuleLoadDataEx"))
		return CUDA_OUT_OF_MEMORY;
	gpu_process(context->node)->objects++;
	*out = (CUmodule)(uintptr_t)1;
	return 0;
}

static int module_unload(CUmodule module)
{
	int error;
	const struct gpu_context *context = gpu_enter("cuModuleUnload", &error);

	(void)module;
	if (context)
		gpu_process(context->node)->objects--;
	return error;
}

static int module_get_function(CUfunction *out, CUmodule module, const char *name)
{
	static const char *const names[] = WH_BLOCKS_NAMES;

	(void)module;
	for (uintptr_t i = 0; i < WH_BLOCKS_VARIANTS; i++) {
		if (strcmp(names[i], name) != 0)
			continue;
		*out = (CUfunction)(i + 1);
		return 0;
	}
	return CUDA_NOT_FOUND;
}

static int func_load(CUfunction function)
{
	(void)function;
	return 0;
}

static int func_get_attribute(int *out, int attribute, CUfunction function)
{
	(void)attribute;
	(void)function;
	*out = 90;
	return 0;
}

/* ---- libcuda.so.1 ---------------------------------------------------------------------------- */

/* What is not here this driver lacks. */
static const struct wh_cuda driver = {
	.cuInit = init,
	.cuDriverGetVersion = driver_get_version,
	.cuGetErrorName = get_error_name,
	.cuGetErrorString = get_error_string,
	.cuDeviceGetCount = device_get_count,
	.cuDeviceGet = device_get,
	.cuDeviceGetName = device_get_name,
	.cuDeviceGetUuid = device_get_uuid,
	.cuDeviceGetAttribute = device_get_attribute,
	.cuDeviceTotalMem = device_total_mem,
	.cuDeviceCanAccessPeer = device_can_access_peer,
	.cuDevicePrimaryCtxRetain = primary_retain,
	.cuDevicePrimaryCtxRelease = primary_release,
	.cuDevicePrimaryCtxGetState = primary_get_state,
	.cuCtxGetCurrent = ctx_get_current,
	.cuCtxSetCurrent = ctx_set_current,
	.cuCtxPushCurrent = ctx_push_current,
	.cuCtxPopCurrent = ctx_pop_current,
	.cuCtxGetDevice = ctx_get_device,
	.cuCtxSynchronize = gpu_ctx_synchronize,
	.cuCtxEnablePeerAccess = ctx_enable_peer_access,
	.cuCtxGetStreamPriorityRange = get_stream_priority_range,
	.cuMemGetInfo = gpu_mem_get_info,
	.cuMemAlloc = gpu_mem_alloc,
	.cuMemFree = gpu_mem_free,
	.cuMemGetAddressRange = gpu_mem_get_address_range,
	.cuMemHostAlloc = gpu_mem_host_alloc,
	.cuMemFreeHost = gpu_mem_free_host,
	.cuMemHostRegister = gpu_mem_host_register,
	.cuMemHostUnregister = gpu_mem_host_unregister,
	.cuMemHostGetDevicePointer = gpu_mem_host_get_device_pointer,
	.cuIpcGetMemHandle = gpu_ipc_get_mem_handle,
	.cuIpcOpenMemHandle = gpu_ipc_open_mem_handle,
	.cuIpcCloseMemHandle = gpu_ipc_close_mem_handle,
	.cuPointerGetAttribute = gpu_pointer_get_attribute,
	.cuPointerSetAttribute = gpu_pointer_set_attribute,
	.cuMemcpy = gpu_memcpy,
	.cuMemcpyHtoD = gpu_memcpy_to_device,
	.cuMemcpyDtoH = gpu_memcpy_to_host,
	.cuMemcpyDtoD = gpu_memcpy,
	.cuMemcpyAsync = gpu_memcpy_async,
	.cuMemcpyHtoDAsync = gpu_memcpy_to_device_async,
	.cuMemcpyDtoHAsync = gpu_memcpy_to_host_async,
	.cuMemcpyDtoDAsync = gpu_memcpy_async,
	.cuMemcpyPeerAsync = gpu_memcpy_peer_async,
	.cuMemcpyBatchAsync = gpu_memcpy_batch_async,
	.cuMemsetD8 = gpu_memset,
	.cuMemsetD8Async = gpu_memset_async,
	.cuStreamCreate = gpu_stream_create,
	.cuStreamCreateWithPriority = gpu_stream_create_with_priority,
	.cuStreamDestroy = gpu_stream_destroy,
	.cuStreamQuery = gpu_stream_query,
	.cuStreamSynchronize = gpu_stream_synchronize,
	.cuStreamWaitEvent = gpu_stream_wait_event,
	.cuStreamGetCtx = gpu_stream_get_ctx,
	.cuStreamWriteValue32 = gpu_stream_write_value,
	.cuStreamWaitValue32 = gpu_stream_wait_value,
	.cuEventCreate = gpu_event_create,
	.cuEventRecord = gpu_event_record,
	.cuEventQuery = gpu_event_query,
	.cuEventSynchronize = gpu_event_synchronize,
	.cuEventDestroy = gpu_event_destroy,
	.cuModuleLoadDataEx = module_load,
	.cuModuleUnload = module_unload,
	.cuModuleGetFunction = module_get_function,
	.cuFuncLoad = func_load,
	.cuFuncGetAttribute = func_get_attribute,
	.cuLaunchKernel = gpu_launch_kernel,
	.cuLaunchKernelEx = gpu_launch_kernel_ex,
};

#define ROW(need, since, name, parameters, symbols) { symbols, offsetof(struct wh_cuda, name) },

static const struct {
	const char *symbols;
	size_t offset;
} functions[] = { WH_CUDA_FUNCTIONS(ROW) };

void *gpu_library(const char *path)
{
	return sim_options.gpus && strcmp(path, WH_CUDA_LIBRARY) == 0 ? gpus : NULL;
}

/* Is it one of the names, which spaces separate? */
static bool has_name(const char *names, const char *name)
{
	size_t length = strlen(name);

	for (const char *at = strstr(names, name); at; at = strstr(at + 1, name))
		if ((at == names || at[-1] == ' ') && (!at[length] || at[length] == ' '))
			return true;
	return false;
}

void *gpu_function(const void *handle, const char *name)
{
	void *found = NULL;

	for (size_t i = 0; handle == gpus && i < sizeof(functions) / sizeof(*functions); i++)
		if (has_name(functions[i].symbols, name))
			memcpy(&found, (const char *)&driver + functions[i].offset, sizeof(found));
	return found;
}
