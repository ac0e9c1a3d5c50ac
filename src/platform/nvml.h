/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVML, the NVIDIA driver's monitoring library, opened at run time. No policy.
 *
 * Only queries are bound, nothing that changes a device. The declarations are our own. Where a
 * function has versions, the newest that the library has is called. A query returns 0 or a negative
 * errno: -EOPNOTSUPP, the device does not have this; -ENOSYS, the driver is too old for the query;
 * -EACCES and -EPERM, no permission here; -ENODEV, no driver, or the GPU is lost. An output is set
 * on success only: 0 never stands for "not known".
 *
 * All functions may be called from any thread; none after fork(). A faulty driver can block any of
 * them for long.
 */
#ifndef WH_PLATFORM_NVML_H
#define WH_PLATFORM_NVML_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define WH_NVML_LIBRARY "libnvidia-ml.so.1"
#define WH_NVML_DEVICES 64
#define WH_NVML_LINKS 36
#define WH_NVML_TEXT 96

struct wh_nvml;

/* Open the library at `path` (NULL: WH_NVML_LIBRARY) and initialise it. May block for seconds while
 * the driver wakes the GPUs. 0; -ENODEV: no library, or no driver; -ELIBBAD: the versions of
 * library and driver do not match; others as above. */
int wh_nvml_open(const char *path, struct wh_nvml **out);
void wh_nvml_close(struct wh_nvml *nvml);

/* From now on write every query and its answer to `file` (NULL: stop), as lines
 * "FUNCTION ARGUMENTS : RESULT VALUES". The fake in tests/fake/nvml replays such a file. The file
 * stays the caller's. */
void wh_nvml_record(struct wh_nvml *nvml, FILE *file);

/* The number of GPUs. Their index runs from 0, in the order of nvidia-smi. */
unsigned wh_nvml_count(const struct wh_nvml *nvml);

/* Can the GPU be queried? 0, or the reason: it had no handle when NVML was opened, or a later
 * answer said that it is lost or needs a reset. Such a GPU gets no further queries. */
int wh_nvml_device(struct wh_nvml *nvml, unsigned device);

/* As wh_nvml_device(), but ask NVML for the handle of such a GPU again. 0 only means that queries
 * are possible again: their answers show whether the GPU is back. */
int wh_nvml_retry(struct wh_nvml *nvml, unsigned device);

/* NVML's words for a query's error: "not supported", "no permission". */
const char *wh_nvml_meaning(int error);

/* ---- texts and numbers ----------------------------------------------------------------------- */

enum wh_nvml_system_text { WH_NVML_DRIVER_VERSION, WH_NVML_LIBRARY_VERSION, WH_NVML_SYSTEM_TEXTS };
int wh_nvml_system_text(struct wh_nvml *nvml, enum wh_nvml_system_text which,
			char out[WH_NVML_TEXT]);

enum wh_nvml_text { WH_NVML_NAME, WH_NVML_UUID, WH_NVML_SERIAL, WH_NVML_VBIOS, WH_NVML_TEXTS };
int wh_nvml_text(struct wh_nvml *nvml, enum wh_nvml_text which, unsigned device,
		 char out[WH_NVML_TEXT]);

enum wh_nvml_number {
	WH_NVML_PCIE_GENERATION,
	WH_NVML_PCIE_GENERATION_MOST, /* of the device in its slot */
	WH_NVML_PCIE_WIDTH, /* lanes */
	WH_NVML_PCIE_WIDTH_MOST,
	WH_NVML_PCIE_REPLAYS,
	WH_NVML_NUMA_NODE, /* of the GPU's own memory, where that is system memory */
	WH_NVML_COMPUTE_MODE,
	WH_NVML_PERSISTENCE,
	WH_NVML_POWER, /* mW */
	WH_NVML_POWER_LIMIT, /* mW */
	WH_NVML_NUMBERS,
};
int wh_nvml_number(struct wh_nvml *nvml, enum wh_nvml_number which, unsigned device, uint32_t *out);

/* Numbers with an index: of a link, a clock, a sensor or a direction. */
enum wh_nvml_indexed {
	WH_NVML_LINK_STATE, /* of a link: 1 active */
	WH_NVML_LINK_VERSION, /* of a link */
	WH_NVML_LINK_REMOTE, /* of a link: enum wh_nvml_remote */
	WH_NVML_CLOCK, /* 0 graphics, 1 SM, 2 memory: MHz */
	WH_NVML_CLOCK_MOST,
	WH_NVML_TEMPERATURE, /* 0: of the GPU: C */
	WH_NVML_PCIE_RATE, /* 0 sent by the GPU, 1 received: KB/s; takes 20 ms */
	WH_NVML_INDEXED,
};
enum wh_nvml_remote { WH_NVML_REMOTE_GPU, WH_NVML_REMOTE_NPU, WH_NVML_REMOTE_SWITCH };
int wh_nvml_indexed(struct wh_nvml *nvml, enum wh_nvml_indexed which, unsigned device,
		    unsigned index, uint32_t *out);

/* Fields of nvmlDeviceGetFieldValues(), by number; scope: a link, or UINT32_MAX. */
enum {
	WH_NVML_FIELD_LINK_COUNT = 91,
	WH_NVML_FIELD_LINK_SENT = 138, /* KiB since the driver was loaded */
	WH_NVML_FIELD_LINK_RECEIVED = 139, /* likewise */
	WH_NVML_FIELD_LINK_SPEED = 164, /* MB/s in each direction */
	WH_NVML_FIELD_RECOVERY = 230, /* the action that the GPU needs; 0: none */
};
int wh_nvml_field(struct wh_nvml *nvml, unsigned device, uint32_t field, uint32_t scope,
		  uint64_t *out);

/* Several fields in one call, at most WH_NVML_FIELDS. Each field gets its value, or the error that
 * a single query would return. */
#define WH_NVML_FIELDS 8
struct wh_nvml_field {
	uint32_t field, scope;
	int error;
	uint64_t value; /* unchanged on error */
};
void wh_nvml_fields(struct wh_nvml *nvml, unsigned device, struct wh_nvml_field *fields,
		    unsigned count);

/* ---- the rest -------------------------------------------------------------------------------- */

struct wh_nvml_pci {
	uint32_t domain, bus, device;
	uint32_t id; /* device and vendor, 16 bits each */
};
int wh_nvml_pci(struct wh_nvml *nvml, unsigned device, struct wh_nvml_pci *out);

/* The PCI address of the other end of an NVLink. */
int wh_nvml_link_pci(struct wh_nvml *nvml, unsigned device, unsigned link, struct wh_nvml_pci *out);

struct wh_nvml_memory {
	uint64_t total, used; /* bytes */
};
int wh_nvml_memory(struct wh_nvml *nvml, unsigned device, struct wh_nvml_memory *out);
/* BAR1: the range of PCI addresses through which CPUs and devices reach the GPU's memory. */
int wh_nvml_bar1(struct wh_nvml *nvml, unsigned device, struct wh_nvml_memory *out);

int wh_nvml_capability(struct wh_nvml *nvml, unsigned device, int *major, int *minor);

/* Is the GPU partitioned into instances (MIG)? */
int wh_nvml_mig(struct wh_nvml *nvml, unsigned device, bool *on);

/* The share of the last sampling period (up to a second) in which the GPU, and its memory, were
 * busy: %. */
int wh_nvml_utilisation(struct wh_nvml *nvml, unsigned device, uint32_t *gpu, uint32_t *memory);

/* ECC errors since the driver was loaded. */
int wh_nvml_ecc(struct wh_nvml *nvml, unsigned device, bool uncorrected, uint64_t *out);

/* Why the clocks are not higher: bits of enum wh_nvml_reason, and others unknown here. */
enum wh_nvml_reason {
	WH_NVML_IDLE = 0x01,
	WH_NVML_CLOCKS_SET = 0x02,
	WH_NVML_POWER_CAP = 0x04,
	WH_NVML_HARDWARE_SLOWDOWN = 0x08,
	WH_NVML_SYNC_BOOST = 0x10,
	WH_NVML_THERMAL = 0x20,
	WH_NVML_HARDWARE_THERMAL = 0x40,
	WH_NVML_POWER_BRAKE = 0x80,
};
int wh_nvml_reasons(struct wh_nvml *nvml, unsigned device, uint64_t *out);

/* The processes that compute on the GPU. *count: room in `out`; on return the number of entries.
 * PIDs are those of the driver's own PID namespace. */
struct wh_nvml_process {
	uint32_t pid;
	uint64_t memory; /* bytes; UINT64_MAX: not known */
};
int wh_nvml_processes(struct wh_nvml *nvml, unsigned device, struct wh_nvml_process *out,
		      unsigned *count);

/* The nearest CPUs, or NUMA nodes: number n is bit n % 64 of word n / 64. */
int wh_nvml_cpus(struct wh_nvml *nvml, unsigned device, uint64_t *words, unsigned count);
int wh_nvml_nodes(struct wh_nvml *nvml, unsigned device, uint64_t *words, unsigned count);

/* Where the PCI paths of two GPUs meet. */
enum wh_nvml_ancestor {
	WH_NVML_ANCESTOR_BOARD = 0,
	WH_NVML_ANCESTOR_SWITCH = 10,
	WH_NVML_ANCESTOR_SWITCHES = 20,
	WH_NVML_ANCESTOR_HOST_BRIDGE = 30,
	WH_NVML_ANCESTOR_NODE = 40,
	WH_NVML_ANCESTOR_SYSTEM = 50,
};
int wh_nvml_ancestor(struct wh_nvml *nvml, unsigned one, unsigned other, uint32_t *out);

/* May one GPU reach the other's memory? *out is 0: yes; else NVML's reason. */
enum wh_nvml_p2p { WH_NVML_P2P_READ, WH_NVML_P2P_WRITE, WH_NVML_P2P_NVLINK, WH_NVML_P2P_ATOMICS };
int wh_nvml_p2p(struct wh_nvml *nvml, unsigned one, unsigned other, enum wh_nvml_p2p what,
		uint32_t *out);

/* Whether the GPU has joined its NVLink fabric. */
enum wh_nvml_fabric_state {
	WH_NVML_FABRIC_NONE,
	WH_NVML_FABRIC_NOT_STARTED,
	WH_NVML_FABRIC_IN_PROGRESS,
	WH_NVML_FABRIC_COMPLETED,
};
struct wh_nvml_fabric {
	uint32_t state;
	uint32_t status; /* once completed: NVML's result, 0 for success */
	/* GPUs of the same cluster and clique reach each other's memory, also those of other hosts.
	 * Cluster 0: the fabric ends at this host. */
	uint32_t clique;
	uint8_t cluster[16]; /* a UUID */
};
int wh_nvml_fabric(struct wh_nvml *nvml, unsigned device, struct wh_nvml_fabric *out);
/* Does the fabric join GPUs of several hosts? */
bool wh_nvml_fabric_spans(const struct wh_nvml_fabric *fabric);
/* "CLUSTER/CLIQUE"; "": the GPU is in no fabric that joins several hosts. */
#define WH_NVML_DOMAIN 48
void wh_nvml_domain_text(const struct wh_nvml_fabric *fabric, char out[WH_NVML_DOMAIN]);

#endif
