/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening the CUDA driver, its errors, and whose context is current.
 *
 * The library is taken by dlsym() and not by cuGetProcAddress(): the exported names carry their
 * ABI's version, so that a name stands for one list of parameters whatever driver answers.
 */
#include "platform/cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/error.h"

enum state {
	UNBOUND, /* nothing tried */
	BOUND, /* the library is open and its functions are known */
	READY, /* initialised, devices listed */
	FAILED,
};

enum need { OPTIONAL, NEEDED };

struct function {
	const char *name, *symbols;
	size_t offset; /* in struct wh_cuda */
	int since;
	enum need need;
};

#define ROW(need, since, name, parameters, symbols)                                                \
	{ #name, symbols, offsetof(struct wh_cuda, name), since, need },

static const struct function functions[] = { WH_CUDA_FUNCTIONS(ROW) };

#define FUNCTIONS (sizeof(functions) / sizeof(functions[0]))

static int major_of(int version)
{
	return version / 1000;
}

static int minor_of(int version)
{
	return version % 1000 / 10;
}

/* ---- owners ---------------------------------------------------------------------------------- */

int wh_cuda_open(const char *path, struct wh_cuda **out)
{
	struct wh_cuda *cuda = calloc(1, sizeof(*cuda));

	if (!cuda)
		return wh_fail(ENOMEM, "no memory for what is known of CUDA");
	cuda->path = strdup(path && *path ? path : WH_CUDA_LIBRARY);
	if (!cuda->path) {
		free(cuda);
		return wh_fail(ENOMEM, "no memory for what is known of CUDA");
	}
	pthread_mutex_init(&cuda->lock, NULL);
	atomic_init(&cuda->references, 1);
	atomic_init(&cuda->state, UNBOUND);
	*out = cuda;
	return 0;
}

struct wh_cuda *wh_cuda_hold(struct wh_cuda *cuda)
{
	atomic_fetch_add_explicit(&cuda->references, 1, memory_order_relaxed);
	return cuda;
}

void wh_cuda_close(struct wh_cuda *cuda)
{
	if (!cuda || atomic_fetch_sub_explicit(&cuda->references, 1, memory_order_acq_rel) != 1)
		return;
	wh_cuda_devices_free(cuda);
	if (cuda->library)
		dlclose(cuda->library);
	pthread_mutex_destroy(&cuda->lock);
	free(cuda->path);
	free(cuda);
}

/* ---- loading --------------------------------------------------------------------------------- */

/* The reason is kept for all calls to come. Returns the negative errno. */
__attribute__((format(printf, 3, 4))) static int give_up(struct wh_cuda *cuda, int error,
							 const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(cuda->text, sizeof(cuda->text), format, arguments);
	va_end(arguments);
	cuda->error = error;
	atomic_store_explicit(&cuda->state, FAILED, memory_order_release);
	return wh_fail(error, "%s", cuda->text);
}

void wh_cuda_off(struct wh_cuda *cuda, const char *text)
{
	cuda->off = true;
	give_up(cuda, ENODEV, "%s", text);
}

/* Look up the names in `symbols`, newest first. */
static void *resolve(void *library, const char *symbols)
{
	char name[64];
	void *found = NULL;

	while (*symbols && !found) {
		size_t length = strcspn(symbols, " ");

		if (length < sizeof(name)) {
			memcpy(name, symbols, length);
			name[length] = 0;
			found = dlsym(library, name);
		}
		symbols += length + (symbols[length] == ' ');
	}
	return found;
}

/* All of them, also after one is missing: that addresses can be asked about matters even then. */
static int resolve_all(struct wh_cuda *cuda)
{
	const struct function *missing = NULL;

	for (size_t i = 0; i < FUNCTIONS; i++) {
		void *found = resolve(cuda->library, functions[i].symbols);

		if (!found && functions[i].need == NEEDED && !missing)
			missing = &functions[i];
		memcpy((char *)cuda + functions[i].offset, &found, sizeof(found));
	}
	return !missing ?
		       0 :
		       give_up(cuda, EOPNOTSUPP,
			       "%s has no %s, which came with CUDA %d.%d: update the NVIDIA driver",
			       cuda->path, missing->name, major_of(missing->since),
			       minor_of(missing->since));
}

static int take_loads(struct dl_phdr_info *info, size_t size, void *loads)
{
	(void)size;
	*(unsigned long long *)loads = info->dlpi_adds;
	return 1;
}

/* To look for a library that is not open costs the loader an open() in each of its directories:
 * once the process has none, it still has none while it opens no other. Returns the number to
 * remember then. */
static bool still_none(struct wh_cuda *cuda, unsigned long long *loads)
{
	dl_iterate_phdr(take_loads, loads);
	return *loads == atomic_load_explicit(&cuda->loads_without, memory_order_relaxed);
}

static void none_so_far(struct wh_cuda *cuda, unsigned long long loads)
{
	atomic_store_explicit(&cuda->loads_without, loads, memory_order_relaxed);
}

/* Two drivers in one process would not know each other's memory. */
static int check_only_one(struct wh_cuda *cuda)
{
	void *other = dlopen(WH_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);

	if (!other)
		return 0;
	dlclose(other);
	return other == cuda->library ?
		       0 :
		       give_up(cuda, ELIBBAD,
			       "this process has " WH_CUDA_LIBRARY " open already, which is not "
			       "%s: its memory would not be known; use one of them",
			       cuda->path);
}

/* Under the lock. */
static int bind_library(struct wh_cuda *cuda, bool load)
{
	int error;

	cuda->library = dlopen(cuda->path, RTLD_NOW | RTLD_LOCAL | (load ? 0 : RTLD_NOLOAD));
	if (!cuda->library && load) {
		const char *why = dlerror();

		return give_up(cuda, ENODEV,
			       "no CUDA driver: dlopen: %s; install the NVIDIA driver's user "
			       "libraries",
			       why ? why : cuda->path);
	}
	error = check_only_one(cuda);
	if (error)
		return error;
	if (!cuda->library)
		return -ENOENT;
	error = resolve_all(cuda);
	if (!error)
		atomic_store_explicit(&cuda->state, BOUND, memory_order_release);
	return error;
}

/* Open the library if that has not been tried; without `load` only if the process has it: -ENOENT,
 * without a text, if not. */
static int bind_once(struct wh_cuda *cuda, bool load)
{
	unsigned long long loads = 0;
	int error = 0;

	if (atomic_load_explicit(&cuda->state, memory_order_acquire) != UNBOUND)
		return 0;
	if (!load && still_none(cuda, &loads))
		return -ENOENT;
	pthread_mutex_lock(&cuda->lock);
	if (atomic_load_explicit(&cuda->state, memory_order_acquire) == UNBOUND)
		error = bind_library(cuda, load);
	pthread_mutex_unlock(&cuda->lock);
	if (error == -ENOENT)
		none_so_far(cuda, loads);
	return error;
}

static int kept_error(const struct wh_cuda *cuda)
{
	return wh_fail(cuda->error, "%s", cuda->text);
}

static bool process_has_one(struct wh_cuda *cuda)
{
	unsigned long long loads = 0;
	void *library;

	if (still_none(cuda, &loads))
		return false;
	library = dlopen(WH_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
	if (library)
		dlclose(library);
	else
		none_so_far(cuda, loads);
	return library != NULL;
}

int wh_cuda_attach(struct wh_cuda *cuda, bool *initialised)
{
	int error = bind_once(cuda, false),
	    state = atomic_load_explicit(&cuda->state, memory_order_acquire);

	*initialised = state == READY;
	if (error || state != FAILED)
		return error;
	if (cuda->library) /* it cannot be used, but perhaps asked */
		return cuda->cuPointerGetAttribute ? 0 : kept_error(cuda);
	/* There was none. Has the application found one since? */
	return cuda->off || !process_has_one(cuda) ? -ENOENT : kept_error(cuda);
}

bool wh_cuda_present(struct wh_cuda *cuda)
{
	bool initialised;

	return cuda->off ? process_has_one(cuda) : wh_cuda_attach(cuda, &initialised) != -ENOENT;
}

/* Under the lock, bound. */
static int initialise(struct wh_cuda *cuda)
{
	void *pinned;
	int error;

	/* Its threads run from now on, so its code must not go away. */
	pinned = dlopen(cuda->path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD | RTLD_NODELETE);
	if (pinned)
		dlclose(pinned);
	if (cuda->cuDriverGetVersion(&cuda->version))
		cuda->version = 0;
	error = wh_cuda_check(cuda, cuda->cuInit(0), "cuInit", NULL);
	if (!error)
		error = wh_cuda_devices_list(cuda);
	if (error)
		return give_up(cuda, -error, "%s", wh_fail_text());
	if (!cuda->device_count)
		return give_up(cuda, ENODEV,
			       "the CUDA driver sees no device; does CUDA_VISIBLE_DEVICES hide "
			       "them, or are there no /dev/nvidia* here?");
	atomic_store_explicit(&cuda->state, READY, memory_order_release);
	return 0;
}

int wh_cuda_ready(struct wh_cuda *cuda)
{
	int error;

	if (atomic_load_explicit(&cuda->state, memory_order_acquire) == READY)
		return 0;
	error = bind_once(cuda, true);
	if (error)
		return error;
	pthread_mutex_lock(&cuda->lock);
	switch (atomic_load_explicit(&cuda->state, memory_order_acquire)) {
	case BOUND:
		error = initialise(cuda);
		break;
	case FAILED:
		error = kept_error(cuda);
		break;
	default:
		break;
	}
	pthread_mutex_unlock(&cuda->lock);
	return error;
}

int wh_cuda_driver_version(struct wh_cuda *cuda, int *out)
{
	int version = 0, error = bind_once(cuda, true);

	if (!error && atomic_load_explicit(&cuda->state, memory_order_acquire) == FAILED)
		error = kept_error(cuda);
	if (!error)
		error = wh_cuda_call(cuda, cuDriverGetVersion, &version);
	if (!error)
		*out = version;
	return error;
}

void *wh_cuda_symbol(const struct wh_cuda *cuda, const char *symbol)
{
	return cuda->library ? dlsym(cuda->library, symbol) : NULL;
}

/* ---- errors ---------------------------------------------------------------------------------- */

struct meaning {
	int result, error;
	const char *hint; /* NULL: CUDA's own words will do */
};

static const struct meaning meanings[] = {
	{ CUDA_INVALID_VALUE, EINVAL, NULL },
	{ CUDA_OUT_OF_MEMORY, ENOMEM,
	  "free memory, or use less of it; nvidia-smi shows who has it" },
	{ CUDA_NOT_INITIALIZED, EPERM,
	  "CUDA does not work in a child after fork(): fork first, or exec" },
	{ CUDA_DEINITIALIZED, ESHUTDOWN, "the process is ending" },
	{ CUDA_STUB_LIBRARY, ELIBBAD,
	  "this is the toolkit's stub: remove its folder from LD_LIBRARY_PATH" },
	{ CUDA_DEVICE_UNAVAILABLE, EBUSY, "another process has it exclusively: nvidia-smi -c 0" },
	{ CUDA_NO_DEVICE, ENODEV,
	  "does CUDA_VISIBLE_DEVICES hide it, or is there no /dev/nvidia0?" },
	{ CUDA_INVALID_DEVICE, ENODEV, NULL },
	{ CUDA_INVALID_IMAGE, ENOEXEC, NULL },
	{ CUDA_INVALID_CONTEXT, EINVAL, "was its context destroyed?" },
	{ CUDA_ALREADY_MAPPED, EEXIST, NULL },
	{ CUDA_NO_BINARY_FOR_GPU, ENOEXEC, NULL },
	{ CUDA_ECC_UNCORRECTABLE, EIO,
	  "the GPU's memory is faulty: see dmesg for Xid, reset the GPU" },
	{ CUDA_PEER_ACCESS_UNSUPPORTED, EOPNOTSUPP,
	  "nvidia-smi topo -p2p r shows who reaches whom" },
	{ CUDA_INVALID_PTX, ENOEXEC, NULL },
	{ CUDA_NVLINK_UNCORRECTABLE, EIO, "see dmesg for Xid, reset the GPU" },
	{ CUDA_JIT_COMPILER_NOT_FOUND, ENOEXEC, "libnvidia-ptxjitcompiler.so.1 is missing" },
	{ CUDA_UNSUPPORTED_PTX_VERSION, ENOEXEC, "the driver is too old" },
	{ CUDA_JIT_COMPILATION_DISABLED, ENOEXEC, "unset CUDA_DISABLE_PTX_JIT" },
	{ CUDA_OPERATING_SYSTEM, EIO, "an operating system call failed inside the driver" },
	{ CUDA_INVALID_HANDLE, EINVAL, NULL },
	{ CUDA_NOT_FOUND, ENOENT, NULL },
	{ CUDA_NOT_READY, EAGAIN, NULL },
	{ CUDA_ILLEGAL_ADDRESS, EFAULT,
	  "its context is unusable until the process is started anew" },
	{ CUDA_LAUNCH_OUT_OF_RESOURCES, ENOSPC, NULL },
	{ CUDA_LAUNCH_TIMEOUT, ETIMEDOUT,
	  "its context is unusable until the process is started anew" },
	{ CUDA_PEER_ACCESS_ALREADY_ENABLED, EEXIST, NULL },
	{ CUDA_CONTEXT_IS_DESTROYED, EINVAL, NULL },
	{ CUDA_TOO_MANY_PEERS, ENOSPC, NULL },
	{ CUDA_HOST_MEMORY_ALREADY_REGISTERED, EEXIST, NULL },
	{ CUDA_HOST_MEMORY_NOT_REGISTERED, ENOENT, NULL },
	{ CUDA_MISALIGNED_ADDRESS, EFAULT,
	  "its context is unusable until the process is started anew" },
	{ CUDA_LAUNCH_FAILED, EIO,
	  "its context is unusable until the process is started anew; see dmesg for Xid" },
	{ CUDA_NOT_PERMITTED, EPERM, NULL },
	{ CUDA_NOT_SUPPORTED, EOPNOTSUPP, NULL },
	{ CUDA_SYSTEM_NOT_READY, ENODEV, "start nvidia-fabricmanager" },
	{ CUDA_SYSTEM_DRIVER_MISMATCH, ELIBBAD,
	  "the kernel's NVIDIA driver is of another version than libcuda: reload it, or reboot" },
	{ CUDA_UNKNOWN, EIO,
	  "see dmesg for NVRM and Xid; nvidia-modprobe -u creates missing devices" },
};

static const struct meaning *meaning_of(int result)
{
	for (size_t i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++) {
		if (meanings[i].result == result)
			return &meanings[i];
	}
	return NULL;
}

int wh_cuda_errno(int result)
{
	const struct meaning *meaning = meaning_of(result);

	if (!result)
		return 0;
	if (result >= CUDA_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_STREAM_CAPTURE_LAST)
		return EBUSY;
	return meaning ? meaning->error : EIO;
}

int wh_cuda_check(const struct wh_cuda *cuda, int result, const char *call, const char *format, ...)
{
	const struct meaning *meaning = meaning_of(result);
	const char *name = NULL, *words = NULL;
	char what[144] = "";
	va_list arguments;

	if (!result)
		return 0;
	if (format) {
		va_start(arguments, format);
		vsnprintf(what, sizeof(what), format, arguments);
		va_end(arguments);
	}
	if (!cuda->cuGetErrorName || cuda->cuGetErrorName(result, &name) || !name)
		name = "an error that it has no name for";
	if (!cuda->cuGetErrorString || cuda->cuGetErrorString(result, &words) || !words)
		words = "no description";
	return wh_fail(wh_cuda_errno(result), "%s%s%s%s: %s (%d, %s)%s%s", call, *what ? " (" : "",
		       what, *what ? ")" : "", name, result, words,
		       meaning && meaning->hint ? "; " : "",
		       meaning && meaning->hint ? meaning->hint : "");
}

int wh_cuda_missing(const struct wh_cuda *cuda, const char *name)
{
	int since = 0;

	for (size_t i = 0; i < FUNCTIONS; i++) {
		if (!strcmp(functions[i].name, name))
			since = functions[i].since;
	}
	return wh_fail(EOPNOTSUPP,
		       "%s: the NVIDIA driver here is of CUDA %d.%d and has no such function; it "
		       "came with CUDA %d.%d: update the driver",
		       name, major_of(cuda->version), minor_of(cuda->version), major_of(since),
		       minor_of(since));
}

/* ---- contexts -------------------------------------------------------------------------------- */

/* While a stream of the application is being captured, calls such as an allocation would spoil the
 * capture unless the thread says that it means them. */
void wh_cuda_relax(struct wh_cuda *cuda, struct wh_cuda_scope *scope)
{
	scope->cuda = cuda;
	scope->context = NULL;
	scope->capture = CUDA_CAPTURE_RELAXED;
	scope->exchanged = cuda->cuThreadExchangeStreamCaptureMode &&
			   !cuda->cuThreadExchangeStreamCaptureMode(&scope->capture);
}

static void restore_capture(struct wh_cuda_scope *scope)
{
	if (scope->exchanged)
		scope->cuda->cuThreadExchangeStreamCaptureMode(&scope->capture);
	scope->exchanged = false;
}

static int push(struct wh_cuda *cuda, CUcontext context, const char *whose,
		struct wh_cuda_scope *scope)
{
	int error = wh_cuda_check(cuda, cuda->cuCtxPushCurrent(context), "cuCtxPushCurrent", "%s",
				  whose);

	if (!error)
		scope->context = context;
	return error;
}

/* The primary context, retained once for as long as the device is known. */
static int primary(struct wh_cuda *cuda, struct wh_cuda_device *device, CUcontext *out)
{
	int error = 0;

	pthread_mutex_lock(&device->lock);
	if (!device->context)
		error = wh_cuda_check(
			cuda, cuda->cuDevicePrimaryCtxRetain(&device->context, device->handle),
			"cuDevicePrimaryCtxRetain", "%s", device->text);
	*out = device->context;
	pthread_mutex_unlock(&device->lock);
	return error;
}

int wh_cuda_enter_context(struct wh_cuda *cuda, struct wh_cuda_device *device, CUcontext context,
			  struct wh_cuda_scope *scope)
{
	int error = wh_cuda_ready(cuda);

	if (error)
		return error;
	if (*device->skipped)
		return wh_fail(ENODEV, "%s", device->skipped);
	wh_cuda_relax(cuda, scope);
	if (!context)
		error = primary(cuda, device, &context);
	if (!error)
		error = push(cuda, context, device->text, scope);
	if (error)
		restore_capture(scope);
	return error;
}

int wh_cuda_enter(struct wh_cuda *cuda, struct wh_cuda_device *device, struct wh_cuda_scope *scope)
{
	return wh_cuda_enter_context(cuda, device, NULL, scope);
}

int wh_cuda_enter_owner(struct wh_cuda *cuda, uint64_t address, struct wh_cuda_scope *scope)
{
	struct wh_cuda_device *device;
	CUcontext context = NULL;
	int error = wh_cuda_ready(cuda), ordinal, result;

	if (error)
		return error;
	result = cuda->cuPointerGetAttribute(&context, CUDA_POINTER_CONTEXT, address);
	if (!result && context) {
		wh_cuda_relax(cuda, scope);
		error = push(cuda, context, "of the address's owner", scope);
		if (error)
			restore_capture(scope);
		return error;
	}
	result = cuda->cuPointerGetAttribute(&ordinal, CUDA_POINTER_DEVICE_ORDINAL, address);
	error = wh_cuda_check(cuda, result, "cuPointerGetAttribute", "which device 0x%llx is on",
			      (unsigned long long)address);
	if (!error)
		error = wh_cuda_device_at(cuda, ordinal, &device);
	return error ? error : wh_cuda_enter(cuda, device, scope);
}

void wh_cuda_leave(struct wh_cuda_scope *scope)
{
	CUcontext popped;

	/* Of a device that is lost the driver may say so here too; it has popped all the same. */
	if (scope->context)
		scope->cuda->cuCtxPopCurrent(&popped);
	scope->context = NULL;
	restore_capture(scope);
}
