/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening NVML, its devices, and what all queries share: nvml_query_begin() checks that the
 * function and the GPU exist, nvml_query_end() records the answer and turns an error into an errno
 * and a text. The queries themselves are in nvml-query.c.
 */
#include "platform/nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "platform/nvml-query.h"
#include "util/error.h"

/* ---- results --------------------------------------------------------------------------------- */

static const struct meaning {
	int result, error;
	const char *name, *hint; /* hint: what to try; NULL: the name says enough */
} meanings[] = {
	{ NVML_INVALID_ARGUMENT, EINVAL, "invalid argument", NULL },
	{ NVML_NOT_SUPPORTED, EOPNOTSUPP, "not supported", NULL },
	{ NVML_NO_PERMISSION, EACCES, "no permission",
	  "try as root, and see that this container has the device" },
	{ NVML_NOT_FOUND, ENOENT, "not found", NULL },
	{ NVML_INSUFFICIENT_SIZE, EOVERFLOW, "insufficient size", NULL },
	{ NVML_DRIVER_NOT_LOADED, ENODEV, "driver not loaded",
	  "modprobe nvidia; dmesg says why it does not load" },
	{ NVML_TIMEOUT, ETIMEDOUT, "timeout", "dmesg may show an Xid" },
	{ NVML_LIBRARY_NOT_FOUND, ENODEV, "library not found",
	  "install the NVIDIA driver's user libraries" },
	{ NVML_FUNCTION_NOT_FOUND, ENOSYS, "function not found",
	  "the NVIDIA driver is too old for it" },
	{ NVML_GPU_IS_LOST, ENODEV, "GPU is lost",
	  "it has fallen off the bus: see dmesg for Xid 79, reset it or reboot" },
	{ NVML_RESET_REQUIRED, EIO, "reset required", "nvidia-smi --gpu-reset, or reboot" },
	{ NVML_OPERATING_SYSTEM, EPERM, "operating system call failed",
	  "is the GPU's device file in this container, and allowed by its cgroup?" },
	{ NVML_VERSION_MISMATCH, ELIBBAD, "library and driver versions do not match",
	  "the driver was updated under a running kernel: reload its modules, or reboot" },
	{ NVML_IN_USE, EBUSY, "in use", NULL },
	{ NVML_MEMORY, ENOMEM, "insufficient memory", NULL },
	{ NVML_NO_DATA, ENODATA, "no data", NULL },
	{ NVML_DEPRECATED, EOPNOTSUPP, "deprecated", NULL },
	{ NVML_NOT_READY, EAGAIN, "not ready", NULL },
	{ NVML_GPU_NOT_FOUND, ENODEV, "GPU not found", NULL },
};

static const struct meaning unknown = { 0, EIO, "an error of the driver",
					"see dmesg for NVRM and Xid" };

static int nvml_fail(int result, const char *question)
{
	const struct meaning *meaning = &unknown;

	for (size_t i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++)
		if (meanings[i].result == result)
			meaning = &meanings[i];
	return wh_fail(meaning->error, "%s: %s (NVML %d)%s%s", question, meaning->name, result,
		       meaning->hint ? "; " : "", meaning->hint ? meaning->hint : "");
}

const char *wh_nvml_meaning(int error)
{
	/* "reset required" has the same errno: the unknown error comes first. */
	if (error == -unknown.error)
		return unknown.name;
	for (size_t i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++)
		if (meanings[i].error == -error)
			return meanings[i].name;
	return strerror(-error);
}

/* ---- queries --------------------------------------------------------------------------------- */

void *nvml_find(const struct wh_nvml *nvml, const char *name, int version)
{
	char versioned[64];
	void *found = NULL;

	for (; version > 1 && !found; version--) {
		snprintf(versioned, sizeof(versioned), "%s_v%d", name, version);
		found = dlsym(nvml->library, versioned);
	}
	return found ? found : dlsym(nvml->library, name);
}

bool nvml_query_begin(struct wh_nvml *nvml, struct nvml_query *q, const char *name, int version,
		      unsigned device, int64_t second, int64_t third)
{
	int used = snprintf(q->text, sizeof(q->text), "%s %u", name, device);

	if (second >= 0)
		used += snprintf(q->text + used, sizeof(q->text) - (size_t)used, " %" PRId64,
				 second);
	if (third >= 0)
		snprintf(q->text + used, sizeof(q->text) - (size_t)used, " %" PRId64, third);
	q->function = nvml_find(nvml, name, version);
	q->result = device < nvml->count ? atomic_load(&nvml->lost[device]) : NVML_GPU_NOT_FOUND;
	q->index = device;
	if (q->result)
		return false;
	if (!q->function)
		q->result = NVML_FUNCTION_NOT_FOUND;
	else
		q->device = atomic_load(&nvml->handles[device]);
	return q->result == NVML_SUCCESS;
}

int nvml_query_end(struct wh_nvml *nvml, const struct nvml_query *q, const char *format, ...)
{
	char values[512] = "";
	va_list list;

	/* A lost GPU reports it in the answer to any query. */
	if ((q->result == NVML_GPU_IS_LOST || q->result == NVML_RESET_REQUIRED) && q->device &&
	    q->index < nvml->count)
		atomic_store(&nvml->lost[q->index], q->result);
	if (nvml->record) {
		va_start(list, format);
		if (!q->result)
			vsnprintf(values, sizeof(values), format, list);
		va_end(list);
		fprintf(nvml->record, "%s : %d%s%s\n", q->text, q->result, *values ? " " : "",
			values);
	}
	return q->result ? nvml_fail(q->result, q->text) : 0;
}

void wh_nvml_record(struct wh_nvml *nvml, FILE *file)
{
	nvml->record = file;
	if (!file)
		return;
	fprintf(file, "nvmlDeviceGetCount : 0 %u\n", nvml->count);
	for (unsigned i = 0; i < nvml->count; i++)
		fprintf(file, "nvmlDeviceGetHandleByIndex %u : %d\n", i,
			atomic_load(&nvml->lost[i]));
}

/* ---- opening --------------------------------------------------------------------------------- */

typedef int handle_function(unsigned index, nvml_device *out);

static handle_function *handle_find(const struct wh_nvml *nvml)
{
	return (handle_function *)nvml_find(nvml, "nvmlDeviceGetHandleByIndex", 2);
}

static void handle_refresh(struct wh_nvml *nvml, handle_function *handle, unsigned device)
{
	nvml_device taken = NULL;
	int result = handle(device, &taken);

	if (!result)
		atomic_store(&nvml->handles[device], taken);
	atomic_store(&nvml->lost[device], result);
}

static int nvml_initialise(struct wh_nvml *nvml)
{
	struct nvml_query q = { .text = "nvmlInit" };
	int (*start)(void) = (int (*)(void))nvml_find(nvml, "nvmlInit", 2);
	int (*count)(unsigned *) = (int (*)(unsigned *))nvml_find(nvml, "nvmlDeviceGetCount", 2);
	handle_function *handle = handle_find(nvml);

	if (!start || !count || !handle)
		return wh_fail(ELIBBAD, "%s has no nvmlInit: it is not NVML", WH_NVML_LIBRARY);
	q.result = start();
	if (q.result)
		return nvml_fail(q.result, q.text);
	q = (struct nvml_query){ .text = "nvmlDeviceGetCount", .result = count(&nvml->count) };
	if (q.result)
		return nvml_fail(q.result, q.text);
	if (nvml->count > WH_NVML_DEVICES)
		nvml->count = WH_NVML_DEVICES;
	for (unsigned i = 0; i < nvml->count; i++)
		handle_refresh(nvml, handle, i);
	return 0;
}

int wh_nvml_open(const char *path, struct wh_nvml **out)
{
	struct wh_nvml *nvml = calloc(1, sizeof(*nvml));
	int error;

	if (!nvml)
		return wh_fail(ENOMEM, "no memory for the NVML binding");
	nvml->library = dlopen(path && *path ? path : WH_NVML_LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (!nvml->library) {
		const char *why = dlerror();

		free(nvml);
		return wh_fail(ENODEV, "no NVML: %s; it comes with the NVIDIA driver",
			       why ? why : "dlopen failed");
	}
	error = nvml_initialise(nvml);
	if (error) {
		/* nvmlShutdown() does nothing if nvmlInit() failed. */
		wh_nvml_close(nvml);
		return error;
	}
	*out = nvml;
	return 0;
}

void wh_nvml_close(struct wh_nvml *nvml)
{
	int (*stop)(void);

	if (!nvml)
		return;
	stop = (int (*)(void))nvml_find(nvml, "nvmlShutdown", 1);
	if (stop)
		stop();
	dlclose(nvml->library);
	free(nvml);
}

unsigned wh_nvml_count(const struct wh_nvml *nvml)
{
	return nvml->count;
}

int wh_nvml_device(struct wh_nvml *nvml, unsigned device)
{
	struct nvml_query q = { .result = NVML_GPU_NOT_FOUND };

	snprintf(q.text, sizeof(q.text), "nvmlDeviceGetHandleByIndex %u", device);
	if (device < nvml->count)
		q.result = atomic_load(&nvml->lost[device]);
	return q.result ? nvml_fail(q.result, q.text) : 0;
}

int wh_nvml_retry(struct wh_nvml *nvml, unsigned device)
{
	if (device < nvml->count && atomic_load(&nvml->lost[device]))
		handle_refresh(nvml, handle_find(nvml), device);
	return wh_nvml_device(nvml, device);
}
