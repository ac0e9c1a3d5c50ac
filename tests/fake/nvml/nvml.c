/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake libnvidia-ml.so.1 that answers from a text file: FAKE_NVML names it. The file is read at
 * nvmlInit, and again whenever it has changed; replace it by rename, or half a file may be read.
 *
 * Each line is "FUNCTION ARGUMENTS : RESULT VALUES", as wh_nvml_record() writes them. FUNCTION has
 * no version; an argument "*" stands for any; the first matching line counts. Without a matching
 * line the answer is NOT_SUPPORTED. Empty lines and lines that start with '#' are ignored.
 * "delay : 0 MS" makes nvmlInit take MS milliseconds. A line "busy FUNCTION ARGUMENTS : RESULT
 * VALUES" describes a busy GPU: it counts before all others once this process has copied to any GPU
 * with the fake CUDA driver; it must not be the file's first line. fake_nvml_calls() returns the
 * number of queries of one function, or of all for NULL.
 *
 * Compiled with -DFAKE_NVML_OLD, the library has the functions of a driver of 2015: no versions,
 * and none of the later ones.
 */
#include <dlfcn.h>
#include <endian.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

enum {
	SUCCESS = 0,
	UNINITIALIZED = 1,
	INVALID_ARGUMENT = 2,
	NOT_SUPPORTED = 3,
	INSUFFICIENT_SIZE = 7,
	DRIVER_NOT_LOADED = 9,
	ARGUMENT_VERSION_MISMATCH = 25,
};

struct pci {
	char legacy[16];
	unsigned domain, bus, device, id, subsystem;
	char address[32];
};

struct field {
	uint32_t id, scope;
	int64_t timestamp, latency;
	uint32_t type, result;
	uint64_t value;
};

struct fabric {
	unsigned version;
	uint8_t cluster[16];
	uint32_t status, clique, state, health;
};

/* ---- the file -------------------------------------------------------------------------------- */

static char *text; /* of the whole file; NULL: not initialised */
static char *text_path;
static struct stat text_file; /* when it was read */
static pthread_mutex_t text_lock = PTHREAD_MUTEX_INITIALIZER;

static char *read_file(const char *path)
{
	FILE *file = path ? fopen(path, "re") : NULL;
	char *bytes = NULL;
	size_t size = 0;

	if (!file)
		return NULL;
	if (getdelim(&bytes, &size, '\0', file) < 0) {
		free(bytes);
		bytes = strdup("");
	}
	fclose(file);
	return bytes;
}

/* Does the left side of a line match a question, word by word? */
static bool pattern_matches(const char *pattern, size_t length, const char *question)
{
	const char *end = pattern + length;

	for (;;) {
		size_t a, b = strcspn(question, " ");

		while (pattern < end && *pattern == ' ')
			pattern++;
		for (a = 0; pattern + a < end && pattern[a] != ' '; a++)
			;
		if (!a || !b)
			return !a && !b;
		if (!(a == 1 && *pattern == '*') && (a != b || memcmp(pattern, question, a) != 0))
			return false;
		pattern += a;
		question += b + (question[b] == ' ');
	}
}

/* Read the file again if it has changed; if it no longer exists, keep the old text. Under the
 * lock. */
static void text_refresh(void)
{
	struct stat now;
	char *bytes;

	if (!text || stat(text_path, &now) ||
	    (now.st_ino == text_file.st_ino && now.st_size == text_file.st_size &&
	     now.st_mtim.tv_sec == text_file.st_mtim.tv_sec &&
	     now.st_mtim.tv_nsec == text_file.st_mtim.tv_nsec))
		return;
	bytes = read_file(text_path);
	if (!bytes)
		return;
	free(text);
	text = bytes;
	text_file = now;
}

/* Find the line of a question: return its result and copy its values. */
static int find_line(char *values, const char *question)
{
	const char *line = text;

	*values = '\0';
	if (!text)
		return UNINITIALIZED;
	while (*line) {
		size_t length = strcspn(line, "\n"), left = strcspn(line, ":\n");

		if (*line != '#' && line[left] == ':' && pattern_matches(line, left, question)) {
			int result = 0, used = 0;

			sscanf(line + left + 1, "%d %n", &result, &used);
			snprintf(values, 512, "%.*s", (int)(length - left - 1 - (size_t)used),
				 line + left + 1 + used);
			return result;
		}
		line += length + (line[length] == '\n');
	}
	return NOT_SUPPORTED;
}

/* Has the fake CUDA driver, if this process has loaded it, copied anything to a GPU? */
static bool is_busy(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *symbol;
	uint64_t (*calls)(const char *function);
	uint64_t copies = 0;

	if (!cuda)
		return false;
	symbol = dlsym(cuda, "fake_cuda_calls");
	if (symbol) {
		memcpy(&calls, &symbol, sizeof(symbol));
		copies = calls("cuMemcpyHtoDAsync_v2");
	}
	dlclose(cuda);
	return copies;
}

static int text_look_up(char *values, const char *question)
{
	int result = NOT_SUPPORTED;
	char busy[160];

	pthread_mutex_lock(&text_lock);
	text_refresh();
	if (text && strstr(text, "\nbusy ") && is_busy()) {
		snprintf(busy, sizeof(busy), "busy %s", question);
		result = find_line(values, busy);
	}
	if (result == NOT_SUPPORTED)
		result = find_line(values, question);
	pthread_mutex_unlock(&text_lock);
	return result;
}

static void forget_file(void)
{
	pthread_mutex_lock(&text_lock);
	free(text);
	free(text_path);
	text = text_path = NULL;
	pthread_mutex_unlock(&text_lock);
}

static bool take_file(const char *path)
{
	bool taken;

	forget_file();
	if (!path)
		return false;
	pthread_mutex_lock(&text_lock);
	text = read_file(path);
	text_path = strdup(path);
	taken = text && text_path && !stat(path, &text_file);
	pthread_mutex_unlock(&text_lock);
	return taken;
}

/* ---- counting calls -------------------------------------------------------------------------- */

/* Calls of each function since the library was loaded, by its name without a version. Calls of a
 * real driver are slow, so tests limit their number. */
#define FUNCTIONS 64
static struct {
	char name[64];
	unsigned calls;
} counts[FUNCTIONS];
static pthread_mutex_t counts_lock = PTHREAD_MUTEX_INITIALIZER;

static void count_call(const char *question)
{
	size_t length = strcspn(question, " "), i = 0;

	pthread_mutex_lock(&counts_lock);
	while (i < FUNCTIONS && *counts[i].name &&
	       (strlen(counts[i].name) != length || memcmp(counts[i].name, question, length) != 0))
		i++;
	if (i < FUNCTIONS && length < sizeof(counts[i].name)) {
		memcpy(counts[i].name, question, length);
		counts[i].calls++;
	}
	pthread_mutex_unlock(&counts_lock);
}

/* The calls of one function; NULL: of all. */
EXPORT unsigned fake_nvml_calls(const char *name)
{
	unsigned sum = 0;

	pthread_mutex_lock(&counts_lock);
	for (size_t i = 0; i < FUNCTIONS && *counts[i].name; i++)
		if (!name || strcmp(name, counts[i].name) == 0)
			sum += counts[i].calls;
	pthread_mutex_unlock(&counts_lock);
	return sum;
}

/* ---- answers --------------------------------------------------------------------------------- */

static unsigned index_of(void *device)
{
	return (unsigned)((uintptr_t)device - 1);
}

/* Format a question, count it and look its answer up. */
__attribute__((format(printf, 2, 3))) static int answer(char *values, const char *format, ...)
{
	char question[128];
	va_list list;

	va_start(list, format);
	vsnprintf(question, sizeof(question), format, list);
	va_end(list);
	count_call(question);
	return text_look_up(values, question);
}

static int answer_numbers(const char *values, int result, unsigned count, ...)
{
	char *at = (char *)values;
	va_list list;

	va_start(list, count);
	for (; count && !result; count--)
		*va_arg(list, unsigned *) = (unsigned)strtoull(at, &at, 0);
	va_end(list);
	return result;
}

/* ---- the library ----------------------------------------------------------------------------- */

EXPORT int nvmlInit(void)
{
	char values[512];
	int result;

	if (!take_file(getenv("FAKE_NVML")))
		return DRIVER_NOT_LOADED;
	if (!text_look_up(values, "delay")) {
		long ms = strtol(values, NULL, 10);

		nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000 }, NULL);
	}
	result = answer(values, "nvmlInit");
	return result == NOT_SUPPORTED ? SUCCESS : result;
}

EXPORT int nvmlShutdown(void)
{
	forget_file();
	return SUCCESS;
}

static int get_text(char *out, unsigned size, const char *values, int result)
{
	if (result)
		return result;
	if (strlen(values) >= size)
		return INSUFFICIENT_SIZE;
	strcpy(out, values);
	return SUCCESS;
}

#define SYSTEM_TEXT(name)                                                                          \
	EXPORT int name(char *out, unsigned size)                                                  \
	{                                                                                          \
		char values[512];                                                                  \
		int result = answer(values, #name);                                                \
                                                                                                   \
		return get_text(out, size, values, result);                                        \
	}

#define TEXT(name)                                                                                 \
	EXPORT int name(void *device, char *out, unsigned size)                                    \
	{                                                                                          \
		char values[512];                                                                  \
		int result = answer(values, #name " %u", index_of(device));                        \
                                                                                                   \
		return get_text(out, size, values, result);                                        \
	}

#define NUMBER(name)                                                                               \
	EXPORT int name(void *device, unsigned *out)                                               \
	{                                                                                          \
		char values[512];                                                                  \
		int result = answer(values, #name " %u", index_of(device));                        \
                                                                                                   \
		return answer_numbers(values, result, 1, out);                                     \
	}

#define NUMBERS(name)                                                                              \
	EXPORT int name(void *device, unsigned *one, unsigned *two)                                \
	{                                                                                          \
		char values[512];                                                                  \
		int result = answer(values, #name " %u", index_of(device));                        \
                                                                                                   \
		return answer_numbers(values, result, 2, one, two);                                \
	}

#define INDEXED(name)                                                                              \
	EXPORT int name(void *device, unsigned which, unsigned *out)                               \
	{                                                                                          \
		char values[512];                                                                  \
		int result = answer(values, #name " %u %u", index_of(device), which);              \
                                                                                                   \
		return answer_numbers(values, result, 1, out);                                     \
	}

/* A number of 64 bits. */
static int answer_long(const char *values, int result, uint64_t *out)
{
	if (!result)
		*out = strtoull(values, NULL, 0);
	return result;
}

SYSTEM_TEXT(nvmlSystemGetDriverVersion)
SYSTEM_TEXT(nvmlSystemGetNVMLVersion)
TEXT(nvmlDeviceGetName)
TEXT(nvmlDeviceGetUUID)
TEXT(nvmlDeviceGetSerial)
TEXT(nvmlDeviceGetVbiosVersion)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth)
NUMBER(nvmlDeviceGetPcieReplayCounter)
NUMBER(nvmlDeviceGetComputeMode)
NUMBER(nvmlDeviceGetPersistenceMode)
NUMBER(nvmlDeviceGetPowerUsage)
NUMBER(nvmlDeviceGetEnforcedPowerLimit)
INDEXED(nvmlDeviceGetClockInfo)
INDEXED(nvmlDeviceGetMaxClockInfo)
INDEXED(nvmlDeviceGetTemperature)
INDEXED(nvmlDeviceGetPcieThroughput)

/* The two numbers are the fields of one struct. */
EXPORT int nvmlDeviceGetUtilizationRates(void *device, unsigned *out)
{
	char values[512];
	int result = answer(values, "nvmlDeviceGetUtilizationRates %u", index_of(device));

	return answer_numbers(values, result, 2, &out[0], &out[1]);
}

EXPORT int nvmlDeviceGetTotalEccErrors(void *device, unsigned type, unsigned counter, uint64_t *out)
{
	char values[512];
	int result = answer(values, "nvmlDeviceGetTotalEccErrors %u %u %u", index_of(device), type,
			    counter);

	return answer_long(values, result, out);
}

EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, uint64_t *out)
{
	char values[512];
	int result =
		answer(values, "nvmlDeviceGetCurrentClocksThrottleReasons %u", index_of(device));

	return answer_long(values, result, out);
}

static int get_count(unsigned *out)
{
	char values[512];
	int result = answer(values, "nvmlDeviceGetCount");

	return answer_numbers(values, result, 1, out);
}

static int get_handle(unsigned which, void **out)
{
	char values[512];
	int result = answer(values, "nvmlDeviceGetHandleByIndex %u", which);

	if (!result)
		*out = (void *)((uintptr_t)which + 1);
	return result;
}

static int get_pci(struct pci *out, const char *values, int result)
{
	result = answer_numbers(values, result, 4, &out->domain, &out->bus, &out->device, &out->id);
	if (!result)
		snprintf(out->legacy, sizeof(out->legacy), "%04X:%02X:%02X.0", out->domain & 0xffff,
			 out->bus & 0xff, out->device & 0xff);
	return result;
}

static int get_device_pci(void *device, struct pci *out)
{
	char values[512];
	int result = answer(values, "nvmlDeviceGetPciInfo %u", index_of(device));

	return get_pci(out, values, result);
}

/* total used */
static int get_memory(const char *values, int result, uint64_t *total, uint64_t *used)
{
	if (!result && sscanf(values, "%" SCNu64 " %" SCNu64, total, used) != 2)
		return INVALID_ARGUMENT;
	return result;
}

EXPORT int nvmlDeviceGetMemoryInfo(void *device, uint64_t *out)
{
	char values[512];
	int result = answer(values, "nvmlDeviceGetMemoryInfo %u", index_of(device));

	result = get_memory(values, result, &out[0], &out[2]);
	if (!result)
		out[1] = out[0] - out[2];
	return result;
}

EXPORT int nvmlDeviceGetBAR1MemoryInfo(void *device, uint64_t *out)
{
	char values[512];
	int result = answer(values, "nvmlDeviceGetBAR1MemoryInfo %u", index_of(device));

	result = get_memory(values, result, &out[0], &out[2]);
	if (!result)
		out[1] = out[0] - out[2];
	return result;
}

EXPORT int nvmlDeviceGetCpuAffinity(void *device, unsigned count, uint64_t *out)
{
	char values[512], *at = values;
	int result = answer(values, "nvmlDeviceGetCpuAffinity %u", index_of(device));

	for (unsigned i = 0; i < count && !result; i++)
		out[i] = strtoull(at, &at, 0);
	return result;
}

EXPORT int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, unsigned *out)
{
	char values[512];
	int result = answer(values, "nvmlDeviceGetTopologyCommonAncestor %u %u", index_of(one),
			    index_of(other));

	return answer_numbers(values, result, 1, out);
}

#ifdef FAKE_NVML_OLD

EXPORT int nvmlDeviceGetCount(unsigned *out)
{
	return get_count(out);
}

EXPORT int nvmlDeviceGetHandleByIndex(unsigned which, void **out)
{
	return get_handle(which, out);
}

EXPORT int nvmlDeviceGetPciInfo_v2(void *device, struct pci *out)
{
	struct pci pci = { .legacy = "" };
	int result = get_device_pci(device, &pci);

	/* Its struct has 16 bytes after the subsystem, and no more. */
	memcpy(out, &pci, offsetof(struct pci, address) + 16);
	return result;
}

#else

EXPORT int nvmlInit_v2(void)
{
	return nvmlInit();
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *out)
{
	return get_count(out);
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned which, void **out)
{
	return get_handle(which, out);
}

static int get_link_pci(void *device, unsigned link, struct pci *out)
{
	char values[512];
	int result =
		answer(values, "nvmlDeviceGetNvLinkRemotePciInfo %u %u", index_of(device), link);

	return get_pci(out, values, result);
}

EXPORT int nvmlDeviceGetPciInfo_v3(void *device, struct pci *out)
{
	return get_device_pci(device, out);
}

EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, struct pci *out)
{
	return get_link_pci(device, link, out);
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, uint64_t *out)
{
	char values[512];
	int result = answer(values, "nvmlDeviceGetMemoryInfo %u", index_of(device));

	if ((uint32_t)out[0] != (40 | 2U << 24))
		return ARGUMENT_VERSION_MISMATCH;
	result = get_memory(values, result, &out[1], &out[4]);
	if (!result) {
		out[2] = 0;
		out[3] = out[1] - out[4];
	}
	return result;
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(void *device, uint64_t *out)
{
	char values[512];
	int result = answer(values, "nvmlDeviceGetCurrentClocksEventReasons %u", index_of(device));

	return answer_long(values, result, out);
}

struct process {
	unsigned pid;
	uint64_t memory;
	unsigned gpu_instance, compute_instance;
};

/* "PID MEMORY PID MEMORY ..." */
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count,
						   struct process *out)
{
	char values[512], *at = values, *end;
	int result = answer(values, "nvmlDeviceGetComputeRunningProcesses %u", index_of(device));
	unsigned room = *count;

	if (result)
		return result;
	for (*count = 0;; ++*count, at = end) {
		unsigned pid = (unsigned)strtoul(at, &end, 10);

		if (end == at)
			return SUCCESS;
		if (*count == room)
			return INSUFFICIENT_SIZE;
		out[*count] = (struct process){ .pid = pid, .memory = strtoull(end, &end, 10) };
	}
}

NUMBER(nvmlDeviceGetNumaNodeId)
NUMBERS(nvmlDeviceGetCudaComputeCapability)
NUMBERS(nvmlDeviceGetMigMode)
INDEXED(nvmlDeviceGetNvLinkState)
INDEXED(nvmlDeviceGetNvLinkVersion)
INDEXED(nvmlDeviceGetNvLinkRemoteDeviceType)

EXPORT int nvmlDeviceGetMemoryAffinity(void *device, unsigned count, uint64_t *out, unsigned scope)
{
	char values[512], *at = values;
	int result = answer(values, "nvmlDeviceGetMemoryAffinity %u", index_of(device));

	if (scope)
		return INVALID_ARGUMENT;
	for (unsigned i = 0; i < count && !result; i++)
		out[i] = strtoull(at, &at, 0);
	return result;
}

EXPORT int nvmlDeviceGetP2PStatus(void *one, void *other, unsigned what, unsigned *out)
{
	char values[512];
	int result = answer(values, "nvmlDeviceGetP2PStatus %u %u %u", index_of(one),
			    index_of(other), what);

	return answer_numbers(values, result, 1, out);
}

/* Each field has its own result; the call itself succeeds. */
EXPORT int nvmlDeviceGetFieldValues(void *device, int count, struct field *fields)
{
	count_call("nvmlDeviceGetFieldValues");
	for (int i = 0; i < count; i++) {
		char question[128], values[512];

		snprintf(question, sizeof(question), "nvmlDeviceGetFieldValues %u %u %u",
			 index_of(device), fields[i].id, fields[i].scope);
		fields[i].result = (uint32_t)text_look_up(values, question);
		if (fields[i].result)
			continue;
		fields[i].type = 3;
		fields[i].value = strtoull(values, NULL, 0);
	}
	return text ? SUCCESS : UNINITIALIZED;
}

EXPORT int nvmlDeviceGetGpuFabricInfoV(void *device, struct fabric *out)
{
	char values[512];
	int result = answer(values, "nvmlDeviceGetGpuFabricInfoV %u", index_of(device));
	char *at = values;

	if (out->version != (sizeof(*out) | 2U << 24))
		return ARGUMENT_VERSION_MISMATCH;
	result = answer_numbers(values, result, 3, &out->state, &out->status, &out->clique);
	/* The cluster's UUID follows as two numbers. */
	for (int i = 0; i < 3 && !result; i++)
		strtoul(at, &at, 0);
	for (int i = 0; i < 2 && !result; i++) {
		uint64_t half = htobe64(strtoull(at, &at, 0));

		memcpy(out->cluster + 8 * i, &half, sizeof(half));
	}
	return result;
}

#endif
