/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared declarations of the fake CUDA driver's files.
 *
 * Locks: fake_lock guards contexts, streams, events and modules; fake_map_lock guards the address
 * map. Never take one while holding the other. An operation in a stream runs with fake_map_lock
 * held for reading and without fake_lock, so unmapping waits for it and submitting does not.
 */
#ifndef TESTS_FAKE_FAKE_H
#define TESTS_FAKE_FAKE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "fake-control.h"
#include "util/list.h"

#define FAKE_API __attribute__((visibility("default")))
#define FAKE_DEVICES 8
#define FAKE_GRANULARITY ((size_t)2 << 20)
#define FAKE_STALE 0xee /* what GPUs read in page-locked pages that a file has lost */
#define FAKE_BAR_PAGE ((size_t)64 << 10)

enum fake_error {
	FAKE_OK = 0,
	FAKE_INVALID_VALUE = 1,
	FAKE_OUT_OF_MEMORY = 2,
	FAKE_NOT_INITIALIZED = 3,
	FAKE_NO_DEVICE = 100,
	FAKE_INVALID_DEVICE = 101,
	FAKE_INVALID_IMAGE = 200,
	FAKE_INVALID_CONTEXT = 201,
	FAKE_NO_BINARY = 209,
	FAKE_PEER_UNSUPPORTED = 217,
	FAKE_INVALID_PTX = 218,
	FAKE_UNSUPPORTED_PTX = 222,
	FAKE_INVALID_HANDLE = 400,
	FAKE_OPERATING_SYSTEM = 304,
	FAKE_NOT_FOUND = 500,
	FAKE_NOT_READY = 600,
	FAKE_ILLEGAL_ADDRESS = 700,
	FAKE_PEER_ENABLED = 704,
	FAKE_PEER_NOT_ENABLED = 705,
	FAKE_CONTEXT_DESTROYED = 709,
	FAKE_HOST_REGISTERED = 712,
	FAKE_HOST_NOT_REGISTERED = 713,
	FAKE_LAUNCH_FAILED = 719,
	FAKE_NOT_PERMITTED = 800,
	FAKE_NOT_SUPPORTED = 801,
	FAKE_CAPTURE_UNSUPPORTED = 900,
	FAKE_UNKNOWN = 999,
};

/* ---- the ABI's structs ----------------------------------------------------------------------- */

struct fake_uuid {
	unsigned char bytes[16];
};

enum { FAKE_LOCATION_DEVICE = 1 };
enum { FAKE_ALLOCATION_PINNED = 1 };
enum { FAKE_HANDLE_FD = 1, FAKE_HANDLE_FABRIC = 8 };

struct fake_location {
	int type, id;
};

struct fake_properties {
	int type;
	int handle_types;
	struct fake_location location;
	void *win32;
	struct {
		unsigned char compression, rdma;
		unsigned short usage;
		unsigned char reserved[4];
	} flags;
};

struct fake_pool_properties {
	int type;
	int handle_types;
	struct fake_location location;
	void *win32;
	unsigned char reserved[64];
};

struct fake_access {
	struct fake_location location;
	int flags; /* 0 none, 1 read, 3 read and write */
};

struct fake_copy_attributes {
	int order;
	struct fake_location from, to;
	unsigned flags;
};

struct fake_ipc_handle {
	unsigned char bytes[64];
};

/* ---- faults and the entry of every call ------------------------------------------------------ */

/* Counts the calls of one exported function; a static variable of that function. */
struct fake_call {
	const char *name;
	_Atomic uint64_t count;
	struct fake_call *next;
};

/* Every exported function calls one of these first. Not 0: the function returns this error at
 * once. cuInit() and the few that work before it use the second. */
int fake_enter(struct fake_call *call, const char *name);
int fake_enter_uninitialised(struct fake_call *call, const char *name);

#define FAKE_ENTER_WITH(enter)                                                                     \
	do {                                                                                       \
		static struct fake_call fake_call_;                                                \
		int fake_error_ = enter(&fake_call_, __func__);                                    \
		if (fake_error_)                                                                   \
			return fake_error_;                                                        \
	} while (0)
#define FAKE_ENTER() FAKE_ENTER_WITH(fake_enter)

/* The environment, read once. */
struct fake_settings {
	unsigned devices;
	size_t memory;
	unsigned delay;
	unsigned start; /* seconds */
	int driver;
	bool reuse, peer, share;
	const char *attributes, *visible, *bar;
	const char *world; /* a directory; NULL: none */
	/* Memory is shared over the fabric, which is `world`, within the clique of this number; 0:
	 * there is no IMEX channel. */
	unsigned fabric;
};

const struct fake_settings *fake_settings(void);
/* Take the time of fake_cuda_delay(). */
void fake_take_delay(void);
void fake_pause(unsigned microseconds);
/* Take the time of fake_cuda_slow(). */
void fake_take_time(bool kernel);
/* Take the time of fake_cuda_slow_locking(). */
void fake_take_locking(void);
/* Apply FAKE_CUDA_LOSE; call it once the devices exist. */
void fake_lose_from_environment(void);
/* True while this thread runs a host function, which must not call CUDA. */
extern _Thread_local bool fake_in_callback;
/* The mode of cuThreadExchangeStreamCaptureMode(): 0 global, 1 thread local, 2 relaxed. */
extern _Thread_local int fake_capture_mode;

/* ---- devices and contexts -------------------------------------------------------------------- */

struct fake_context;

struct fake_device {
	int ordinal; /* in this process */
	int physical; /* index on the machine, before CUDA_VISIBLE_DEVICES */
	struct fake_uuid uuid;
	_Atomic size_t memory; /* total bytes */
	size_t used; /* bytes; under fake_map_lock */
	_Atomic int lost; /* the error that every call returns; 0: the device works */
	_Atomic long lose_after; /* operations until the device is lost; -1: never */
	_Atomic int lose_error;
	struct fake_context *_Atomic primary; /* created by the first retain, never freed */
	unsigned primary_count;
	unsigned primary_flags;
};

/* Never freed: other threads may have it as current. */
struct fake_context {
	struct wh_list link;
	struct fake_device *device;
	_Atomic bool alive;
	_Atomic int error; /* sticky */
	_Atomic unsigned peers; /* devices whose memory kernels here reach, by ordinal */
	unsigned flags;
	struct wh_list streams; /* struct fake_stream */
	struct fake_stream *null;
};

extern pthread_mutex_t fake_lock;

bool fake_initialised(void);
int cuDeviceGetAttribute(int *value, int attribute, int device);
/* NULL: no such device. */
struct fake_device *fake_device(int ordinal);
struct fake_device *fake_device_physical(int physical);
unsigned fake_device_count(void);
/* The error that calls in this context return; 0 while the context and its device work. */
int fake_health(const struct fake_context *context);
/* Set *out to the calling thread's context. An error if there is none or it cannot be used. */
int fake_current(struct fake_context **out);
bool fake_peers(const struct fake_device *a, const struct fake_device *b);
/* The compute capability of all devices, times ten: 90 for 9.0. */
int fake_capability(void);
void fake_attributes_forget(void);
/* Does the fake know this context? Takes fake_lock. */
bool fake_context_known(struct fake_context *context);
extern struct wh_list fake_contexts; /* under fake_lock */

/* ---- the address map ------------------------------------------------------------------------- */

enum fake_kind {
	FAKE_DEVICE = 1, /* cuMemAlloc */
	FAKE_POOL, /* cuMemAllocAsync */
	FAKE_MAPPED, /* cuMemMap */
	FAKE_IMPORTED, /* cuIpcOpenMemHandle */
	FAKE_HOST, /* cuMemHostAlloc */
	FAKE_REGISTERED, /* cuMemHostRegister */
	FAKE_MANAGED, /* cuMemAllocManaged */
};

/* Memory of a device: a memfd, and the mapping through which the driver reaches it. */
struct fake_memory {
	struct wh_list link;
	int fd;
	char *alias;
	size_t size;
	struct fake_device *device;
	bool charged; /* counts in device->used: allocated here, not imported */
	unsigned handle_types;
	unsigned handles, mappings;
	uint64_t id;
	uint64_t bar; /* device address of memory on a BAR, else 0 */
};

/* A range of addresses that calls accept. */
struct fake_range {
	uint64_t base;
	size_t size;
	enum fake_kind kind;
	struct fake_memory *memory; /* NULL: the CPU and the driver use the addresses directly */
	size_t offset; /* of the base in the memory */
	uint64_t buffer_id;
	struct fake_context *context; /* NULL for FAKE_MAPPED and FAKE_POOL */
	struct fake_device *device;
	bool sync; /* SYNC_MEMOPS */
	bool freeing; /* cuMemFreeAsync() has been called, and the stream has yet to free it */
	unsigned flags; /* FAKE_POOL: its pool's handle types */
	unsigned char access[FAKE_DEVICES]; /* FAKE_MAPPED */
	uint64_t inode; /* FAKE_IMPORTED: identifies the memory */
	unsigned opens; /* FAKE_IMPORTED: cuIpcOpenMemHandle() less cuIpcCloseMemHandle() */
};

/* Reserved addresses, PROT_NONE. */
struct fake_reservation {
	uint64_t base;
	size_t size;
	bool user; /* made by cuMemAddressReserve() */
};

extern pthread_rwlock_t fake_map_lock;

/* All under fake_map_lock. */
struct fake_range *fake_range_find(uint64_t address);
/* The first range that overlaps [base, base+size), or NULL. */
struct fake_range *fake_range_overlap(uint64_t base, size_t size);
struct fake_reservation *fake_reservation_find(uint64_t address);
/* Add a copy of *range to the map, with a new buffer id. NULL: no memory. */
struct fake_range *fake_range_add(const struct fake_range *range);
void fake_range_remove(struct fake_range *range);
/* The first range for which `match` returns true; NULL: none. */
struct fake_range *fake_range_search(bool (*match)(const struct fake_range *range, const void *arg),
				     const void *arg);
/* Reserve addresses. 0: no address space is left. */
uint64_t fake_reserve(size_t size, size_t alignment, uint64_t hint, bool user);
void fake_unreserve(struct fake_reservation *reservation);

int fake_memory_new(struct fake_device *device, size_t size, unsigned handle_types,
		    struct fake_memory **out);
/* Map the memory behind a descriptor that any process exported. Takes the descriptor over on
 * success. */
/* Open the memory with this inode in FAKE_CUDA_WORLD, for a process which does not see the one that
 * exported it: the real driver looks the object up in the kernel, or asks IMEX. -1: none. */
int fake_world_open(uint64_t inode);
int fake_memory_import(int fd, struct fake_memory **out);
/* The memory that a cuMemCreate() handle names, or NULL. */
struct fake_memory *fake_memory_known(uint64_t handle);
/* Free the memory if it has neither handles nor mappings. */
void fake_memory_drop(struct fake_memory *memory);

/* The handle of the memory's object in the client FAKE_CLIENT of the resource manager. If the fake
 * kernel driver is loaded, this enters the object there. */
uint32_t fake_object(const struct fake_memory *memory);

/* Move memory of cuMemCreate() to the BAR; its first cuMemMap() does that. */
int fake_memory_to_bar(struct fake_memory *memory, uint64_t base);

/* Allocate memory on the BAR that FAKE_CUDA_BAR names, in whole pages of FAKE_BAR_PAGE, and map it
 * at *alias. `at_base`: map it at its device address as well, if the BAR has struct pages, so that
 * a NIC can register that address, as with nvidia-peermem; that mapping ends with the reservation.
 */
int fake_bar_map(uint64_t base, size_t size, bool at_base, int *fd, char **alias);
void fake_bar_unmap(uint64_t base, int fd);

/* Allocate device memory at new addresses. */
int fake_range_allocate(struct fake_context *context, size_t size, enum fake_kind kind,
			uint64_t *out);
/* Free a range of any kind but FAKE_MAPPED, and its memory. */
void fake_range_free(struct fake_range *range);
/* An attribute that all devices have. */
int fake_attribute(int attribute);

/* fake-pages.c: what cuMemHostRegister() does to memory that is only read. 0, or an error. */
int fake_pages_lock(uint64_t base, size_t size);
/* Is no page of it mapped without the right to write? */
bool fake_pages_writable(uint64_t base, size_t size);
/* The calling thread begins or ends an operation of a stream. */
void fake_pages_operation(bool begins);

/* Free all ranges of a context that is destroyed. Takes fake_map_lock. */
void fake_ranges_drop(const struct fake_context *context);

enum fake_user { FAKE_BY_COPY, FAKE_BY_KERNEL };

/* The host address through which the driver accesses `address`. Reduces *length to the bytes that
 * are contiguous from there. NULL: the context cannot access it. */
char *fake_translate(const struct fake_context *context, enum fake_user user, uint64_t address,
		     size_t *length, bool write);

/* ---- streams --------------------------------------------------------------------------------- */

struct fake_stream {
	struct wh_list link;
	struct fake_context *context;
	pthread_cond_t wake, progress;
	struct fake_op *first, **last;
	uint64_t submitted, done;
	unsigned refs;
	unsigned flags;
	int priority;
	pid_t owner; /* not 0: the per-thread default stream of this thread */
	bool started, closing;
};

struct fake_wait {
	struct fake_stream *stream;
	uint64_t until;
};

/* An operation of a stream; the first member of a larger struct. */
struct fake_op {
	struct fake_op *next;
	struct fake_context *context;
	int (*run)(struct fake_op *op); /* an error becomes the context's sticky error */
	/* Free what the larger struct owns, but not the op; called also if the op never ran. May be
	 * NULL. */
	void (*end)(struct fake_op *op);
	unsigned wait_count, wait_room;
	struct fake_wait *waits;
};

/* Submit an operation to a stream, given as CUDA's handle. Takes the op over, also on error.
 * `wait`: block until it is done and return the context's error. */
int fake_submit(void *stream, struct fake_op *op, bool wait);
/* The context in which operations of a stream run. */
int fake_stream_context(void *stream, struct fake_context **out);
/* Wait for the operations that were submitted to any stream of the context before this call. */
void fake_context_wait(struct fake_context *context);

/* For fake-event.c. All under fake_lock. */
void fake_stream_unref(struct fake_stream *stream);
/* Find the stream of a CUDA handle. */
int fake_stream_find(void *handle, struct fake_stream **out);
/* Append an operation. Takes the op over only on success. */
int fake_stream_submit(struct fake_stream *stream, struct fake_op *op);
/* Let the operation wait until the stream has completed `until` operations. False: no memory. */
bool fake_op_add_wait(struct fake_op *op, struct fake_stream *stream, uint64_t until);
void fake_op_free(struct fake_op *op);
/* Wait until the stream has completed `until` operations; the lock is released meanwhile. */
void fake_stream_wait_until(struct fake_stream *stream, uint64_t until);
/* End all streams of a context that has been destroyed. */
void fake_streams_end(struct fake_context *context);

/* ---- kernels --------------------------------------------------------------------------------- */

struct fake_launch {
	const struct fake_context *context;
	unsigned grid[3], block[3], index[3]; /* index: of this block in the grid */
	void *parameters[8];
};

/* A host function that does what a kernel does. */
struct fake_twin {
	const char *name;
	unsigned count;
	struct {
		size_t size, alignment;
	} parameters[8];
	int (*run)(const struct fake_launch *launch); /* one block; 0 or the error */
};

#endif
