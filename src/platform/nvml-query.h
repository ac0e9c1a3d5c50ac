/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the NVML binding, for nvml.c and nvml-query.c only: the part of NVML's ABI that
 * Wherry uses, the opened library, and how a query begins and ends.
 */
#ifndef WH_PLATFORM_NVML_QUERY_H
#define WH_PLATFORM_NVML_QUERY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "platform/nvml.h"

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

/* Version 3 of the struct; version 2 is its beginning. */
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

/* The struct of version 2 of the function and later. */
struct nvml_process {
	unsigned pid;
	uint64_t memory;
	unsigned gpu_instance, compute_instance;
};

/* ---- the library ----------------------------------------------------------------------------- */

struct wh_nvml {
	void *library;
	FILE *record; /* NULL: none; the caller's */
	unsigned count; /* of GPUs */
	_Atomic nvml_device handles[WH_NVML_DEVICES]; /* stored before `lost` is cleared */
	/* NVML's result for the handle, or for a later query that found the GPU lost; 0: usable */
	atomic_int lost[WH_NVML_DEVICES];
};

/* ---- queries --------------------------------------------------------------------------------- */

struct nvml_query {
	char text[96]; /* "nvmlDeviceGetNvLinkState 0 17" */
	void *function;
	nvml_device device;
	unsigned index; /* of the device; UINT_MAX: two devices, the answer may concern either */
	int result;
};

/* Look up NAME_vN for N from `version` down, then NAME. NULL: the library has none of them. */
void *nvml_find(const struct wh_nvml *nvml, const char *name, int version);

/* Begin a query with up to two arguments besides the GPU (-1: none). True: call q->function and
 * store its result in q->result. False: there is nothing to call; q->result says why. */
bool nvml_query_begin(struct wh_nvml *nvml, struct nvml_query *q, const char *name, int version,
		      unsigned device, int64_t second, int64_t third);

/* End a query: note that a GPU is lost, record the answer, and turn an error into a negative errno
 * with its text. `format` prints the values to record. */
int nvml_query_end(struct wh_nvml *nvml, const struct nvml_query *q, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
