/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening the CUDA driver, turning its errors into errnos and texts, and entering contexts.
 *
 * Functions are looked up by dlsym(), not by cuGetProcAddress(): an exported name contains the
 * version of its ABI, so a name has the same parameters with every driver.
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
	UNBOUND, /* not tried yet */
	BOUND, /* the library is open and its functions are looked up */
	READY, /* initialised, devices listed */
	FAILED, /* for good: see cuda->error */
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

/* Store the reason for all later calls. Returns the negative errno. */
__attribute__((format(printf, 3, 4))) static int cuda_give_up(struct wh_cuda *cuda, int error,
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
	cuda_give_up(cuda, ENODEV, "%s", text);
}

/* Look up the names in `symbols`, newest first. */
static void *cuda_resolve(void *library, const char *symbols)
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

/* Look up all functions, also after one is missing: address queries must work even then. */
static int cuda_resolve_all(struct wh_cuda *cuda)
{
	const struct function *missing = NULL;

	for (size_t i = 0; i < FUNCTIONS; i++) {
		void *found = cuda_resolve(cuda->library, functions[i].symbols);

		if (!found && functions[i].need == NEEDED && !missing)
			missing = &functions[i];
		memcpy((char *)cuda + functions[i].offset, &found, sizeof(found));
	}
	return !missing ?
		       0 :
		       cuda_give_up(
			       cuda, EOPNOTSUPP,
			       "%s has no %s, which came with CUDA %d.%d: update the NVIDIA driver",
			       cuda->path, missing->name, major_of(missing->since),
			       minor_of(missing->since));
}

static int loads_read(struct dl_phdr_info *info, size_t size, void *loads)
{
	(void)size;
	*(unsigned long long *)loads = info->dlpi_adds;
	return 1;
}

/* Does the process still have no driver? Looking for a library that is not open costs the loader an
 * open() in each of its directories; while the process opens no library, it opens no driver.
 * *loads: the count for remember_none(). */
static bool still_none(struct wh_cuda *cuda, unsigned long long *loads)
{
	dl_iterate_phdr(loads_read, loads);
	return *loads == atomic_load_explicit(&cuda->loads_without, memory_order_relaxed);
}

static void remember_none(struct wh_cuda *cuda, unsigned long long loads)
{
	atomic_store_explicit(&cuda->loads_without, loads, memory_order_relaxed);
}

/* Refuse a second driver in the process: two drivers do not know each other's memory. */
static int check_only_one(struct wh_cuda *cuda)
{
	void *other = dlopen(WH_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);

	if (!other)
		return 0;
	dlclose(other);
	return other == cuda->library ? 0 :
					cuda_give_up(cuda, ELIBBAD,
						     "this process has another " WH_CUDA_LIBRARY
						     " open, and %s does not "
						     "know its memory; use one of the two",
						     cuda->path);
}

/* Under cuda->lock. */
static int bind_library(struct wh_cuda *cuda, bool load)
{
	int error;

	cuda->library = dlopen(cuda->path, RTLD_NOW | RTLD_LOCAL | (load ? 0 : RTLD_NOLOAD));
	if (!cuda->library && load) {
		const char *why = dlerror();

		return cuda_give_up(cuda, ENODEV,
				    "no CUDA driver: dlopen: %s; install the NVIDIA driver's user "
				    "libraries",
				    why ? why : cuda->path);
	}
	error = check_only_one(cuda);
	if (error)
		return error;
	if (!cuda->library)
		return -ENOENT;
	error = cuda_resolve_all(cuda);
	if (!error)
		atomic_store_explicit(&cuda->state, BOUND, memory_order_release);
	return error;
}

/* Open the library unless that has been tried; without `load` only if the process has opened it.
 * -ENOENT, without a text: it has not. */
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
		remember_none(cuda, loads);
	return error;
}

static int stored_error(const struct wh_cuda *cuda)
{
	return wh_fail(cuda->error, "%s", cuda->text);
}

static bool process_has_driver(struct wh_cuda *cuda)
{
	unsigned long long loads = 0;
	void *library;

	if (still_none(cuda, &loads))
		return false;
	library = dlopen(WH_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
	if (library)
		dlclose(library);
	else
		remember_none(cuda, loads);
	return library != NULL;
}

int wh_cuda_attach(struct wh_cuda *cuda, bool *initialised)
{
	int error = bind_once(cuda, false),
	    state = atomic_load_explicit(&cuda->state, memory_order_acquire);

	*initialised = state == READY;
	if (error || state != FAILED)
		return error;
	if (cuda->library) /* not usable for transfers, but maybe for address queries */
		return cuda->cuPointerGetAttribute ? 0 : stored_error(cuda);
	/* There was no driver. Has the application opened one since? */
	return cuda->off || !process_has_driver(cuda) ? -ENOENT : stored_error(cuda);
}

bool wh_cuda_present(struct wh_cuda *cuda)
{
	bool initialised;

	return cuda->off ? process_has_driver(cuda) : wh_cuda_attach(cuda, &initialised) != -ENOENT;
}

/* Under cuda->lock, in state BOUND. */
static int cuda_initialise(struct wh_cuda *cuda)
{
	void *pinned;
	int error;

	/* The driver's threads run from now on: never unload its code. */
	pinned = dlopen(cuda->path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD | RTLD_NODELETE);
	if (pinned)
		dlclose(pinned);
	if (cuda->cuDriverGetVersion(&cuda->version))
		cuda->version = 0;
	error = wh_cuda_check(cuda, cuda->cuInit(0), "cuInit", NULL);
	if (!error)
		error = wh_cuda_devices_list(cuda);
	if (error)
		return cuda_give_up(cuda, -error, "%s", wh_fail_text());
	if (!cuda->device_count)
		return cuda_give_up(
			cuda, ENODEV,
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
		error = cuda_initialise(cuda);
		break;
	case FAILED:
		error = stored_error(cuda);
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
		error = stored_error(cuda);
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
	const char *hint; /* what to try; NULL: CUDA's own words say enough */
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
	{ CUDA_OPERATING_SYSTEM, EIO, "in a container it needs the /proc of its PID namespace" },
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
	  "the kernel's NVIDIA driver and libcuda have different versions: reload it, or reboot" },
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
		name = "unnamed error";
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
		       "%s: the NVIDIA driver has CUDA %d.%d, which lacks this function; it "
		       "came with CUDA %d.%d: update the driver",
		       name, major_of(cuda->version), minor_of(cuda->version), major_of(since),
		       minor_of(since));
}

/* ---- contexts -------------------------------------------------------------------------------- */

/* While the application captures a stream, calls such as an allocation would invalidate the capture
 * unless the thread's mode is relaxed. */
void wh_cuda_relax(struct wh_cuda *cuda, struct wh_cuda_scope *scope)
{
	scope->cuda = cuda;
	scope->context = NULL;
	scope->capture = CUDA_CAPTURE_RELAXED;
	scope->exchanged = cuda->cuThreadExchangeStreamCaptureMode &&
			   !cuda->cuThreadExchangeStreamCaptureMode(&scope->capture);
}

static void scope_restore_capture(struct wh_cuda_scope *scope)
{
	if (scope->exchanged)
		scope->cuda->cuThreadExchangeStreamCaptureMode(&scope->capture);
	scope->exchanged = false;
}

static int scope_push(struct wh_cuda *cuda, CUcontext context, const char *whose,
		      struct wh_cuda_scope *scope)
{
	int error = wh_cuda_check(cuda, cuda->cuCtxPushCurrent(context), "cuCtxPushCurrent", "%s",
				  whose);

	if (!error)
		scope->context = context;
	return error;
}

/* The primary context, retained once, until wh_cuda_devices_free(). */
static int primary_context(struct wh_cuda *cuda, struct wh_cuda_device *device, CUcontext *out)
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

bool wh_cuda_is_primary(struct wh_cuda *cuda, struct wh_cuda_device *device, CUcontext context)
{
	CUcontext primary = NULL;
	unsigned flags;
	int active = 0;

	if (*device->skipped || cuda->cuDevicePrimaryCtxGetState(device->handle, &flags, &active) ||
	    !active)
		return false;
	wh_fail_begin(); /* a lost device shows itself where it is used */
	primary_context(cuda, device, &primary);
	wh_fail_end(0);
	return context == primary;
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
		error = primary_context(cuda, device, &context);
	if (!error)
		error = scope_push(cuda, context, device->text, scope);
	if (error)
		scope_restore_capture(scope);
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
		error = scope_push(cuda, context, "of the address's owner", scope);
		if (error)
			scope_restore_capture(scope);
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

	/* Ignore the result: for a lost device it is an error, although the context was popped. */
	if (scope->context)
		scope->cuda->cuCtxPopCurrent(&popped);
	scope->context = NULL;
	scope_restore_capture(scope);
}
