/* SPDX-License-Identifier: Apache-2.0 */
/* The queries to NVML: one function for each kind of answer. */
#include "platform/nvml-query.h"

#include <dlfcn.h>
#include <endian.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>

#define PROCESSES_MOST 256

static const char fields_function[] = "nvmlDeviceGetFieldValues";

#define VERSIONED(type, version) ((unsigned)(sizeof(type) | (version) << 24))

typedef int text_function(nvml_device device, char *out, unsigned size);
typedef int number_function(nvml_device device, unsigned *out);
typedef int indexed_function(nvml_device device, unsigned index, unsigned *out);

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

/* ---- texts and numbers ----------------------------------------------------------------------- */

int wh_nvml_system_text(struct wh_nvml *nvml, enum wh_nvml_system_text which,
			char out[WH_NVML_TEXT])
{
	struct nvml_query q = { .function = nvml_find(nvml, system_texts[which], 1),
				.result = NVML_FUNCTION_NOT_FOUND };
	char text[WH_NVML_TEXT] = "";

	snprintf(q.text, sizeof(q.text), "%s", system_texts[which]);
	if (q.function)
		q.result = ((int (*)(char *, unsigned))q.function)(text, sizeof(text));
	if (!q.result)
		memcpy(out, text, sizeof(text));
	return nvml_query_end(nvml, &q, "%s", text);
}

int wh_nvml_text(struct wh_nvml *nvml, enum wh_nvml_text which, unsigned device,
		 char out[WH_NVML_TEXT])
{
	struct nvml_query q = { .function = NULL };
	char text[WH_NVML_TEXT] = "";

	if (nvml_query_begin(nvml, &q, texts[which], 1, device, -1, -1))
		q.result = ((text_function *)q.function)(q.device, text, sizeof(text));
	if (!q.result)
		memcpy(out, text, sizeof(text));
	return nvml_query_end(nvml, &q, "%s", text);
}

int wh_nvml_number(struct wh_nvml *nvml, enum wh_nvml_number which, unsigned device, uint32_t *out)
{
	struct nvml_query q = { .function = NULL };
	unsigned value = 0;

	if (nvml_query_begin(nvml, &q, numbers[which], 1, device, -1, -1))
		q.result = ((number_function *)q.function)(q.device, &value);
	if (!q.result)
		*out = value;
	return nvml_query_end(nvml, &q, "%u", value);
}

int wh_nvml_indexed(struct wh_nvml *nvml, enum wh_nvml_indexed which, unsigned device,
		    unsigned index, uint32_t *out)
{
	struct nvml_query q = { .function = NULL };
	unsigned value = 0;

	if (nvml_query_begin(nvml, &q, indexed[which], 1, device, index, -1))
		q.result = ((indexed_function *)q.function)(q.device, index, &value);
	if (!q.result)
		*out = value;
	return nvml_query_end(nvml, &q, "%u", value);
}

/* A field's value of any type as a number that is not negative. */
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
	struct nvml_query q = { .function = NULL };
	int result;

	if (count > WH_NVML_FIELDS)
		count = WH_NVML_FIELDS;
	for (unsigned i = 0; i < count; i++)
		requests[i] =
			(struct nvml_field){ .id = fields[i].field, .scope = fields[i].scope };
	if (nvml_query_begin(nvml, &q, fields_function, 1, device, -1, -1))
		q.result = ((int (*)(nvml_device, int, struct nvml_field *))q.function)(
			q.device, (int)count, requests);
	result = q.result;
	for (unsigned i = 0; i < count; i++) {
		uint64_t value = 0;

		snprintf(q.text, sizeof(q.text), "%s %u %" PRIu32 " %" PRIu32, fields_function,
			 device, fields[i].field, fields[i].scope);
		/* The call succeeds even if every field fails. */
		q.result = result ? result : (int)requests[i].result;
		if (!q.result)
			q.result = field_value(&requests[i], &value);
		if (!q.result)
			fields[i].value = value;
		fields[i].error = nvml_query_end(nvml, &q, "%" PRIu64, value);
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

static int end_pci(struct wh_nvml *nvml, const struct nvml_query *q, const struct nvml_pci *pci,
		   struct wh_nvml_pci *out)
{
	if (!q->result)
		*out = (struct wh_nvml_pci){ pci->domain, pci->bus, pci->device, pci->id };
	return nvml_query_end(nvml, q, "0x%x 0x%x 0x%x 0x%x", pci->domain, pci->bus, pci->device,
			      pci->id);
}

int wh_nvml_pci(struct wh_nvml *nvml, unsigned device, struct wh_nvml_pci *out)
{
	struct nvml_pci pci = { .legacy = "" };
	struct nvml_query q = { .function = NULL };

	if (nvml_query_begin(nvml, &q, "nvmlDeviceGetPciInfo", 3, device, -1, -1))
		q.result = ((int (*)(nvml_device, struct nvml_pci *))q.function)(q.device, &pci);
	return end_pci(nvml, &q, &pci, out);
}

int wh_nvml_link_pci(struct wh_nvml *nvml, unsigned device, unsigned link, struct wh_nvml_pci *out)
{
	struct nvml_pci pci = { .legacy = "" };
	struct nvml_query q = { .function = NULL };

	if (nvml_query_begin(nvml, &q, "nvmlDeviceGetNvLinkRemotePciInfo", 2, device, link, -1))
		q.result = ((int (*)(nvml_device, unsigned, struct nvml_pci *))q.function)(
			q.device, link, &pci);
	return end_pci(nvml, &q, &pci, out);
}

int wh_nvml_memory(struct wh_nvml *nvml, unsigned device, struct wh_nvml_memory *out)
{
	struct nvml_memory_v2 second = { .version = VERSIONED(struct nvml_memory_v2, 2) };
	struct nvml_memory first = { 0 };
	struct nvml_query q = { .function = NULL };

	if (!nvml_query_begin(nvml, &q, "nvmlDeviceGetMemoryInfo", 2, device, -1, -1))
		return nvml_query_end(nvml, &q, "%d", 0);
	/* Version 2 does not count the memory that the driver reserves as used. */
	if (dlsym(nvml->library, "nvmlDeviceGetMemoryInfo_v2")) {
		q.result = ((int (*)(nvml_device, void *))q.function)(q.device, &second);
		first.total = second.total;
		first.used = second.used;
	} else {
		q.result = ((int (*)(nvml_device, void *))q.function)(q.device, &first);
	}
	if (!q.result)
		*out = (struct wh_nvml_memory){ first.total, first.used };
	return nvml_query_end(nvml, &q, "%" PRIu64 " %" PRIu64, first.total, first.used);
}

int wh_nvml_bar1(struct wh_nvml *nvml, unsigned device, struct wh_nvml_memory *out)
{
	struct nvml_memory memory = { 0 };
	struct nvml_query q = { .function = NULL };

	if (nvml_query_begin(nvml, &q, "nvmlDeviceGetBAR1MemoryInfo", 1, device, -1, -1))
		q.result =
			((int (*)(nvml_device, struct nvml_memory *))q.function)(q.device, &memory);
	if (!q.result)
		*out = (struct wh_nvml_memory){ memory.total, memory.used };
	return nvml_query_end(nvml, &q, "%" PRIu64 " %" PRIu64, memory.total, memory.used);
}

int wh_nvml_capability(struct wh_nvml *nvml, unsigned device, int *major, int *minor)
{
	int values[2] = { 0 };
	struct nvml_query q = { .function = NULL };

	if (nvml_query_begin(nvml, &q, "nvmlDeviceGetCudaComputeCapability", 1, device, -1, -1))
		q.result = ((int (*)(nvml_device, int *, int *))q.function)(q.device, &values[0],
									    &values[1]);
	if (!q.result) {
		*major = values[0];
		*minor = values[1];
	}
	return nvml_query_end(nvml, &q, "%d %d", values[0], values[1]);
}

int wh_nvml_mig(struct wh_nvml *nvml, unsigned device, bool *on)
{
	unsigned now = 0, pending = 0;
	struct nvml_query q = { .function = NULL };

	if (nvml_query_begin(nvml, &q, "nvmlDeviceGetMigMode", 1, device, -1, -1))
		q.result = ((int (*)(nvml_device, unsigned *, unsigned *))q.function)(
			q.device, &now, &pending);
	if (!q.result)
		*on = now == 1;
	return nvml_query_end(nvml, &q, "%u %u", now, pending);
}

int wh_nvml_utilisation(struct wh_nvml *nvml, unsigned device, uint32_t *gpu, uint32_t *memory)
{
	unsigned values[2] = { 0 };
	struct nvml_query q = { .function = NULL };

	if (nvml_query_begin(nvml, &q, "nvmlDeviceGetUtilizationRates", 1, device, -1, -1))
		q.result = ((int (*)(nvml_device, unsigned *))q.function)(q.device, values);
	if (!q.result) {
		*gpu = values[0];
		*memory = values[1];
	}
	return nvml_query_end(nvml, &q, "%u %u", values[0], values[1]);
}

int wh_nvml_ecc(struct wh_nvml *nvml, unsigned device, bool uncorrected, uint64_t *out)
{
	struct nvml_query q = { .function = NULL };
	uint64_t value = 0;

	/* 0: since the driver was loaded. */
	if (nvml_query_begin(nvml, &q, "nvmlDeviceGetTotalEccErrors", 1, device, uncorrected, 0))
		q.result = ((int (*)(nvml_device, unsigned, unsigned, uint64_t *))q.function)(
			q.device, uncorrected, 0, &value);
	if (!q.result)
		*out = value;
	return nvml_query_end(nvml, &q, "%" PRIu64, value);
}

int wh_nvml_reasons(struct wh_nvml *nvml, unsigned device, uint64_t *out)
{
	static const char older[] = "nvmlDeviceGetCurrentClocksThrottleReasons";
	const char *name = "nvmlDeviceGetCurrentClocksEventReasons";
	struct nvml_query q = { .function = NULL };
	uint64_t value = 0;

	if (nvml_query_begin(nvml, &q, dlsym(nvml->library, name) ? name : older, 1, device, -1,
			     -1))
		q.result = ((int (*)(nvml_device, uint64_t *))q.function)(q.device, &value);
	if (!q.result)
		*out = value;
	return nvml_query_end(nvml, &q, "0x%" PRIx64, value);
}

int wh_nvml_processes(struct wh_nvml *nvml, unsigned device, struct wh_nvml_process *out,
		      unsigned *count)
{
	struct nvml_process list[PROCESSES_MOST] = { { 0 } };
	unsigned found = PROCESSES_MOST, used = 0;
	char text[400] = "";
	struct nvml_query q = { .function = NULL };

	/* Version 1 has a different struct. */
	if (nvml_query_begin(nvml, &q, "nvmlDeviceGetComputeRunningProcesses", 3, device, -1, -1)) {
		if (dlsym(nvml->library, "nvmlDeviceGetComputeRunningProcesses_v3") ||
		    dlsym(nvml->library, "nvmlDeviceGetComputeRunningProcesses_v2"))
			q.result = ((int (*)(nvml_device, unsigned *,
					     struct nvml_process *))q.function)(q.device, &found,
										list);
		else
			q.result = NVML_FUNCTION_NOT_FOUND;
	}
	/* More than fit: return the first ones. */
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
	return nvml_query_end(nvml, &q, "%s", text);
}

static int end_words(struct wh_nvml *nvml, const struct nvml_query *q, const uint64_t *words,
		     unsigned count)
{
	char text[400] = "";

	for (unsigned i = 0, used = 0; i < count && used < sizeof(text) - 20; i++)
		used += (unsigned)snprintf(text + used, sizeof(text) - used, "%s0x%" PRIx64,
					   i ? " " : "", words[i]);
	return nvml_query_end(nvml, q, "%s", text);
}

int wh_nvml_cpus(struct wh_nvml *nvml, unsigned device, uint64_t *words, unsigned count)
{
	struct nvml_query q = { .function = NULL };

	_Static_assert(sizeof(unsigned long) == sizeof(uint64_t), "NVML's words are unsigned long");
	memset(words, 0, count * sizeof(*words));
	if (nvml_query_begin(nvml, &q, "nvmlDeviceGetCpuAffinity", 1, device, -1, -1))
		q.result = ((int (*)(nvml_device, unsigned, uint64_t *))q.function)(q.device, count,
										    words);
	return end_words(nvml, &q, words, count);
}

int wh_nvml_nodes(struct wh_nvml *nvml, unsigned device, uint64_t *words, unsigned count)
{
	struct nvml_query q = { .function = NULL };

	memset(words, 0, count * sizeof(*words));
	if (nvml_query_begin(nvml, &q, "nvmlDeviceGetMemoryAffinity", 1, device, -1, -1))
		q.result = ((int (*)(nvml_device, unsigned, uint64_t *, unsigned))q.function)(
			q.device, count, words, 0);
	return end_words(nvml, &q, words, count);
}

/* Begin a query about two GPUs. */
static bool begin_pair(struct wh_nvml *nvml, struct nvml_query *q, const char *name, unsigned one,
		       unsigned other, int64_t third)
{
	if (!nvml_query_begin(nvml, q, name, 1, one, other, third))
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
	struct nvml_query q = { .function = NULL };
	unsigned value = 0;

	if (begin_pair(nvml, &q, "nvmlDeviceGetTopologyCommonAncestor", one, other, -1))
		q.result = ((int (*)(nvml_device, nvml_device, unsigned *))q.function)(
			q.device, atomic_load(&nvml->handles[other]), &value);
	if (!q.result)
		*out = value;
	return nvml_query_end(nvml, &q, "%u", value);
}

int wh_nvml_p2p(struct wh_nvml *nvml, unsigned one, unsigned other, enum wh_nvml_p2p what,
		uint32_t *out)
{
	struct nvml_query q = { .function = NULL };
	unsigned value = 0;

	if (begin_pair(nvml, &q, "nvmlDeviceGetP2PStatus", one, other, what))
		q.result = ((int (*)(nvml_device, nvml_device, unsigned, unsigned *))q.function)(
			q.device, atomic_load(&nvml->handles[other]), what, &value);
	if (!q.result)
		*out = value;
	return nvml_query_end(nvml, &q, "%u", value);
}

int wh_nvml_fabric(struct wh_nvml *nvml, unsigned device, struct wh_nvml_fabric *out)
{
	struct nvml_fabric fabric = { .version = VERSIONED(struct nvml_fabric, 2) };
	struct nvml_query q = { .function = NULL };
	uint64_t halves[2];

	if (nvml_query_begin(nvml, &q, "nvmlDeviceGetGpuFabricInfoV", 1, device, -1, -1))
		q.result =
			((int (*)(nvml_device, struct nvml_fabric *))q.function)(q.device, &fabric);
	if (!q.result) {
		*out = (struct wh_nvml_fabric){ fabric.state, fabric.status, fabric.clique, { 0 } };
		memcpy(out->cluster, fabric.cluster, sizeof(out->cluster));
	}
	/* As two numbers, which recordings of an older Wherry lack. */
	memcpy(halves, fabric.cluster, sizeof(halves));
	return nvml_query_end(nvml, &q, "%u %u %u %#llx %#llx", fabric.state, fabric.status,
			      fabric.clique, (unsigned long long)be64toh(halves[0]),
			      (unsigned long long)be64toh(halves[1]));
}

bool wh_nvml_fabric_spans(const struct wh_nvml_fabric *fabric)
{
	static const uint8_t none[sizeof(fabric->cluster)];

	return fabric->state == WH_NVML_FABRIC_COMPLETED && !fabric->status &&
	       memcmp(fabric->cluster, none, sizeof(none));
}

void wh_nvml_domain_text(const struct wh_nvml_fabric *fabric, char out[WH_NVML_DOMAIN])
{
	size_t at = 0;

	*out = '\0';
	if (!wh_nvml_fabric_spans(fabric))
		return;
	for (int i = 0; i < 16; i++)
		at += (size_t)snprintf(out + at, WH_NVML_DOMAIN - at, "%s%02x",
				       i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
				       fabric->cluster[i]);
	snprintf(out + at, WH_NVML_DOMAIN - at, "/%u", fabric->clique);
}
