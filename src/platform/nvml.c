/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every question goes the same way: ask() looks whether the function and the GPU are there, and
 * done() records the answer and makes an errno and a sentence of a refusal.
 */
#include "platform/nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "util/error.h"

/* ---- the ABI --------------------------------------------------------------------------------- */

enum {
	NVML_SUCCESS = 0,
	NVML_INVALID_ARGUMENT = 2,
	NVML_NOT_SUPPORTED = 3,
	NVML_NO_PERMISSION = 4,
	NVML_NOT_FOUND = 6,
	NVML_INSUFFICIENT_SIZE = 7,
	NVML_DRIVER_NOT_LOADED = 9,
	NVML_TIMEOUT = 10,
	NVML_LIBRARY_NOT_FOUND = 12,
	NVML_FUNCTION_NOT_FOUND = 13,
	NVML_GPU_IS_LOST = 15,
	NVML_RESET_REQUIRED = 16,
	NVML_OPERATING_SYSTEM = 17,
	NVML_VERSION_MISMATCH = 18,
	NVML_IN_USE = 19,
	NVML_MEMORY = 20,
	NVML_NO_DATA = 21,
	NVML_DEPRECATED = 26,
	NVML_NOT_READY = 27,
	NVML_GPU_NOT_FOUND = 28,
};

typedef void *nvml_device;

/* The second version of the struct is its beginning, and has the same numbers in it. */
struct nvml_pci {
	char legacy[16];
	unsigned domain, bus, device, id, subsystem;
	char address[32];
};

struct nvml_memory {
	uint64_t total, free, used;
};

struct nvml_memory_v2 {
	unsigned version;
	uint64_t total, reserved, free, used;
};

struct nvml_field {
	uint32_t id, scope;
	int64_t timestamp, latency;
	uint32_t type; /* of value */
	uint32_t result;
	union {
		double d;
		uint32_t u32;
		uint64_t u64;
		int64_t s64;
		int32_t s32;
		uint16_t u16;
	} value;
};

struct nvml_fabric {
	unsigned version;
	uint8_t cluster[16];
	uint32_t status, clique, state, health;
};

/* As of the second version of the function. */
struct nvml_process {
	unsigned pid;
	uint64_t memory;
	unsigned gpu_instance, compute_instance;
};

#define PROCESSES_MOST 256

static const char fields_function[] = "nvmlDeviceGetFieldValues";

#define VERSIONED(type, version) ((unsigned)(sizeof(type) | (version) << 24))

typedef int text_function(nvml_device device, char *out, unsigned size);
typedef int number_function(nvml_device device, unsigned *out);
typedef int indexed_function(nvml_device device, unsigned index, unsigned *out);

struct wh_nvml {
	void *library;
	FILE *record;
	unsigned count;
	_Atomic nvml_device handles[WH_NVML_DEVICES]; /* before `lost` is cleared */
	/* NVML's result for the handle, or what a question found since */
	atomic_int lost[WH_NVML_DEVICES];
};

static const char *const system_texts[WH_NVML_SYSTEM_TEXTS] = {
	[WH_NVML_DRIVER_VERSION] = "nvmlSystemGetDriverVersion",
	[WH_NVML_LIBRARY_VERSION] = "nvmlSystemGetNVMLVersion",
};

static const char *const texts[WH_NVML_TEXTS] = {
	[WH_NVML_NAME] = "nvmlDeviceGetName",
	[WH_NVML_UUID] = "nvmlDeviceGetUUID",
	[WH_NVML_SERIAL] = "nvmlDeviceGetSerial",
	[WH_NVML_VBIOS] = "nvmlDeviceGetVbiosVersion",
};

static const char *const numbers[WH_NVML_NUMBERS] = {
	[WH_NVML_PCIE_GENERATION] = "nvmlDeviceGetCurrPcieLinkGeneration",
	[WH_NVML_PCIE_GENERATION_MOST] = "nvmlDeviceGetMaxPcieLinkGeneration",
	[WH_NVML_PCIE_WIDTH] = "nvmlDeviceGetCurrPcieLinkWidth",
	[WH_NVML_PCIE_WIDTH_MOST] = "nvmlDeviceGetMaxPcieLinkWidth",
	[WH_NVML_PCIE_REPLAYS] = "nvmlDeviceGetPcieReplayCounter",
	[WH_NVML_NUMA_NODE] = "nvmlDeviceGetNumaNodeId",
	[WH_NVML_COMPUTE_MODE] = "nvmlDeviceGetComputeMode",
	[WH_NVML_PERSISTENCE] = "nvmlDeviceGetPersistenceMode",
	[WH_NVML_POWER] = "nvmlDeviceGetPowerUsage",
	[WH_NVML_POWER_LIMIT] = "nvmlDeviceGetEnforcedPowerLimit",
};

static const char *const indexed[WH_NVML_INDEXED] = {
	[WH_NVML_LINK_STATE] = "nvmlDeviceGetNvLinkState",
	[WH_NVML_LINK_VERSION] = "nvmlDeviceGetNvLinkVersion",
	[WH_NVML_LINK_REMOTE] = "nvmlDeviceGetNvLinkRemoteDeviceType",
	[WH_NVML_CLOCK] = "nvmlDeviceGetClockInfo",
	[WH_NVML_CLOCK_MOST] = "nvmlDeviceGetMaxClockInfo",
	[WH_NVML_TEMPERATURE] = "nvmlDeviceGetTemperature",
	[WH_NVML_PCIE_RATE] = "nvmlDeviceGetPcieThroughput",
};

/* ---- results --------------------------------------------------------------------------------- */

static const struct meaning {
	int result, error;
	const char *name, *hint; /* hint NULL: the name says it */
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

static int refuse(int result, const char *question)
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
	/* What is not known is of the same errno as what has to be reset. */
	if (error == -unknown.error)
		return unknown.name;
	for (size_t i = 0; i < sizeof(meanings) / sizeof(meanings[0]); i++)
		if (meanings[i].error == -error)
			return meanings[i].name;
	return strerror(-error);
}

/* ---- questions ------------------------------------------------------------------------------- */

struct question {
	char text[96]; /* "nvmlDeviceGetNvLinkState 0 17" */
	void *function;
	nvml_device device;
	/* of the device; UINT_MAX: of two, either of which an answer may be about */
	unsigned index;
	int result;
};

/* Look up NAME_vN for N from `version` down, then NAME. */
static void *find(const struct wh_nvml *nvml, const char *name, int version)
{
	char versioned[64];
	void *found = NULL;

	for (; version > 1 && !found; version--) {
		snprintf(versioned, sizeof(versioned), "%s_v%d", name, version);
		found = dlsym(nvml->library, versioned);
	}
	return found ? found : dlsym(nvml->library, name);
}

/* A question with up to two arguments besides the GPU (-1: none). True: call q->function and keep
 * its result; else there is nothing to call, and q->result says why. */
static bool ask(struct wh_nvml *nvml, struct question *q, const char *name, int version,
		unsigned device, int64_t second, int64_t third)
{
	int used = snprintf(q->text, sizeof(q->text), "%s %u", name, device);

	if (second >= 0)
		used += snprintf(q->text + used, sizeof(q->text) - (size_t)used, " %" PRId64,
				 second);
	if (third >= 0)
		snprintf(q->text + used, sizeof(q->text) - (size_t)used, " %" PRId64, third);
	q->function = find(nvml, name, version);
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

/* The end of each question; the values are what is recorded if it was answered. */
__attribute__((format(printf, 3, 4))) static int
done(struct wh_nvml *nvml, const struct question *q, const char *format, ...)
{
	char values[512] = "";
	va_list list;

	/* One that falls off the bus says so to the next question, whichever. */
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
	return q->result ? refuse(q->result, q->text) : 0;
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

static handle_function *find_handle(const struct wh_nvml *nvml)
{
	return (handle_function *)find(nvml, "nvmlDeviceGetHandleByIndex", 2);
}

static void take_handle(struct wh_nvml *nvml, handle_function *handle, unsigned device)
{
	nvml_device taken = NULL;
	int result = handle(device, &taken);

	if (!result)
		atomic_store(&nvml->handles[device], taken);
	atomic_store(&nvml->lost[device], result);
}

static int initialise(struct wh_nvml *nvml)
{
	struct question q = { .text = "nvmlInit" };
	int (*start)(void) = (int (*)(void))find(nvml, "nvmlInit", 2);
	int (*count)(unsigned *) = (int (*)(unsigned *))find(nvml, "nvmlDeviceGetCount", 2);
	handle_function *handle = find_handle(nvml);

	if (!start || !count || !handle)
		return wh_fail(ELIBBAD, "%s has not even nvmlInit: it is not NVML",
			       WH_NVML_LIBRARY);
	q.result = start();
	if (q.result)
		return refuse(q.result, q.text);
	q = (struct question){ .text = "nvmlDeviceGetCount", .result = count(&nvml->count) };
	if (q.result)
		return refuse(q.result, q.text);
	if (nvml->count > WH_NVML_DEVICES)
		nvml->count = WH_NVML_DEVICES;
	for (unsigned i = 0; i < nvml->count; i++)
		take_handle(nvml, handle, i);
	return 0;
}

int wh_nvml_open(const char *path, struct wh_nvml **out)
{
	struct wh_nvml *nvml = calloc(1, sizeof(*nvml));
	int error;

	if (!nvml)
		return wh_fail(ENOMEM, "no memory for what is known of NVML");
	nvml->library = dlopen(path && *path ? path : WH_NVML_LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (!nvml->library) {
		const char *why = dlerror();

		free(nvml);
		return wh_fail(ENODEV, "no NVML: %s; it comes with the NVIDIA driver",
			       why ? why : "dlopen failed");
	}
	error = initialise(nvml);
	if (error) {
		/* Where it was not initialised, its shutdown does nothing. */
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
	stop = (int (*)(void))find(nvml, "nvmlShutdown", 1);
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
	struct question q = { .result = NVML_GPU_NOT_FOUND };

	snprintf(q.text, sizeof(q.text), "nvmlDeviceGetHandleByIndex %u", device);
	if (device < nvml->count)
		q.result = atomic_load(&nvml->lost[device]);
	return q.result ? refuse(q.result, q.text) : 0;
}

int wh_nvml_retry(struct wh_nvml *nvml, unsigned device)
{
	if (device < nvml->count && atomic_load(&nvml->lost[device]))
		take_handle(nvml, find_handle(nvml), device);
	return wh_nvml_device(nvml, device);
}

/* ---- texts and numbers ----------------------------------------------------------------------- */

int wh_nvml_system_text(struct wh_nvml *nvml, enum wh_nvml_system_text which,
			char out[WH_NVML_TEXT])
{
	struct question q = { .function = find(nvml, system_texts[which], 1),
			      .result = NVML_FUNCTION_NOT_FOUND };
	char text[WH_NVML_TEXT] = "";

	snprintf(q.text, sizeof(q.text), "%s", system_texts[which]);
	if (q.function)
		q.result = ((int (*)(char *, unsigned))q.function)(text, sizeof(text));
	if (!q.result)
		memcpy(out, text, sizeof(text));
	return done(nvml, &q, "%s", text);
}

int wh_nvml_text(struct wh_nvml *nvml, enum wh_nvml_text which, unsigned device,
		 char out[WH_NVML_TEXT])
{
	struct question q = { .function = NULL };
	char text[WH_NVML_TEXT] = "";

	if (ask(nvml, &q, texts[which], 1, device, -1, -1))
		q.result = ((text_function *)q.function)(q.device, text, sizeof(text));
	if (!q.result)
		memcpy(out, text, sizeof(text));
	return done(nvml, &q, "%s", text);
}

int wh_nvml_number(struct wh_nvml *nvml, enum wh_nvml_number which, unsigned device, uint32_t *out)
{
	struct question q = { .function = NULL };
	unsigned value = 0;

	if (ask(nvml, &q, numbers[which], 1, device, -1, -1))
		q.result = ((number_function *)q.function)(q.device, &value);
	if (!q.result)
		*out = value;
	return done(nvml, &q, "%u", value);
}

int wh_nvml_indexed(struct wh_nvml *nvml, enum wh_nvml_indexed which, unsigned device,
		    unsigned index, uint32_t *out)
{
	struct question q = { .function = NULL };
	unsigned value = 0;

	if (ask(nvml, &q, indexed[which], 1, device, index, -1))
		q.result = ((indexed_function *)q.function)(q.device, index, &value);
	if (!q.result)
		*out = value;
	return done(nvml, &q, "%u", value);
}

/* Whatever its type, as a number that is not negative. */
static int field_value(const struct nvml_field *field, uint64_t *out)
{
	switch (field->type) {
	case 0:
		*out = field->value.d < 0 ? 0 : (uint64_t)field->value.d;
		return 0;
	case 1:
		*out = field->value.u32;
		return 0;
	case 2:
	case 3:
		*out = field->value.u64;
		return 0;
	case 4:
		*out = (uint64_t)field->value.s64;
		return field->value.s64 < 0 ? NVML_NO_DATA : 0;
	case 5:
		*out = (uint64_t)field->value.s32;
		return field->value.s32 < 0 ? NVML_NO_DATA : 0;
	case 6:
		*out = field->value.u16;
		return 0;
	default:
		return NVML_NO_DATA;
	}
}

void wh_nvml_fields(struct wh_nvml *nvml, unsigned device, struct wh_nvml_field *fields,
		    unsigned count)
{
	struct nvml_field requests[WH_NVML_FIELDS] = { { .id = 0 } };
	struct question q = { .function = NULL };
	int result;

	if (count > WH_NVML_FIELDS)
		count = WH_NVML_FIELDS;
	for (unsigned i = 0; i < count; i++)
		requests[i] =
			(struct nvml_field){ .id = fields[i].field, .scope = fields[i].scope };
	if (ask(nvml, &q, fields_function, 1, device, -1, -1))
		q.result = ((int (*)(nvml_device, int, struct nvml_field *))q.function)(
			q.device, (int)count, requests);
	result = q.result;
	for (unsigned i = 0; i < count; i++) {
		uint64_t value = 0;

		snprintf(q.text, sizeof(q.text), "%s %u %" PRIu32 " %" PRIu32, fields_function,
			 device, fields[i].field, fields[i].scope);
		/* The call is a success also if none of its fields is one. */
		q.result = result ? result : (int)requests[i].result;
		if (!q.result)
			q.result = field_value(&requests[i], &value);
		if (!q.result)
			fields[i].value = value;
		fields[i].error = done(nvml, &q, "%" PRIu64, value);
	}
}

int wh_nvml_field(struct wh_nvml *nvml, unsigned device, uint32_t field, uint32_t scope,
		  uint64_t *out)
{
	struct wh_nvml_field one = { .field = field, .scope = scope };

	wh_nvml_fields(nvml, device, &one, 1);
	if (!one.error)
		*out = one.value;
	return one.error;
}

/* ---- the rest -------------------------------------------------------------------------------- */

static int pci_done(struct wh_nvml *nvml, const struct question *q, const struct nvml_pci *pci,
		    struct wh_nvml_pci *out)
{
	if (!q->result)
		*out = (struct wh_nvml_pci){ pci->domain, pci->bus, pci->device, pci->id };
	return done(nvml, q, "0x%x 0x%x 0x%x 0x%x", pci->domain, pci->bus, pci->device, pci->id);
}

int wh_nvml_pci(struct wh_nvml *nvml, unsigned device, struct wh_nvml_pci *out)
{
	struct nvml_pci pci = { .legacy = "" };
	struct question q = { .function = NULL };

	if (ask(nvml, &q, "nvmlDeviceGetPciInfo", 3, device, -1, -1))
		q.result = ((int (*)(nvml_device, struct nvml_pci *))q.function)(q.device, &pci);
	return pci_done(nvml, &q, &pci, out);
}

int wh_nvml_link_pci(struct wh_nvml *nvml, unsigned device, unsigned link, struct wh_nvml_pci *out)
{
	struct nvml_pci pci = { .legacy = "" };
	struct question q = { .function = NULL };

	if (ask(nvml, &q, "nvmlDeviceGetNvLinkRemotePciInfo", 2, device, link, -1))
		q.result = ((int (*)(nvml_device, unsigned, struct nvml_pci *))q.function)(
			q.device, link, &pci);
	return pci_done(nvml, &q, &pci, out);
}

int wh_nvml_memory(struct wh_nvml *nvml, unsigned device, struct wh_nvml_memory *out)
{
	struct nvml_memory_v2 second = { .version = VERSIONED(struct nvml_memory_v2, 2) };
	struct nvml_memory first = { 0 };
	struct question q = { .function = NULL };

	if (!ask(nvml, &q, "nvmlDeviceGetMemoryInfo", 2, device, -1, -1))
		return done(nvml, &q, "%d", 0);
	/* The second version counts what the driver keeps for itself apart, not as used. */
	if (dlsym(nvml->library, "nvmlDeviceGetMemoryInfo_v2")) {
		q.result = ((int (*)(nvml_device, void *))q.function)(q.device, &second);
		first.total = second.total;
		first.used = second.used;
	} else {
		q.result = ((int (*)(nvml_device, void *))q.function)(q.device, &first);
	}
	if (!q.result)
		*out = (struct wh_nvml_memory){ first.total, first.used };
	return done(nvml, &q, "%" PRIu64 " %" PRIu64, first.total, first.used);
}

int wh_nvml_bar1(struct wh_nvml *nvml, unsigned device, struct wh_nvml_memory *out)
{
	struct nvml_memory memory = { 0 };
	struct question q = { .function = NULL };

	if (ask(nvml, &q, "nvmlDeviceGetBAR1MemoryInfo", 1, device, -1, -1))
		q.result =
			((int (*)(nvml_device, struct nvml_memory *))q.function)(q.device, &memory);
	if (!q.result)
		*out = (struct wh_nvml_memory){ memory.total, memory.used };
	return done(nvml, &q, "%" PRIu64 " %" PRIu64, memory.total, memory.used);
}

int wh_nvml_capability(struct wh_nvml *nvml, unsigned device, int *major, int *minor)
{
	int values[2] = { 0 };
	struct question q = { .function = NULL };

	if (ask(nvml, &q, "nvmlDeviceGetCudaComputeCapability", 1, device, -1, -1))
		q.result = ((int (*)(nvml_device, int *, int *))q.function)(q.device, &values[0],
									    &values[1]);
	if (!q.result) {
		*major = values[0];
		*minor = values[1];
	}
	return done(nvml, &q, "%d %d", values[0], values[1]);
}

int wh_nvml_mig(struct wh_nvml *nvml, unsigned device, bool *on)
{
	unsigned now = 0, pending = 0;
	struct question q = { .function = NULL };

	if (ask(nvml, &q, "nvmlDeviceGetMigMode", 1, device, -1, -1))
		q.result = ((int (*)(nvml_device, unsigned *, unsigned *))q.function)(
			q.device, &now, &pending);
	if (!q.result)
		*on = now == 1;
	return done(nvml, &q, "%u %u", now, pending);
}

int wh_nvml_utilisation(struct wh_nvml *nvml, unsigned device, uint32_t *gpu, uint32_t *memory)
{
	unsigned values[2] = { 0 };
	struct question q = { .function = NULL };

	if (ask(nvml, &q, "nvmlDeviceGetUtilizationRates", 1, device, -1, -1))
		q.result = ((int (*)(nvml_device, unsigned *))q.function)(q.device, values);
	if (!q.result) {
		*gpu = values[0];
		*memory = values[1];
	}
	return done(nvml, &q, "%u %u", values[0], values[1]);
}

int wh_nvml_ecc(struct wh_nvml *nvml, unsigned device, bool uncorrected, uint64_t *out)
{
	struct question q = { .function = NULL };
	uint64_t value = 0;

	/* 0: since the driver was loaded. */
	if (ask(nvml, &q, "nvmlDeviceGetTotalEccErrors", 1, device, uncorrected, 0))
		q.result = ((int (*)(nvml_device, unsigned, unsigned, uint64_t *))q.function)(
			q.device, uncorrected, 0, &value);
	if (!q.result)
		*out = value;
	return done(nvml, &q, "%" PRIu64, value);
}

int wh_nvml_reasons(struct wh_nvml *nvml, unsigned device, uint64_t *out)
{
	static const char older[] = "nvmlDeviceGetCurrentClocksThrottleReasons";
	const char *name = "nvmlDeviceGetCurrentClocksEventReasons";
	struct question q = { .function = NULL };
	uint64_t value = 0;

	if (ask(nvml, &q, dlsym(nvml->library, name) ? name : older, 1, device, -1, -1))
		q.result = ((int (*)(nvml_device, uint64_t *))q.function)(q.device, &value);
	if (!q.result)
		*out = value;
	return done(nvml, &q, "0x%" PRIx64, value);
}

int wh_nvml_processes(struct wh_nvml *nvml, unsigned device, struct wh_nvml_process *out,
		      unsigned *count)
{
	struct nvml_process list[PROCESSES_MOST] = { { 0 } };
	unsigned found = PROCESSES_MOST, used = 0;
	char text[400] = "";
	struct question q = { .function = NULL };

	/* The first version has another struct. */
	if (ask(nvml, &q, "nvmlDeviceGetComputeRunningProcesses", 3, device, -1, -1)) {
		if (dlsym(nvml->library, "nvmlDeviceGetComputeRunningProcesses_v3") ||
		    dlsym(nvml->library, "nvmlDeviceGetComputeRunningProcesses_v2"))
			q.result = ((int (*)(nvml_device, unsigned *,
					     struct nvml_process *))q.function)(q.device, &found,
										list);
		else
			q.result = NVML_FUNCTION_NOT_FOUND;
	}
	/* More than there is room for: the first ones. */
	if (q.result == NVML_INSUFFICIENT_SIZE)
		found = 0;
	for (unsigned i = 0; i < found && i < *count && !q.result; i++) {
		out[i] = (struct wh_nvml_process){ list[i].pid, list[i].memory };
		if (used + 32 < sizeof(text))
			used += (unsigned)snprintf(text + used, sizeof(text) - used,
						   "%s%u %" PRIu64, i ? " " : "", list[i].pid,
						   list[i].memory);
	}
	if (!q.result && found < *count)
		*count = found;
	return done(nvml, &q, "%s", text);
}

static int words_done(struct wh_nvml *nvml, const struct question *q, const uint64_t *words,
		      unsigned count)
{
	char text[400] = "";

	for (unsigned i = 0, used = 0; i < count && used < sizeof(text) - 20; i++)
		used += (unsigned)snprintf(text + used, sizeof(text) - used, "%s0x%" PRIx64,
					   i ? " " : "", words[i]);
	return done(nvml, q, "%s", text);
}

int wh_nvml_cpus(struct wh_nvml *nvml, unsigned device, uint64_t *words, unsigned count)
{
	struct question q = { .function = NULL };

	_Static_assert(sizeof(unsigned long) == sizeof(uint64_t), "NVML's words are unsigned long");
	memset(words, 0, count * sizeof(*words));
	if (ask(nvml, &q, "nvmlDeviceGetCpuAffinity", 1, device, -1, -1))
		q.result = ((int (*)(nvml_device, unsigned, uint64_t *))q.function)(q.device, count,
										    words);
	return words_done(nvml, &q, words, count);
}

int wh_nvml_nodes(struct wh_nvml *nvml, unsigned device, uint64_t *words, unsigned count)
{
	struct question q = { .function = NULL };

	memset(words, 0, count * sizeof(*words));
	if (ask(nvml, &q, "nvmlDeviceGetMemoryAffinity", 1, device, -1, -1))
		q.result = ((int (*)(nvml_device, unsigned, uint64_t *, unsigned))q.function)(
			q.device, count, words, 0);
	return words_done(nvml, &q, words, count);
}

/* A question about two GPUs. */
static bool ask_pair(struct wh_nvml *nvml, struct question *q, const char *name, unsigned one,
		     unsigned other, int64_t third)
{
	if (!ask(nvml, q, name, 1, one, other, third))
		return false;
	q->index = UINT_MAX;
	if (other >= nvml->count)
		q->result = NVML_GPU_NOT_FOUND;
	else
		q->result = atomic_load(&nvml->lost[other]);
	return !q->result;
}

int wh_nvml_ancestor(struct wh_nvml *nvml, unsigned one, unsigned other, uint32_t *out)
{
	struct question q = { .function = NULL };
	unsigned value = 0;

	if (ask_pair(nvml, &q, "nvmlDeviceGetTopologyCommonAncestor", one, other, -1))
		q.result = ((int (*)(nvml_device, nvml_device, unsigned *))q.function)(
			q.device, atomic_load(&nvml->handles[other]), &value);
	if (!q.result)
		*out = value;
	return done(nvml, &q, "%u", value);
}

int wh_nvml_p2p(struct wh_nvml *nvml, unsigned one, unsigned other, enum wh_nvml_p2p what,
		uint32_t *out)
{
	struct question q = { .function = NULL };
	unsigned value = 0;

	if (ask_pair(nvml, &q, "nvmlDeviceGetP2PStatus", one, other, what))
		q.result = ((int (*)(nvml_device, nvml_device, unsigned, unsigned *))q.function)(
			q.device, atomic_load(&nvml->handles[other]), what, &value);
	if (!q.result)
		*out = value;
	return done(nvml, &q, "%u", value);
}

int wh_nvml_fabric(struct wh_nvml *nvml, unsigned device, struct wh_nvml_fabric *out)
{
	struct nvml_fabric fabric = { .version = VERSIONED(struct nvml_fabric, 2) };
	struct question q = { .function = NULL };

	if (ask(nvml, &q, "nvmlDeviceGetGpuFabricInfoV", 1, device, -1, -1))
		q.result =
			((int (*)(nvml_device, struct nvml_fabric *))q.function)(q.device, &fabric);
	if (!q.result)
		*out = (struct wh_nvml_fabric){ fabric.state, fabric.status, fabric.clique };
	return done(nvml, &q, "%u %u %u", fabric.state, fabric.status, fabric.clique);
}
